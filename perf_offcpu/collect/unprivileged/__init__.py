# SPDX-License-Identifier: Apache-2.0
"""Recordings of a user's own processes without BPF: context switches by perf, stacks read while threads sleep."""
