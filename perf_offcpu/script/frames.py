# SPDX-License-Identifier: Apache-2.0
"""Print stacks as `perf script` does: a line a frame, leaf first.

            7fca03d37efe clock_nanosleep+0x6e (/usr/lib/x86_64-linux-gnu/libc.so.6)
            55a162d0c32c leaf_nanosleep+0xe (/root/blocker)
            7fca03ca9d90 sem_clockwait (called) (/usr/lib/x86_64-linux-gnu/libc.so.6)

The last one has no symbol: its caller called that function (`symbolize.calls`). perf shows it as [unknown].
Each frame and each stack is formatted once, however many samples have it, within a bounded memory."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.records import CpuMode
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.script.fields import FieldChoice
from perf_offcpu.text import UNKNOWN, basename, printable

UNKNOWN_VALUE = "-"
_NS_PER_S = 10**9


def format_distinct(values: NDArray[Any], make: Callable[[int], str]) -> list[str]:
    """Return make(value) for each of n values; `make` is called once for each distinct value."""
    distinct, row = np.unique(values, return_inverse=True)
    texts = [make(value) for value in distinct.tolist()]
    return [texts[number] for number in row.tolist()]


def where(condition: Bool, texts: list[str], others: list[str]) -> list[str]:
    """Return texts[i] where condition[i] is True, else others[i], as np.where() does for arrays."""
    if condition.all():
        return texts
    return [text if holds else other for holds, text, other in zip(condition.tolist(), texts, others, strict=True)]


def format_times(values: I64, digits: int, end: str = "") -> list[str]:
    """Format times (int64[n], ns) in seconds, cut off after `digits` decimals, then `end`; `-` where negative."""
    seconds, parts = np.divmod(values, _NS_PER_S)
    parts //= 10 ** (9 - digits)
    unknown = f"{UNKNOWN_VALUE:>{6 + digits}}{end}"
    return [
        unknown if second < 0 else f"{second:5}.{part:0{digits}}{end}"
        for second, part in zip(seconds.tolist(), parts.tolist(), strict=True)
    ]


def format_known(number: int) -> str:
    """Format a number; `-` if it is negative (unknown)."""
    return str(number) if number >= 0 else UNKNOWN_VALUE


_CACHED_TEXT = 64 << 20  # characters of stacks that are kept; beyond that all are dropped, and formatted again


class FrameTexts:
    """Formats frames and stacks of a profile that was symbolized with `keep_ips`; stacks are given as rows of its
    table. `full_paths`: show source files with their directories."""

    def __init__(self, profile: Profile, fields: FieldChoice, *, full_paths: bool = False) -> None:
        self._fields, self._strings, self._full_paths = fields, profile.strings, full_paths
        self._parent = profile.stacks.parent.tolist()
        self._frame = profile.stacks.frame.tolist()
        self._frames = profile.frames
        self._line = functools.cache(self._new_line)
        self._stacks: dict[int, str] = {}
        self._cached = 0

    def leaf(self, stack: int) -> str:
        """Return the text of the innermost frame of a stack, without newline; "" for -1."""
        return self._line(self._frame[stack]) if stack >= 0 else ""

    def lines(self, stack: int) -> str:
        """Return the frames of a stack, leaf first, a line each with its newline; "" for -1."""
        text = self._stacks.get(stack)
        if text is None:
            text = self._stacks[stack] = self._joined(stack)
            self._cached += len(text)
            if self._cached > _CACHED_TEXT:
                self._stacks.clear()
                self._cached = 0
        return text

    def deferred(self, stack: int) -> tuple[str, str]:
        """Return (` [cookie: 1f]`, "" without a cookie; its frames as of `lines`) of a deferred callchain."""
        frame = self._frame[stack] if stack >= 0 else -1
        if frame >= 0 and self._frames.cpumode[frame] == CpuMode.UNKNOWN:
            return f" [cookie: {int(self._frames.ip[frame]):x}]", self.lines(self._parent[stack])
        return "", self.lines(stack)

    def _joined(self, stack: int) -> str:
        lines = []
        while stack >= 0:
            lines.append(f"\t{self._line(self._frame[stack])}\n")
            stack = self._parent[stack]
        return "".join(lines)

    def _new_line(self, frame: int) -> str:
        """Format a frame as sample__fprintf_sym() of tools/perf/util/evsel_fprintf.c does."""
        frames, shown = self._frames, self._fields.shown
        parts = []
        if "ip" in shown:
            parts.append(f"{int(frames.ip[frame]):16x}")
        if "sym" in shown:
            parts.append(self._symbol(frame))
        inlined = frames.inline_depth[frame] > 0
        if "dso" in shown and not inlined:
            parts.append(f"({printable(self._strings[frames.dso[frame]]) or UNKNOWN})")
        if "srcline" in shown:
            parts.append(f"\n  {self._source_line(frame)}")
        if inlined:
            parts.append("(inlined)")
        return " ".join(parts).replace(" \n", "\n")

    def _symbol(self, frame: int) -> str:
        frames = self._frames
        symbol = printable(self._strings[frames.symbol[frame]])
        if frames.is_called[frame]:
            return f"{symbol} (called)"
        is_code = frames.cpumode[frame] != CpuMode.UNKNOWN
        if symbol and is_code and self._fields.has("symoff"):
            return f"{symbol}+{int(frames.offset[frame]):#x}"
        return symbol or UNKNOWN

    def _source_line(self, frame: int) -> str:
        """Return the source line of a frame: `file.c:12`; if unknown, `dso[address]` (as get_srcline() in perf)."""
        frames = self._frames
        path = printable(self._strings[frames.file[frame]])
        if path:
            return f"{path if self._full_paths else basename(path)}:{int(frames.line[frame])}"
        return f"{basename(self._strings[frames.dso[frame]]) or UNKNOWN}[{int(frames.address[frame]):x}]"
