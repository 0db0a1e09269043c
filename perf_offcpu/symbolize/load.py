# SPDX-License-Identifier: Apache-2.0
"""Load recordings as a Profile: read, unwind, join, symbolize."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perf_offcpu.decode.deferred import deferred_as_samples
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects.search import Search
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize
from perf_offcpu.unwind.unwinder import unwind


def load_profile(
    paths: Sequence[str],
    symbols: SymbolizeOptions,
    seen: Callable[[str, Recording], object] | None = None,
    /,
    *,
    merge: bool = True,
    switches: bool = True,
    **joining: bool,
) -> Profile:
    """Read recordings, unwind their copies of user stacks and name their addresses.

    Args:
        paths: files or directories; "-" is standard input.
        seen: called with the path and the content of each recording.
        merge: complete samples whose user callchain was deferred; else deferred callchains become samples.
        switches: add waits between context switches (`decode.load.load_recording`).
        joining: how several recordings are joined: fields of `decode.join.JoinOptions`.

    Raises:
        FormatError: a file is no recording.
        UsageError: they cannot be joined, or a file that the options name cannot be read.
    """
    search, is_one = symbols.search(), len(paths) == 1
    recordings = [load_unwound(path, search, merge=merge and is_one, switches=switches) for path in paths]
    if seen is not None:
        for path, recording in zip(paths, recordings, strict=True):
            seen(path, recording)
    if is_one:
        return symbolize(deferred_as_samples(recordings[0]), symbols)
    from perf_offcpu.decode.join import JoinOptions
    from perf_offcpu.symbolize.hosts import join_profiles

    return join_profiles(recordings, symbols, JoinOptions(**joining), merge=merge)


def load_unwound(path: str, search: Search, *, merge: bool = True, switches: bool = True) -> Recording:
    """Read a recording and unwind its copies of user stacks (see `load_profile`)."""
    recording = load_recording(path, merge=merge, switches=switches, snapshots=True)
    return unwind(recording, search)
