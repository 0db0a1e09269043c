# SPDX-License-Identifier: Apache-2.0
"""Decode the records of perf.data to a Recording: samples, deferred callchains, tasks over time."""
