# SPDX-License-Identifier: Apache-2.0
"""Stacks as `perf script` prints them: a line a frame, leaf first.

            7fca03d37efe clock_nanosleep+0x6e (/usr/lib/x86_64-linux-gnu/libc.so.6)
            55a162d0c32c leaf_nanosleep+0xe (/root/blocker)

Each frame is made text once and each stack is put together once, however many samples have it, within a
bounded memory.
"""

from __future__ import annotations

from perf_offcpu.abi.records import CpuMode
from perf_offcpu.model.profile import Profile
from perf_offcpu.script.fields import FieldChoice
from perf_offcpu.text import UNKNOWN, basename, printable

_CACHED_TEXT = 64 << 20
"""Characters of stacks that are kept: beyond that, all are forgotten and made again when needed."""


class FrameTexts:
    """The text of the frames and stacks of one profile.

    Args:
        profile: symbolized with `keep_ips`.
        fields: which of ip, sym, symoff, dso and srcline to show.
        full_paths: source files with their directories.
    """

    def __init__(self, profile: Profile, fields: FieldChoice, *, full_paths: bool = False) -> None:
        self.fields, self.strings, self._full_paths = fields, profile.strings, full_paths
        self._parent = profile.stacks.parent.tolist()
        self._frame = profile.stacks.frame.tolist()
        self._frames = profile.frames
        self._lines: dict[int, str] = {}
        self._stacks: dict[int, str] = {}
        self._cached = 0

    def leaf(self, stack: int) -> str:
        """The innermost frame alone; "" for -1."""
        return self._line(self._frame[stack]) if stack >= 0 else ""

    def leaf_ip(self, stack: int) -> int:
        """The address of the innermost frame."""
        return int(self._frames.ip[self._frame[stack]])

    def parent(self, stack: int) -> int:
        """The stack without its innermost frame; -1 if nothing is left."""
        return int(self._parent[stack])

    def is_cookie(self, stack: int) -> bool:
        """Whether the innermost frame is no code, but names a user callchain that comes later."""
        return stack >= 0 and self._frames.cpumode[self._frame[stack]] == CpuMode.UNKNOWN

    def lines(self, stack: int) -> str:
        """All frames, leaf first, a line each with its newline; "" for -1."""
        text = self._stacks.get(stack)
        if text is None:
            text = self._stacks[stack] = self._joined(stack)
            self._cached += len(text)
            if self._cached > _CACHED_TEXT:
                self._stacks.clear()
                self._cached = 0
        return text

    def _joined(self, stack: int) -> str:
        lines = []
        while stack >= 0:
            lines.append(f"\t{self._line(self._frame[stack])}\n")
            stack = self._parent[stack]
        return "".join(lines)

    def _line(self, frame: int) -> str:
        line = self._lines.get(frame)
        if line is None:
            line = self._lines[frame] = self._new_line(frame)
        return line

    def _new_line(self, frame: int) -> str:
        """One frame, as sample__fprintf_sym() of tools/perf/util/evsel_fprintf.c has it."""
        frames, shown = self._frames, self.fields.shown
        parts = []
        if "ip" in shown:
            parts.append(f"{int(frames.ip[frame]):16x}")
        if "sym" in shown:
            parts.append(self.symbol(frame, "symoff" in shown))
        inlined = frames.inline_depth[frame] > 0
        if "dso" in shown and not inlined:
            parts.append(f"({self.dso(frame)})")
        if "srcline" in shown:
            parts.append(f"\n  {self._source_line(frame)}")
        if inlined:
            parts.append("(inlined)")
        return " ".join(parts).replace(" \n", "\n")

    def _source_line(self, frame: int) -> str:
        """`file.c:12`; without a known one `dso[address]`, as get_srcline() of tools/perf/util/srcline.c."""
        frames = self._frames
        path = printable(self.strings[frames.file[frame]])
        if path:
            return f"{path if self._full_paths else basename(path)}:{int(frames.line[frame])}"
        return f"{basename(self.strings[frames.dso[frame]]) or UNKNOWN}[{int(frames.address[frame]):x}]"

    def dso(self, frame: int) -> str:
        """The object that holds a frame's code."""
        return printable(self.strings[self._frames.dso[frame]]) or UNKNOWN

    def symbol(self, frame: int, offset: bool) -> str:
        """The function of a frame, with or without the offset in it."""
        frames = self._frames
        symbol = printable(self.strings[frames.symbol[frame]])
        is_code = frames.cpumode[frame] != CpuMode.UNKNOWN
        if symbol and is_code and offset:
            return f"{symbol}+{int(frames.offset[frame]):#x}"
        return symbol or UNKNOWN
