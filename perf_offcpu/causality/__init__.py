# SPDX-License-Identifier: Apache-2.0
"""Explain waits by the activity of other threads at the same time: critical paths, cascades, deadlocks, parallelism."""
