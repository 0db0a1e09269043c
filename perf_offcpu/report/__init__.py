# SPDX-License-Identifier: Apache-2.0
"""Reports as tables for the terminal and as JSON: waits, locks, comparisons, critical paths, bottlenecks."""
