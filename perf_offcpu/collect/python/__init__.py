# SPDX-License-Identifier: Apache-2.0
"""Names of Python functions: which processes run CPython, where it keeps its state, and what functions are called."""
