# SPDX-License-Identifier: Apache-2.0
"""Turn context switches into waits."""
