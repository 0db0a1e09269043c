# SPDX-License-Identifier: Apache-2.0
"""Select, classify and group samples; wake-ups and time budgets of threads."""
