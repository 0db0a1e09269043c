# SPDX-License-Identifier: Apache-2.0
"""Print every record of a perf.data file as text."""
