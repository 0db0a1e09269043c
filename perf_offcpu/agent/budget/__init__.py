# SPDX-License-Identifier: Apache-2.0
"""Keep the agent to the budget of `--max-cpu`: measure its CPU time, and choose how much it records."""
