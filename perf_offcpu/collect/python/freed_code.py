# SPDX-License-Identifier: Apache-2.0
"""Count the code objects that processes free: as long as one frees none, an address of which the BPF program has proven
which function it means means it still. CPython frees them through `PyCode_Type.tp_dealloc`, where a uprobe counts. A
process without uprobe has the proof at each sample. A trap takes 1 to 3 us: only processes with samples that have lived
for a second get a uprobe, and lose it if they free more than _MOST_A_SECOND, or _MOST_AT_ONCE."""

import ctypes
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import numpy as np

from perf_offcpu.abi.elf import EHDR, ElfClass, ElfType, Machine, SegmentFlag, SegmentType
from perf_offcpu.build_ids import program_headers, unpack_elf_header
from perf_offcpu.collect.bpf.maps import ProgramMaps
from perf_offcpu.collect.events.perf_event import open_uprobe
from perf_offcpu.collect.existing.maps import parse_maps, read_maps
from perf_offcpu.collect.python.offsets import PYTHON, sections_of
from perf_offcpu.collect.system.background import in_background
from perf_offcpu.collect.system.helper import Avoided, Helper, ask_each
from perf_offcpu.errors import LayoutError
from perf_offcpu.files import open_regular

_MOST_UPROBES, _MOST_A_SECOND, _MOST_AT_ONCE = 16, 1000, 5000
_PERIOD_S, _LEAST_AGE_S, _MOST_LOOKED_AT = 0.25, 1.0, 16
_FREED_BITS: Final = 40  # as in bpf/off_cpu.h
_SYMBOL: Final = np.dtype("<u4,u1,u1,<u2,<u8,<u8")  # Elf64_Sym: name, ..., value, size
_TP_DEALLOC: Final = 48  # in PyTypeObject
_MOST_BYTES: Final = 128 << 20
_LOCAL: Final = (0xEF53, 0x58465342, 0x9123683E, 0x794C7630, 0x01021994)  # ext4, XFS, Btrfs, overlay, tmpfs: magic.h
_libc = ctypes.CDLL(None)


class FreedCode:
    """Pass on what `maps` are told of processes, and have a BPF program count there what they free."""

    def __init__(self, maps: ProgramMaps, program_fd: int) -> None:
        self._maps, self._program_fd = maps, program_fd
        self._helper, self._avoided = Helper(_open_interpreter), Avoided()
        self._waiting: dict[int, tuple[float, Mapping[str, int]]] = {}
        # pid → uprobe, number freed a period ago, number that may be freed in the next, values
        self._counted: dict[int, tuple[int, int, float, Mapping[str, int]]] = {}
        self._tended_s, self._base = 0.0, 0

    def close(self) -> None:
        """Detach all uprobes, side by side: each takes 0.1 s."""
        self._helper.close()
        for closing in [in_background(lambda: os.close(self._counted.popitem()[1][0])) for _ in self._counted]:
            closing.wait()

    def set_python(self, pid: int, values: Mapping[str, int], *, forked: bool = False) -> None:
        """Tell the maps, which know no count then; a forked process stands there, until it calls execve(2)."""
        if not forked:
            self._maps.set_python(pid, values)
        self._detach(pid)
        self._waiting[pid] = time.monotonic() + _LEAST_AGE_S, values

    def forget_python(self, pid: int) -> None:
        """Undo `set_python`."""
        self._maps.forget_python(pid)
        self._detach(pid)

    def _detach(self, pid: int) -> None:
        self._waiting.pop(pid, None)
        if uprobe := self._counted.pop(pid, None):
            in_background(lambda: os.close(uprobe[0]))

    def tend(self, step: Callable[[], object]) -> None:
        """Detach from processes that free much, attach to one that waits for it. `step`: as in `Helper.each`."""
        passed_s = time.monotonic() - self._tended_s
        if passed_s < _PERIOD_S:
            return
        self._tended_s += passed_s
        for pid, (fd, before, left, values) in [*self._counted.items()]:
            row = self._maps.python(pid)
            allowed = min(left + _MOST_A_SECOND * passed_s, _MOST_AT_ONCE) - (row["freed"] - before)
            if allowed < 0:
                self._maps.set_python(pid, {**values, "mm": row["mm"]})
                self._detach(pid)
            else:
                self._counted[pid] = fd, row["freed"], allowed, values
        for pid in [*islice(self._waiting, _MOST_LOOKED_AT if len(self._counted) < _MOST_UPROBES else 0)]:
            due_s, values = self._waiting.pop(pid)
            if due_s <= self._tended_s and (mm := self._maps.python(pid)["mm"]):
                self._attach(pid, {**values, "mm": mm}, step)
                return
            self._waiting[pid] = due_s, values  # the last in turn

    def _attach(self, pid: int, values: Mapping[str, int], step: Callable[[], object]) -> None:
        for _, answer in ask_each(self._helper, [(pid,)], self._avoided, step):
            if answer.value:
                path, place = answer.value
                with suppress(OSError, ValueError):  # the process has ended, or the kernel has no uprobes
                    fd = open_uprobe(path, place, pid, self._program_fd)
                    self._base += 1 << _FREED_BITS
                    self._counted[pid] = fd, self._base, _MOST_AT_ONCE, values
                    self._maps.set_python(pid, {**values, "freed": self._base})


_opened: list[int] = []  # files of the helper, which the kernel finds through /proc


def _open_interpreter(item: tuple[int]) -> tuple[str, int] | None:
    """Return (path, offset) of code_dealloc() in a process, for the recorder; None: it is to have no uprobe."""
    places, status = [], (ctypes.c_long * 32)()  # struct statfs: f_type, ...
    while _opened:
        os.close(_opened.pop())
    for mapping in parse_maps(read_maps(item[0])):
        if b"x" in mapping.permissions and PYTHON.search(mapping.name):
            fd = open_regular(f"/proc/{item[0]}/map_files/{mapping.start:x}-{mapping.end:x}", max_bytes=_MOST_BYTES)
            _opened.append(fd)
            _libc.fstatfs(fd, status)
            with suppress(LookupError, ValueError, LayoutError):  # no interpreter
                if status[0] in _LOCAL and (place := find_dealloc(fd)):  # the kernel waits for no server
                    places.append((f"/proc/{os.getpid()}/fd/{fd}", place))
    return places[0] if len(places) == 1 else None


def find_dealloc(fd: int) -> int:
    """Return the offset of code_dealloc() in an interpreter for x86-64; 0: there may be a copy, or it is for another
    machine. A compiler that expects a call of tp_dealloc to go there compares with its address, and copies it.
    Raises LookupError, ValueError, LayoutError: this is no interpreter."""
    header, order = unpack_elf_header(os.pread(fd, EHDR[ElfClass.BITS64].size(), 0))
    if order != "<" or header["e_machine"] != Machine.X86_64:
        return 0
    wanted = (b".dynsym", b".dynstr", b".rela.dyn")
    places = sections_of(fd, header, wanted)
    symbols, names, relocations = (os.pread(fd, size, offset) for _, offset, size in map(places.__getitem__, wanted))
    rows, moves = np.frombuffer(symbols, _SYMBOL), np.frombuffer(relocations, "<u8").reshape(-1, 3)
    slot = int(rows["f4"][rows["f0"] == names.index(b"\0PyCode_Type\0") + 1][0]) + _TP_DEALLOC
    loads = [segment for segment in program_headers(fd, header, "<") if segment["p_type"] == SegmentType.LOAD]
    code = [segment for segment in loads if segment["p_flags"] & SegmentFlag.X]
    address = int(moves[moves[:, 0] == slot, 2].sum())  # the addend of a relocation, or in place
    address = address or int.from_bytes(os.pread(fd, 8, _place_in(loads, slot)), "little")
    texts = [(os.pread(fd, segment["p_filesz"], segment["p_offset"]), segment["p_vaddr"]) for segment in code]
    is_fixed = header["e_type"] == ElfType.EXEC
    return 0 if any(_names(*text, address, is_fixed) for text in texts) else _place_in(code, address)


def _place_in(segments: list[dict[str, Any]], address: int) -> int:
    inside = (s for s in segments if s["p_vaddr"] <= address < s["p_vaddr"] + s["p_filesz"])
    return next((s["p_offset"] + address - s["p_vaddr"] for s in inside), 0)


def _names(code: bytes, start: int, address: int, is_fixed: bool) -> bool:
    """Return whether code makes an address: by LEA relative to its own, or, where that is fixed, as a constant."""
    for shift in range(4):
        words = np.frombuffer(code, "<i4", (len(code) - shift) // 4, shift)
        rows = np.flatnonzero(words == address - (start + shift + 4) - 4 * np.arange(len(words)))
        is_lea = (code[place - 2] == 0x8D and code[place - 1] & 0xC7 == 5 for place in (rows * 4 + shift).tolist())
        if any(is_lea) or (is_fixed and (words == address).any()):
            return True
    return False
