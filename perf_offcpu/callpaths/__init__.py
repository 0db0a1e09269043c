# SPDX-License-Identifier: Apache-2.0
"""Trees of stacks by function name, calls between functions, weights, and columns for sort keys."""
