# SPDX-License-Identifier: Apache-2.0
"""Drain sums, budgets and task states from the BPF maps."""
