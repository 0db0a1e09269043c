# SPDX-License-Identifier: Apache-2.0
"""`scripts/offcpu.py`: handlers for `perf script -s`, and the samples that perf hands to them."""
