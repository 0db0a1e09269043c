# SPDX-License-Identifier: Apache-2.0
"""Queries on a dataset, in Ibis expressions, and their output as tables and flame graphs."""
