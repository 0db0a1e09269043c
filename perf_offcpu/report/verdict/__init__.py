# SPDX-License-Identifier: Apache-2.0
"""Say in a few sentences what the numbers of a report mean: numbers of the verdict, then its words."""
