# SPDX-License-Identifier: Apache-2.0
"""A recording with all addresses that its stacks have, also those that only unwinding finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perf_offcpu.model.recording import Recording
    from perf_offcpu.objects.search import Search


def load_unwound(path: str, search: Search) -> Recording:
    """Read a recording and unwind its copies of user stacks.

    Args:
        search: where the files are whose tables that takes.

    Raises:
        FormatError: it is no recording.
    """
    from perf_offcpu.cache import DiskCache
    from perf_offcpu.decode.load import load_recording
    from perf_offcpu.unwind.unwinder import unwind

    return unwind(load_recording(path, snapshots=True), search, DiskCache.usual())
