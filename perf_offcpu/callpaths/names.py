# SPDX-License-Identifier: Apache-2.0
"""What is shown of frames: many addresses of one function become one name.

The frames of a profile differ by address; a view that kept them apart would show a caller once for each of
its call sites. Names are unique by (label, dso, kernel or user), found with one grouping of the columns.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from perf_offcpu.analysis.frames import is_kernel
from perf_offcpu.analysis.group import group
from perf_offcpu.analysis.options import Options
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Frames, Profile
from perf_offcpu.model.strings import Strings
from perf_offcpu.text import KERNEL_SUFFIX, WAKER_SUFFIX, basename, frame_label


class NameKind(enum.IntEnum):
    """What a name stands for."""

    USER = 0
    KERNEL = 1
    ROOT = 2  # a comm, process or thread
    MARK = 3  # a frame that was never there: "[truncated]", "[missed stack]", …
    WAKER = 4  # of the thread that woke the sleeper: a frame, or its name


class Name(NamedTuple):
    """A node's text. `label` and `dso` (a basename) are printable."""

    label: str
    dso: str
    kind: NameKind


def name_frames(profile: Profile, rows: I64, options: Options) -> tuple[list[Name], I64]:
    """Name some frames.

    Args:
        rows: int64[n], rows of `profile.frames`.

    Returns:
        (names, of): the different names, and int64[n], the name of each row, an index into them.
    """
    frames = profile.frames.take(rows)
    address = np.where((frames.symbol == 0) & options.addrs, frames.address, np.uint64(0))
    first, of = group(frames.symbol, frames.dso, is_kernel(frames).astype(np.uint8), address)
    return _names(frames.take(first), profile.strings, options), of


def waker_name(label: str, dso: str) -> Name:
    """A waker's frame (or, without dso, its thread) behind the stack of a sleeper."""
    return Name(label + WAKER_SUFFIX, dso, NameKind.WAKER)


def _names(frames: Frames, strings: Strings, options: Options) -> list[Name]:
    """The name of each of some frames."""
    names = []
    columns = (frames.symbol, frames.dso, frames.address, is_kernel(frames))
    for symbol, dso, address, kernel in zip(*(column.tolist() for column in columns), strict=True):
        label = frame_label(strings[symbol], strings[dso], address if options.addrs else None)
        suffix = KERNEL_SUFFIX if kernel and options.kernel else ""
        names.append(Name(label + suffix, basename(strings[dso]), NameKind(kernel)))
    return names
