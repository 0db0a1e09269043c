# SPDX-License-Identifier: Apache-2.0
"""Print samples as text, as perf script does."""
