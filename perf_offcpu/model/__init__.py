# SPDX-License-Identifier: Apache-2.0
"""Columns and interning: the Recording and the Profile. Knows nothing of files."""
