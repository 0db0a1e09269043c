# SPDX-License-Identifier: Apache-2.0
"""Compare selections of a dataset, and tell changes from chance."""
