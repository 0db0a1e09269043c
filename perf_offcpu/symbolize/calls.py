# SPDX-License-Identifier: Apache-2.0
"""Name frames without a symbol by the calls that led to them.

Exported functions of a stripped library often end with a jump to a local one, which has no name there:

    program     call sem_clockwait@plt
    libc        sem_clockwait:  …  jmp local
                local:          …  syscall              stack: local, program

The frame of the local function returns to the program; the call instruction before that address names the function
called: `sem_clockwait`. A name that the dynamic linker looked up is used only if the file of the frame exports it: else
another file interposed its own function. A call within one file is used if a symbol begins at its target.

The part of CPython's interpreter function that GCC split off as rarely run code gets its name however it was called: in
Debian's 3.14 it is the loop itself (x86-64). In a stripped file it has no symbol, but call frame information like a
function of its own. Jumps of the interpreter into its middle identify it: jumps that end a function (tail calls) lead
to begins of functions."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi import elf
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.binary.columnar import gather
from perf_offcpu.binary.layout import S32
from perf_offcpu.cache import DiskCache, cache_name
from perf_offcpu.errors import FormatError
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I64, U64, Bool, Strings, distinct, group, is_among
from perf_offcpu.model.lookup import NO_MAP, find_mappings
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects.calls import calls_at, exported, is_signal_return
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.files import Refused, open_dso
from perf_offcpu.objects.functions import file_offset_to_vaddr, listed_symbols, symbols_of
from perf_offcpu.objects.perf_map import is_jit_memory
from perf_offcpu.objects.search import Search
from perf_offcpu.objects.symtab import NO_ADDRESS, Symbols
from perf_offcpu.symbolize.frames import Locations, SymbolNames
from perf_offcpu.unwind.cfi.entries import read_entries
from perf_offcpu.unwind.cfi.table import frame_sections

INTERPRETER: Final = "_PyEval_EvalFrameDefault"
_KIND: Final = "interpreter1"  # kind of cache file; the number changes whenever the result may
_NONE: Final = np.zeros(2, np.uint64)
_PROBLEMS: Final = (Refused, FormatError, OSError)  # the file's calls are unknown then; naming its functions counts it


class _Call(NamedTuple):
    """Identifies the function that a call instruction calls."""

    dso: int  # of the instruction
    name: bytes  # by which the dynamic linker looked the function up; b"" for a function of the same file
    target: int  # address of a function of the same file


class Named(NamedTuple):
    """Holds n locations, their names (a row each), and callchains of location rows, leaf first."""

    locations: Locations
    names: SymbolNames
    chains: Ragged


def name_by_calls(
    recording: Recording, named: Named, skip: Bool, strings: Strings, search: Search, lost: Losses
) -> Named:
    """Name locations without a symbol by the calls that led to them. `skip`: bool[locations], locations that stay as
    they are. `strings`: names are interned there. `lost`: locations that get a name in all callchains are not
    counted there any more. Return `named` with one more location for each (location, function that was called)."""
    locations, names, chains = named
    unnamed = (locations.cpumode == CpuMode.USER) & (names.symbol == 0) & ~skip
    values = chains.values.astype(np.int64)
    place = _places_with_callers(locations, unnamed, values, chains.offsets)
    used = np.flatnonzero(np.bincount(np.concatenate([values[place], values[place + 1]])))
    code = _Code(recording, locations, used, search)
    place = place[(code.dso[values[place]] >= 0) & (code.dso[values[place + 1]] >= 0)]
    inner, outer = values[place], values[place + 1]
    symbols = _symbols(code, inner, outer, strings)
    place, inner, symbols = (column[symbols != 0] for column in (place, inner, symbols))
    first, frame_of_place = group(inner, symbols)
    rows, is_called = inner[first], np.ones(len(first), np.bool_)
    called = names.take(rows).with_columns(symbol=symbols[first].astype(np.uint32), is_called=is_called)
    values[place] = len(locations) + frame_of_place
    is_used = np.zeros(len(locations) + len(rows), np.bool_)
    is_used[values] = True
    lost.take_back(losses.NO_SYMBOL, int((~is_used[distinct(rows)]).sum()))
    return Named(
        Locations.concat([locations, locations.take(rows)]),
        SymbolNames.concat([names, called]),
        Ragged(chains.offsets, values.astype(np.uint64)),
    )


def _places_with_callers(locations: Locations, unnamed: Bool, values: I64, offsets: I64) -> I64:
    """Return int64[m]: indices in `values` (location rows of all callchains, which begin at `offsets`) of locations in
    the mask `unnamed` that a return address follows."""
    is_return = (locations.cpumode == CpuMode.USER) & (locations.ip != locations.lookup)
    is_last = np.zeros(len(values) + 1, np.bool_)
    is_last[offsets - 1] = True
    place = np.flatnonzero(unnamed[values] & ~is_last[:-1])
    with_caller: I64 = place[(is_return & ~locations.is_cookie)[values[place + 1]]]
    return with_caller


def _symbols(code: "_Code", inner: I64, outer: I64, strings: Strings) -> I64:
    """Return int64[n]: string of the name of location inner[i] by the call before its caller outer[i]; 0 unknown."""
    symbols, calls = np.zeros(len(inner), np.int64), code.calls(np.flatnonzero(np.bincount(outer)))
    has_call = np.zeros(len(code.dso), np.bool_)
    has_call[list(calls)] = True
    rows = np.flatnonzero(has_call[outer])
    first, pair_of = group(inner[rows], outer[rows])
    names = code.names(inner[rows[first]], [calls[caller] for caller in outer[rows[first]].tolist()])
    symbols[rows] = strings.intern_all(names)[pair_of]
    symbols[code.is_interpreter(inner)] = strings.intern(INTERPRETER)
    return symbols


class _Code:
    """Reads the code of locations in the files that their mappings name. `rows`: rows of `locations`, ascending."""

    def __init__(self, recording: Recording, locations: Locations, rows: I64, search: Search) -> None:
        self.recording, self.search = recording, search
        self.dso, self.offset = np.full(len(locations), -1, np.int32), np.zeros(len(locations), np.uint64)
        maps, lookup = recording.maps, locations.lookup[rows]
        mapping = find_mappings(maps, recording.spaces, locations.space[rows], lookup)
        is_jit = np.array([is_jit_memory(recording.strings[path]) for path in recording.dsos.path.tolist()], np.bool_)
        in_file = np.flatnonzero(mapping != NO_MAP)
        in_file = in_file[~is_jit[maps.dso[mapping[in_file]]]]
        rows, lookup, mapping = rows[in_file], lookup[in_file], mapping[in_file]
        self.dso[rows] = maps.dso[mapping]
        self.offset[rows] = lookup - maps.start[mapping] + maps.pgoff[mapping]
        self.shift = locations.ip - locations.lookup

    def calls(self, callers: I64) -> dict[int, _Call]:
        """Return row of a return address in `callers` → function that the call before it calls, where known."""
        calls = dict[int, _Call]()
        for dso in distinct(self.dso[callers]).tolist():
            rows = callers[self.dso[callers] == dso]
            with ExitStack() as stack:
                try:
                    image = open_dso(self.recording, dso, self.search, stack)
                    names, targets = calls_at(image, self.offset[rows])
                except _PROBLEMS:
                    continue
            functions = [_Call(dso, *function) for function in zip(names, targets.tolist(), strict=True)]
            pairs = zip(rows.tolist(), functions, strict=True)
            calls |= {row: call for row, call in pairs if call.name or call.target != NO_ADDRESS}
        return calls

    def names(self, frames: I64, calls: Sequence[_Call]) -> list[str | bytes]:
        """Return the name of the function that calls[i] calls for each frame frames[i] (location row); "" where the
        frame may be in another function."""
        names: list[str | bytes] = [""] * len(frames)
        dso_of_frame = self.dso[frames]
        for dso in distinct(dso_of_frame).tolist():
            rows = np.flatnonzero(dso_of_frame == dso)
            used = [calls[row] for row in rows.tolist()]
            imports = {call.name for call in used if call.name}
            targets = {call.target for call in used if call.dso == dso and not call.name}
            if not imports and not targets:
                continue
            with ExitStack() as stack:
                try:
                    image = open_dso(self.recording, dso, self.search, stack)
                    exports = exported(image, imports)
                    symbols = _symbols_at(image, targets, self.search)
                    is_handler_end = is_signal_return(image, (self.offset + self.shift)[frames[rows]])
                except _PROBLEMS:
                    continue
            for row in rows[~is_handler_end].tolist():
                call = calls[row]
                if call.name in exports:
                    names[row] = call.name
                elif call.dso == dso and not call.name:
                    names[row] = symbols.get(call.target, "")
        return names

    def is_interpreter(self, frames: I64) -> Bool:
        """Return bool[n]: True for location rows in the split-off part of CPython's interpreter."""
        result, dso_of_frame = np.zeros(len(frames), np.bool_), self.dso[frames]
        for dso in distinct(dso_of_frame).tolist():
            if "python" in self.recording.strings[int(self.recording.dsos.path[dso])]:
                rows = np.flatnonzero(dso_of_frame == dso)
                with suppress(*_PROBLEMS), ExitStack() as stack:
                    image = open_dso(self.recording, dso, self.search, stack)
                    part, address = interpreter_part(image, self.search.cache), self.offset[frames[rows]]
                    result[rows] = np.searchsorted(part, file_offset_to_vaddr(image.loads, address), "right") == 1
        return result


def _symbols_at(image: ElfImage, addresses: set[int], search: Search) -> dict[int, str]:
    """Return address → name of the symbol that begins there; without `addresses` at which none begins."""
    if not addresses:
        return {}
    table, wanted = symbols_of(image, search).symbols, np.array(sorted(addresses), np.uint64)
    symbol_rows = zip(wanted.tolist(), table.lookup(wanted).tolist(), strict=True)
    return {address: table.name(row) for address, row in symbol_rows if row >= 0 and table.start[row] == address}


def interpreter_part(image: ElfImage, cache: DiskCache | None) -> U64:
    """Return uint64[2], first address and end of the part that compilers split off CPython's interpreter, or zeros.
    Raises OSError, FormatError: the file cannot be read, or is damaged."""
    name = cache_name(_KIND, image.build_id, image.source.identity)
    columns = cache.read(name) if cache else None
    if columns is not None and len(part := columns.get("part", _NONE).astype(np.uint64)) == 2:
        return part
    part = _find_part(image)
    if cache:
        cache.write(name, {"part": part})
    return part


def _find_part(image: ElfImage) -> U64:
    table = image.section_of_type(elf.SectionType.SYMTAB) or image.section_of_type(elf.SectionType.DYNSYM)
    fdes = [read_entries(section)[1] for section in frame_sections(image)]
    if image.machine != elf.Machine.X86_64 or table is None or not any(map(len, fdes[:1])):
        return _NONE
    symbols, strings = listed_symbols(image, table)
    function = symbols.take(symbols.name == strings.find(b"\0%s\0" % INTERPRETER.encode()) + 1)
    targets, starts, ends = _jump_targets(image, function), fdes[0].start, fdes[0].end
    row = np.searchsorted(starts, targets, side="right") - 1
    is_inside = (row >= 0) & (targets > starts[row]) & (targets < ends[row]) & ~is_among(starts[row], function.start)
    best = int(np.bincount(row[is_inside], minlength=1).argmax())
    # Bytes of other instructions may look like a jump, but hardly like three into one function.
    return np.array([starts[best], ends[best]]) if (row[is_inside] == best).sum() > 2 else _NONE


def _jump_targets(image: ElfImage, function: Symbols) -> U64:
    """Return uint64[n]: target addresses of jmp rel32 (e9) and jcc rel32 (0f 80 to 0f 8f) in a function."""
    for load in image.loads if len(function) else ():
        start, size = function.start[0], int(function.size[0])
        if load["p_vaddr"] <= start and start - load["p_vaddr"] < load["p_filesz"]:
            offset = int(start - load["p_vaddr"]) + int(load["p_offset"])
            code = np.frombuffer(image.source.read_exactly(INTERPRETER, offset, size), np.uint8)
            is_jump = (code[1:-4] == 0xE9) | ((code[:-5] == 0x0F) & (code[1:-4] & 0xF0 == 0x80))
            place = np.flatnonzero(is_jump) + 2
            return np.asarray(start + (place + 4 + gather(code, place, S32)).astype(np.uint64))
    return np.empty(0, np.uint64)
