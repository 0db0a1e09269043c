# SPDX-License-Identifier: Apache-2.0
"""Summarize a report in a few sentences: the numbers of the verdict, and its words."""
