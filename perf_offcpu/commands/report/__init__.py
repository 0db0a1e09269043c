# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu report: its options, its views of one recording, and the comparison of two."""
