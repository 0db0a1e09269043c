# SPDX-License-Identifier: Apache-2.0
"""Name kernel addresses: functions, modules, BPF programs.

KSYMBOL records of the recording come first: they name BPF programs and trampolines, which come and go. The
other names come from kallsyms or vmlinux of the recorded kernel, identified by its build-id (see `files`).
KASLR may have moved it since; the recorded address of the reference symbol tells the distance. Modules that a
kallsyms does not list, or of another boot, are named by their files.

A module is an unlinked object: its sections get their addresses when it is loaded. The kernel lays out
executable sections one after the other, in file order and with their alignment, those for initialization
separately (layout_sections and __layout_sections in kernel/module/main.c of Linux 6.16). The recorded map
begins with the first, so an offset in the map is an offset in this sequence. Files may be compressed."""

import os
from contextlib import suppress
from typing import Final

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi import elf
from perf_offcpu.abi.elf import SegmentFlag
from perf_offcpu.build_ids import kernel_build_id
from perf_offcpu.errors import FormatError
from perf_offcpu.files import read_regular
from perf_offcpu.losses import Losses
from perf_offcpu.model.columns import I32, I64, U64, Strings, distinct
from perf_offcpu.model.lookup import KERNEL_DSO, KERNEL_SPACE, kernel_map
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects.elf.headers import Source, uncompress
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.files import is_running_kernel, refusal
from perf_offcpu.objects.functions import ElfFile, listed_symbols
from perf_offcpu.objects.symtab import NO_ADDRESS, SymbolTable
from perf_offcpu.symbolize.frames import SymbolNames, symbols_and_offsets
from perf_offcpu.symbolize.kernel.files import find_kallsyms, find_vmlinux, given_kallsyms, given_vmlinux
from perf_offcpu.symbolize.kernel.kallsyms import Kallsyms, load_kallsyms
from perf_offcpu.symbolize.lines.names import LineNames
from perf_offcpu.symbolize.options import SymbolizeOptions

_PREFIX = "__pfx_"


class KernelNames:
    """Names addresses of the recorded kernel. `strings`: names are interned there. `lost`: addresses without a name are
    counted there. `lines`: adds source lines; None: no source lines. `build_id`: of the recorded kernel; b"" unknown.
    `kallsyms_path`: file that is used; "" none. Raises UsageError: a file that the user gave is unusable."""

    def __init__(
        self, recording: Recording, strings: Strings, options: SymbolizeOptions, lost: Losses, lines: LineNames | None
    ) -> None:
        self.recording, self.strings, self.lost = recording, strings, lost
        self.options, self.search, self.lines = options, options.search(), lines
        self._problem = losses.NO_KERNEL_SYMBOL
        self._symbol, self._recorded_at, map_build_id = kernel_map(recording)
        self.build_id = bytes.fromhex(recording.meta.kernel_build_id or map_build_id)
        self._kallsyms: Kallsyms | None = None
        self.kallsyms_path = ""
        self._vmlinux: ElfFile | None = None
        self._load()

    def name(self, addresses: U64) -> SymbolNames:
        """Return the names of n recorded addresses; those without a name are counted in `lost`."""
        names = SymbolNames.filled(len(addresses), address=addresses)
        names.dso[:] = self.strings.intern(KERNEL_DSO)
        if self._kallsyms is not None:
            self._by_kallsyms(self._kallsyms, addresses, names)
        elif self._vmlinux is not None:
            self._by_vmlinux(self._vmlinux, addresses, names)
        self._by_modules(addresses, names)
        self._by_recording(addresses, names)
        self._add_lines(addresses, names)
        self.lost.add(self._problem, int((names.symbol == 0).sum()))
        return names

    def _load(self) -> None:
        options, meta = self.options, self.recording.meta
        if options.kallsyms is not None and not options.other_kernel:
            self._kallsyms, self.kallsyms_path = given_kallsyms(options.kallsyms), options.kallsyms
            if self._kallsyms.hidden:
                self._kallsyms, self._problem = None, losses.KALLSYMS_HIDDEN
            return
        if options.vmlinux is not None and not options.other_kernel:
            self._vmlinux = given_vmlinux(options.vmlinux, self.build_id, self.search)
            return
        is_running = kernel_build_id() == self.build_id if self.build_id else is_running_kernel(meta)
        self._kallsyms, self.kallsyms_path, hidden = find_kallsyms(
            self.build_id, self.search, is_running=is_running, in_symfs=not options.other_kernel
        )
        if self._kallsyms is None:
            self._vmlinux = find_vmlinux(self.build_id, meta.os_release, self.search)
            if self._vmlinux is None:
                self._problem = losses.KALLSYMS_HIDDEN if hidden else losses.OTHER_KERNEL

    def _by_kallsyms(self, kallsyms: Kallsyms, addresses: U64, names: SymbolNames) -> None:
        delta = kallsyms.delta(self._symbol, self._recorded_at) or 0
        moved, rows = addresses + np.uint64(delta % 2**64), kallsyms.lookup(addresses, delta)
        if kallsyms.is_partial and not delta and (self._recorded_rows(addresses[rows < 0]) < 0).any():
            kallsyms = load_kallsyms(self.kallsyms_path)
            rows = kallsyms.lookup(addresses)
        rows = _past_prefixes(kallsyms.symbols, rows, moved)
        names.symbol, names.offset = symbols_and_offsets(kallsyms.symbols, rows, moved, self.strings)
        for row in distinct(rows[rows >= 0]).tolist():
            if module := kallsyms.module_name(row):
                names.dso[rows == row] = self.strings.intern(module)

    def _by_vmlinux(self, vmlinux: ElfFile, addresses: U64, names: SymbolNames) -> None:
        moved = self._as_linked(vmlinux, addresses)
        rows = _past_prefixes(vmlinux.symbols, vmlinux.symbols.lookup(moved), moved)
        names.symbol, names.offset = symbols_and_offsets(vmlinux.symbols, rows, moved, self.strings)

    def _as_linked(self, vmlinux: ElfFile, addresses: U64) -> U64:
        """Convert recorded addresses (uint64[n]) to addresses in a vmlinux, whose first code is `_text`."""
        code = vmlinux.loads[(vmlinux.loads["p_flags"] & np.uint64(SegmentFlag.X)) != 0]
        has_delta = len(code) > 0 and self._recorded_at != 0
        delta = int(code["p_vaddr"][0]) - self._recorded_at if has_delta else 0
        return addresses + np.uint64(delta % 2**64)

    def _by_modules(self, addresses: U64, names: SymbolNames) -> None:
        """Fill in the names of addresses that have none yet and lie in maps of modules, from the modules' files."""
        maps, dsos = self.recording.maps, self.recording.dsos
        unnamed = np.flatnonzero(names.symbol == 0)
        for row in np.flatnonzero(maps.space == KERNEL_SPACE).tolist():
            inside = (addresses[unnamed] >= maps.start[row]) & (addresses[unnamed] < maps.end[row])
            path = self.strings[int(dsos.path[maps.dso[row]])]
            if not inside.any() or path.startswith(KERNEL_DSO):
                continue
            rows = unnamed[inside]
            names.dso[rows] = self.strings.intern(shown_name(path))
            if refusal(path, self.search.symfs):
                continue
            build_id = bytes.fromhex(self.strings[int(dsos.build_id[maps.dso[row]])])
            with suppress(OSError, FormatError):
                table, offsets = (load_module(self.search.symfs + path, build_id), addresses[rows] - maps.start[row])
                named = symbols_and_offsets(table, table.lookup(offsets), offsets, self.strings)
                names.symbol[rows], names.offset[rows] = named

    def _by_recording(self, addresses: U64, names: SymbolNames) -> None:
        symbols, rows = self.recording.kernel_symbols, self._recorded_rows(addresses)
        hit, row = rows >= 0, rows[rows >= 0]
        names.symbol[hit] = names.dso[hit] = symbols.name[row]
        names.offset[hit] = addresses[hit] - symbols.start[row]

    def _recorded_rows(self, addresses: U64) -> I64:
        """Return int64[n]: the row in the recording's kernel_symbols that covers each address; -1 for none."""
        symbols = self.recording.kernel_symbols
        row = np.searchsorted(symbols.start, addresses, side="right") - 1
        return np.where((row >= 0) & (addresses < np.append(symbols.end, np.uint64(0))[row]), row, -1)

    def _add_lines(self, addresses: U64, names: SymbolNames) -> None:
        """Add source lines to the `names` of kernel addresses, from a vmlinux of the kernel's build-id, if found."""
        rows: I64 = np.flatnonzero(names.dso == self.strings.intern(KERNEL_DSO))
        if self.lines is None or not len(rows):
            return
        vmlinux = self._vmlinux or find_vmlinux(self.build_id, self.recording.meta.os_release, self.search)
        if vmlinux is not None:
            self.lines.add(vmlinux, self._as_linked(vmlinux, addresses[rows]), rows, names, KERNEL_DSO)


def _past_prefixes(symbols: SymbolTable, rows: I32, addresses: U64) -> I32:
    """Return rows of `symbols`, where padding is replaced by the function after it. An address of a callchain is looked
    up a byte too low, because it usually is a return address. But where an interrupt or a fault hit the first
    instruction of a function, the byte before is its `__pfx_` padding (CONFIG_PREFIX_SYMBOLS, since 6.2)."""
    hit, inverse = np.unique(rows, return_inverse=True)
    is_prefix = np.array([row >= 0 and symbols.name(row).startswith(_PREFIX) for row in hit.tolist()], bool)
    at_end = np.append(symbols.start, np.uint64(0))[rows + 1] == addresses + np.uint64(1)
    return np.where(is_prefix[inverse] & at_end, rows + 1, rows).astype(np.int32)


MAX_BYTES: Final = 1 << 28
_COMPRESSION: Final = {".xz": "xz", ".gz": "gzip", ".zst": "zstd"}
_CODE: Final = int(elf.SectionFlag.ALLOC | elf.SectionFlag.EXECINSTR)


def load_module(path: str, build_id: bytes) -> SymbolTable:
    """Read the functions of a kernel module (.ko, also .xz, .gz or .zst), at offsets from its load address. Raises
    OSError: it cannot be read; FormatError: it is damaged, no module, or of another build-id."""
    image = ElfImage(Source(path, _read(path)))
    if image.type != elf.ElfType.REL:
        raise FormatError(path, "kernel module", f"type {image.type} is not an unlinked object")
    if build_id and image.build_id != build_id:
        raise FormatError(path, "kernel module", f"build-id {image.build_id.hex()}, not {build_id.hex()}")
    table = image.section_of_type(elf.SectionType.SYMTAB)
    if table is None:
        raise FormatError(path, "kernel module", "it has no symbols")
    return SymbolTable(*listed_symbols(image, table, section_starts(image)))


def shown_name(path: str) -> str:
    """Return the name of a module in perf and kallsyms: `[nf_nat]` for …/nf-nat.ko.xz."""
    if path.startswith("["):
        return path
    return f"[{os.path.basename(path).partition('.')[0].replace('-', '_')}]"


def section_starts(image: ElfImage) -> U64:
    """Return uint64[sections of a module]: offset in its loaded code; NO_ADDRESS for data and initialization code."""
    sections, offset = image.sections, 0
    align = np.maximum(sections["sh_addralign"], np.uint64(1))
    starts = np.full(len(sections), NO_ADDRESS)
    for index in np.flatnonzero((sections["sh_flags"] & np.uint64(_CODE)) == np.uint64(_CODE)).tolist():
        if not image.section_names[index].startswith(b".init"):
            offset += -offset % min(int(align[index]), 1 << 21)
            starts[index] = offset
            offset += min(int(sections["sh_size"][index]), MAX_BYTES)
    return starts


def _read(path: str) -> bytes:
    data, kind = read_regular(path, MAX_BYTES), _COMPRESSION.get(os.path.splitext(path)[1])
    try:
        return uncompress(kind, data, MAX_BYTES) if kind else data
    except ValueError as problem:
        raise FormatError(path, "compressed kernel module", str(problem)) from None
