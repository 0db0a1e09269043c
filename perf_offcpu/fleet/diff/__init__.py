# SPDX-License-Identifier: Apache-2.0
"""Differences between selections of a dataset, and hosts unlike the others: hosts are the samples."""
