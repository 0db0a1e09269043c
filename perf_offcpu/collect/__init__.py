# SPDX-License-Identifier: Apache-2.0
"""The recorder: BPF, perf events and rings, a snapshot of /proc, the session."""
