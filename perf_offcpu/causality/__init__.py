# SPDX-License-Identifier: Apache-2.0
"""Find causes of waits in what other threads did meanwhile."""
