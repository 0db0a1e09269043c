# SPDX-License-Identifier: Apache-2.0
"""Measure what the agent costs, and keep it to `--max-cpu`."""
