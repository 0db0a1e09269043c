# SPDX-License-Identifier: Apache-2.0
"""Time budgets and tables for the terminal."""
