# SPDX-License-Identifier: Apache-2.0
"""Names of frames and wakers in views: many addresses of one function become one name.

The frames of a profile differ by address; a view that kept them apart would show a caller once for each of
its call sites. Names are unique by (label, dso, kernel or user), found with one grouping of the columns.
"""

from __future__ import annotations

import numpy as np

from perf_offcpu.analysis.group import group
from perf_offcpu.analysis.timeline import timeline_of
from perf_offcpu.analysis.wakeups import INTERRUPT, with_wakers
from perf_offcpu.callpaths.options import Name, NameKind, PathOptions
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.text import KERNEL_SUFFIX, WAKER_SUFFIX, basename, frame_label, thread_label

WAKER_DELIMITER = "--"
"""Between sleeper and waker, as in offwaketime of https://github.com/iovisor/bcc."""


def name_frames(profile: Profile, rows: I64, options: PathOptions) -> tuple[list[Name], I64]:
    """Name some frames.

    Args:
        rows: int64[n], rows of `profile.frames`.
        options: `addrs` and `kernel` count.

    Returns:
        (names, of): the distinct names, and int64[n], the name of each row, an index into them.
    """
    frames, strings = profile.frames.take(rows), profile.strings
    kernel = frames.is_kernel()
    address = np.where((frames.symbol == 0) & options.addrs, frames.address, np.uint64(0))
    first, group_of = group(frames.symbol, frames.dso, kernel.astype(np.uint8), address)
    columns = (column[first].tolist() for column in (frames.symbol, frames.dso, frames.address, kernel))
    names = []
    for symbol, dso, at, in_kernel in zip(*columns, strict=True):
        label = frame_label(strings[symbol], strings[dso], at if options.addrs else None)
        suffix = KERNEL_SUFFIX if in_kernel and options.kernel else ""
        names.append(Name(label + suffix, basename(strings[dso]), NameKind(in_kernel)))
    return names, group_of


def waker_name(label: str, dso: str = "") -> Name:
    """Return the name of a waker's thread, or of one of its frames."""
    return Name(label + WAKER_SUFFIX, dso, NameKind.WAKER)


def wakers_of(profile: Profile, options: PathOptions) -> tuple[list[Name], I64]:
    """Name the thread that ended the wait of each sample by comm and, with options, pid and tid.

    Returns:
        (names, name): the distinct names, the first for no waker; int64[samples], index into names, 0 where
        the waker is not known or the sample is no wait.
    """
    tracks, waker = with_wakers(profile, timeline_of(profile))
    labels = [""]
    for track in tracks:
        pid = track.pid if options.pid or options.tid else None
        labels.append(thread_label(track.comm, pid, track.tid if options.tid else None))
    distinct = sorted(set(labels))
    of_track = np.array([distinct.index(label) for label in labels], np.int64)
    interrupt = profile.samples.has(SampleFlag.WAKER_INTERRUPT)
    name = np.where(interrupt, len(distinct), of_track[waker + 1])
    name = np.append(0, np.where(profile.is_offcpu(), name, 0))
    first, group_of = group(name)
    names = [*map(waker_name, distinct), Name(INTERRUPT, "", NameKind.MARK)]
    return [names[row] for row in name[first].tolist()], group_of[1:]
