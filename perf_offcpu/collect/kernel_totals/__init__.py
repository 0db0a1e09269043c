# SPDX-License-Identifier: Apache-2.0
"""Write what the BPF program has summed up: short waits, budgets, states of tasks, losses."""
