# SPDX-License-Identifier: Apache-2.0
"""The dataset: recordings of many hosts as Parquet tables, written, compacted and expired."""
