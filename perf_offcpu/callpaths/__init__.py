# SPDX-License-Identifier: Apache-2.0
"""Trees of stacks by name: paths, calls, weights, comparison."""
