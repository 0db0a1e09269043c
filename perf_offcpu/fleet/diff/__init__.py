# SPDX-License-Identifier: Apache-2.0
"""Compare selections of a dataset, and find hosts unlike the others; hosts are the statistical samples."""
