# SPDX-License-Identifier: Apache-2.0
"""Drain the ring buffers of perf events."""
