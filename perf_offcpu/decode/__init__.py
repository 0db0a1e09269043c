# SPDX-License-Identifier: Apache-2.0
"""The bridge from records to a Recording: re-typing, deferred merge, tasks over time."""
