# SPDX-License-Identifier: Apache-2.0
"""Find causes of waits in the activity of other threads at the same time."""
