# SPDX-License-Identifier: Apache-2.0
"""Look up frame rules for code addresses of a recording: mapping, file, table, rule set.

The rule sets of all files are in one table, so that frames of different files are handled together. The rule set of
an address is remembered, because stacks contain the same few thousand addresses over and over.

With `-X perf` CPython gives every Python function an address by calling it through a copy of a few instructions of
its own. On x86-64 (Python/asm_trampoline.S of 3.12 and 3.13), with or without the first:

    endbr64; sub $8, %rsp; call *%rcx; add $8, %rsp; ret

The perf map of the process tells which addresses are such copies: names that begin with `py::`, and this size. Copies
of other sizes, of Pythons that keep a frame pointer there, are unwound by the frame pointer.

HotSpot's compilers use the frame pointer as any register. The map that the recorder got of the JVM tells the size of
each frame. The interpreter keeps a frame pointer; the word below the saved one is the caller's stack pointer
(`interpreter_frame_sender_sp_offset` in frame_x86.hpp), which a compiled caller needs."""

from collections.abc import Callable
from typing import Final, NamedTuple, Self

import numpy as np

from perf_offcpu.abi.machine import Registers
from perf_offcpu.cache import DiskCache
from perf_offcpu.losses import LossCause
from perf_offcpu.model.columns import I32, I64, U64, Bool, distinct, group
from perf_offcpu.model.lookup import NO_MAP, find_mappings
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects.perf_map import PerfMaps
from perf_offcpu.unwind.cfi.program import Kind
from perf_offcpu.unwind.cfi.table import CfiTable, renumbered
from perf_offcpu.unwind.frame_search import CallReader, FrameSearch

OUTSIDE: Final = 0  # rule set of addresses that no mapping covers
NO_CFI: Final = 1  # rule set of code without call frame information
_TRAMPOLINE: Final = 2  # rule set of x86-64's trampoline at its call
_FRAME: Final = 16  # bytes of its frame
INTERPRETER: Final = 3  # rule set of HotSpot's interpreter on x86-64
_UNKNOWN_CODE: Final = 4  # rule set of code that HotSpot's map lacks, and of begins: frame pointers lead astray
_SAVED_FP, _RETURN, _SENDER_SP = b"\x76\x00", b"\x76\x08", b"\x76\x78\x06"  # DW_OP_breg6 0, 8, -8 and DW_OP_deref
_MOST_KEPT: Final = 1 << 17  # addresses, rule sets and expressions that are kept for further recordings
_NO_SETS: Final = np.array([2**64 - 1], np.uint64), np.array([NO_CFI], np.int32)  # of NO_ADDRESS
_SLOTS: Final = 1 << 18
_SLOT_SHIFT: Final = np.uint64(64 - 18)
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_SPACE_SHIFT: Final = np.uint64(48)
_ENTRY_ROWS: Final = 64
_WIDE_ADDRESS: Final = 1 << 48  # user addresses of 48 bits and address spaces of 16 bits make one key
_WIDE_SPACE: Final = (1 << 16) - 1
_KERNEL: Final = np.uint64(1 << 63)  # the first address of the kernel
_NO_KEY: Final = np.uint64(2**64 - 1)


class FileTable(NamedTuple):
    """Holds the frame rules of one dso."""

    table: CfiTable | None  # None where it was not asked for
    to_vaddr: Callable[[U64], U64]  # converts file offsets (uint64[n]) to the addresses of the table
    name: str  # equal for equal files that the table is made from


class Rules:
    """Hold the rule sets of all code that was looked up: `words`, int64[sets, registers + 2] as `CfiTable.rules`, and
    the rule set of each address in each file (`FileTable.name`). Added rule sets are in `words` after `join`: one step
    of a walk may add those of a hundred files. A process that unwinds many recordings shares one object (`kept`)."""

    def __init__(self, registers: Registers) -> None:
        self.registers = registers
        self.expressions = [_SAVED_FP, _RETURN, _SENDER_SP]
        self.words = np.zeros((_UNKNOWN_CODE + 1, registers.count + 2), np.int64)
        self.words[:_TRAMPOLINE, registers.count] = Kind.INVALID
        self.words[_TRAMPOLINE, registers.count] = Kind.REGISTER | registers.sp << 3 | _FRAME << 11
        self.words[_TRAMPOLINE, registers.ra] = Kind.OFFSET | -8 << 3
        self.words[INTERPRETER, registers.fp] = Kind.EXPRESSION | 0 << 3
        self.words[INTERPRETER, registers.ra] = Kind.EXPRESSION | 1 << 3
        self.words[INTERPRETER, registers.count] = Kind.VAL_EXPRESSION | 2 << 3
        self.words[_UNKNOWN_CODE, registers.count] = Kind.INVALID
        self._of_frame = dict[int, int]()
        self._added, self._count = list[I64](), len(self.words)
        self._sets: dict[str, tuple[U64, I32]] = {}
        self._addresses = 0
        self._derive()

    @classmethod
    def kept(cls, registers: Registers, cache: DiskCache | None) -> Self:
        """Return the Rules in memory of `cache`, emptied if they have over _MOST_KEPT entries; new without a cache."""
        if cache is None:
            return cls(registers)
        rules: Self = cache.in_memory(f"rules {registers.count}", lambda: cls(registers))
        if max(rules._addresses, len(rules.words), len(rules.expressions)) > _MOST_KEPT:
            rules.__init__(registers)  # type: ignore[misc]
        return rules

    def sets_at(self, name: str, addresses: U64) -> I32:
        """Return int32[n]: row in `words` of the rule set at each address of file `name`; -1 if none is noted."""
        starts, rows = self._sets.get(name, _NO_SETS)
        slot = np.searchsorted(starts, addresses)
        return np.where(starts[slot] == addresses, rows[slot], np.int32(-1))

    def note_sets(self, name: str, addresses: U64, rows: I32) -> None:
        """Note for `sets_at` the rule sets (int32[n], rows of `words`) at n new addresses of file `name`."""
        starts, before = self._sets.get(name, _NO_SETS)
        both = np.concatenate([starts, addresses])
        order = np.argsort(both)
        self._addresses += len(addresses)
        self._sets[name] = both[order], np.concatenate([before, rows])[order]

    def add(self, rules: I64) -> int:
        """Add rule sets (int64[n, registers + 2]), which `join` appends; return the row that the first has then."""
        base = self._count
        self._added.append(rules)
        self._count += len(rules)
        return base

    def of_frame(self, size: int) -> int:
        """Return the row, in `words` after `join`, of the rule set of HotSpot's frames of `size` bytes; add it once."""
        if size not in self._of_frame:
            rules = np.zeros((1, self.registers.count + 2), np.int64)
            rules[0, self.registers.count] = Kind.REGISTER | self.registers.sp << 3 | size << 11
            rules[0, [self.registers.ra, self.registers.fp]] = Kind.OFFSET | -8 << 3, Kind.OFFSET | -16 << 3
            self._of_frame[size] = self.add(rules)
        return self._of_frame[size]

    def add_expressions(self, expressions: list[bytes]) -> int:
        """Append the expressions of a table to `self.expressions`; return the index of the first there."""
        self.expressions += expressions
        return len(self.expressions) - len(expressions)

    def join(self) -> None:
        """Append the added rule sets to `words`, and compute the columns that `step` uses."""
        if self._added:
            self.words = np.concatenate([self.words, *self._added])
            self._added = []
            self._derive()

    def _derive(self) -> None:
        """Compute from `words` the columns that the fast path of `step` uses, a value for each rule set."""
        registers, words = self.registers, self.words
        cfa, ra = words[:, registers.count], words[:, registers.ra]
        self.cfa_offset = (cfa >> 11).astype(np.uint64)
        self.from_fp = (cfa >> 3 & 0xFF) == registers.fp
        self.ra_offset = (ra >> 3).astype(np.uint64)
        self.is_signal = words[:, -1] != 0
        simple = (cfa & 7 == Kind.REGISTER) & (self.from_fp | ((cfa >> 3 & 0xFF) == registers.sp))
        simple &= (ra & 7 == Kind.OFFSET) & (words[:, registers.sp] & 7 == Kind.SAME) & ~self.is_signal
        self.is_root = ra & 7 == Kind.UNDEFINED
        saved = np.array(registers.saved)
        kinds = words[:, saved] & 7
        self.is_simple = simple & ((kinds == Kind.SAME) | (kinds == Kind.OFFSET)).all(axis=1)
        offsets = self.ra_offset[self.is_simple]
        are_equal = len(offsets) > 0 and bool((offsets == offsets[0]).all())
        self.common_ra_offset: np.uint64 | None = offsets[0] if are_equal else None
        self.is_saved = np.ascontiguousarray((kinds == Kind.OFFSET).T)
        self.saved_offset = np.ascontiguousarray((words[:, saved] >> 3).astype(np.uint64).T)


_CALL_IN: Final = {11: range(4, 6), 15: range(8, 10)}
"""Size in bytes of a trampoline → offsets in it at which a return address less 1 lies: the bytes of its call."""


class Trampolines:
    """Find frames in CPython's trampolines and HotSpot's code by perf maps, in a recording of x86-64."""

    def __init__(self, recording: Recording, maps: PerfMaps) -> None:
        self.recording, self.maps = recording, maps

    def are_methods(self, spaces: I32, addresses: U64) -> Bool:
        """Return bool[n]: True if a Method object of HotSpot is at addresses[i] of address space spaces[i]."""
        result = np.zeros(len(addresses), np.bool_)
        for space in distinct(spaces).tolist():
            table, places = self.maps.methods_of(space), np.flatnonzero(spaces == space)
            row = table.lookup(addresses[places])
            start = np.append(table.start, np.uint64(0))[row]
            result[places] = (row >= 0) & (start == addresses[places]) & (start < _KERNEL)
        return result

    def rules_of(self, spaces: I32, addresses: U64, rules: Rules) -> I32:
        """Return int32[n]: row in `rules` of the rule set of addresses[i] in address space spaces[i]; NO_CFI for code
        of whose frames the perf map tells nothing."""
        result = np.full(len(addresses), NO_CFI, np.int32)
        for space in distinct(spaces[self.recording.spaces.pid[spaces] > 0]).tolist():
            table, places = self.maps.of(space), np.flatnonzero(spaces == space)
            if isinstance(table, LossCause):
                continue
            row, frames = table.lookup(addresses[places]), self.maps.frames_of(space)
            if frames:
                result[places[row < 0]] = _UNKNOWN_CODE
            places, row = places[row >= 0], row[row >= 0]
            sizes, offsets = table.end[row] - table.start[row], addresses[places] - table.start[row]
            for size, call in _CALL_IN.items():
                hits = np.flatnonzero((sizes == size) & (offsets >= call.start) & (offsets < call.stop))
                is_call = [table.name(number).startswith("py::") for number in row[hits].tolist()]
                result[places[hits[is_call]]] = _TRAMPOLINE
            if frames or len(self.maps.methods_of(space)):
                for place, number, offset in zip(places.tolist(), row.tolist(), offsets.tolist(), strict=True):
                    size, begin = frames.get(int(table.start[number]), (0, 0))
                    if size:
                        result[place] = rules.of_frame(size) if offset >= begin else _UNKNOWN_CODE
                    elif table.name(number) == "Interpreter":
                        result[place] = INTERPRETER
        return result


def _code_mask(recording: Recording, registers: Registers) -> np.uint64:
    """Return a mask of the bits of a return address that are no signature. The kernel signs all bits above those that
    user addresses may have: 39, 47, 48 or 52, by kernel and machine. Libraries are mapped at the end of this range, so
    the highest code of the recording tells; beyond `code_bits` nothing is mapped unless a program asks for it."""
    ends = recording.maps.end[recording.maps.end < _KERNEL]
    bits = min(registers.code_bits, (int(ends.max(initial=1)) - 1).bit_length())
    return np.uint64((1 << (bits if registers.code_bits < 64 else 64)) - 1)


class CfiLookup:
    """Look up the rule set at addresses of a recording's processes. `table_of`: returns the file of a dso (its row;
    True: with its table) or None; the table is asked for only if `rules` lacks an address. `trampolines`: knows code
    without a table. `calls`: reads call instructions, to search frame pointers."""

    def __init__(
        self,
        recording: Recording,
        rules: Rules,
        table_of: Callable[[int, bool], FileTable | None],
        trampolines: Trampolines | None = None,
        calls: CallReader | None = None,
    ) -> None:
        self.frames = FrameSearch(recording, calls) if calls else None  # without `self`: no cycle keeps the recording
        self.recording, self.rules, self.table_of, self.trampolines = recording, rules, table_of, trampolines
        self.code_mask = _code_mask(recording, rules.registers)
        self._files: dict[int, FileTable | None] = {}
        self._numbers: dict[int, tuple[I32, int]] = {}
        """By dso: row in `rules` of each rule set of its table, -1 not added yet; number of its first expression."""
        self._keys = np.full(_SLOTS, _NO_KEY, np.uint64)
        self._rows = np.zeros(_SLOTS, np.int64)

    def find(self, spaces: I32, addresses: U64) -> I64:
        """Return int64[n]: row in `rules` of the rule set at each (address space, address); missing ones are added."""
        keys = spaces.view(np.uint32).astype(np.uint64)
        keys <<= _SPACE_SHIFT
        keys ^= addresses
        slot = keys * _MIX
        slot >>= _SLOT_SHIFT
        slot = slot.view(np.int64)
        rules_row = self._rows.take(slot)
        is_kept = self._keys.take(slot) == keys
        # The key of wider numbers is ambiguous: they are looked up each time.
        if len(keys) and (addresses.max() >= _WIDE_ADDRESS or spaces.max() >= _WIDE_SPACE or spaces.min() < 0):
            narrow = (addresses < _WIDE_ADDRESS) & (spaces >= 0) & (spaces < _WIDE_SPACE)
            keys[~narrow] = _NO_KEY
            is_kept &= narrow
        if is_kept.all():
            return rules_row
        missing = np.flatnonzero(~is_kept)
        rules_row[missing] = self._look_up(spaces[missing], addresses[missing])
        self._keys[slot[missing]], self._rows[slot[missing]] = keys[missing], rules_row[missing]
        return rules_row

    def _look_up(self, spaces: I32, addresses: U64) -> I32:
        first, pair = group(spaces, addresses.view(np.int64))
        spaces, addresses, maps = spaces[first], addresses[first], self.recording.maps
        rows = find_mappings(maps, self.recording.spaces, spaces, addresses)
        rules_row = np.full(len(addresses), OUTSIDE, np.int32)
        mapped = np.flatnonzero(rows != NO_MAP)
        row = rows[mapped]
        offsets = addresses[mapped] - maps.start[row] + maps.pgoff[row]
        dsos = maps.dso[row]
        for dso in distinct(dsos).tolist():
            in_dso = np.flatnonzero(dsos == dso)
            places = mapped[in_dso]
            rules_row[places] = self._in_file(dso, offsets[in_dso])
            if self._files[dso] is None and self.trampolines is not None:
                rules_row[places] = self.trampolines.rules_of(spaces[places], addresses[places], self.rules)
        self.rules.join()
        return rules_row[pair]

    def entries(self, space: int, pc: int) -> tuple[int, frozenset[int]]:
        """Return (dso of the code at `pc`, -1 for none; addresses in its file at which its function may begin): of the
        last _ENTRY_ROWS rows of the table up to `pc` those whose CFA is the stack pointer + 8, as at the begin of a
        function."""
        maps = self.recording.maps
        spaces, address = np.full(1, space, np.int32), np.full(1, pc, np.uint64)
        row = int(find_mappings(maps, self.recording.spaces, spaces, address)[0])
        dso = int(maps.dso[row]) if row != NO_MAP else -1
        file = self._files.get(dso)
        if file is not None and file.table is None:
            file = self._files[dso] = self.table_of(dso, True)
        if file is None or file.table is None:
            return dso, frozenset()
        table, vaddr = file.table, file.to_vaddr(address - maps.start[row] + maps.pgoff[row])
        last = int(np.searchsorted(table.start, vaddr[0], side="right"))
        rules, starts = table.rule[max(0, last - _ENTRY_ROWS) : last], table.start[max(0, last - _ENTRY_ROWS) : last]
        cfa = table.rules[np.maximum(rules, 0), self.rules.registers.count]
        is_entry = (rules >= 0) & (cfa == (Kind.REGISTER | self.rules.registers.sp << 3 | 8 << 11))
        return dso, frozenset(starts[is_entry].tolist())

    def _in_file(self, dso: int, offsets: U64) -> I32:
        if dso not in self._files:
            self._files[dso] = self.table_of(dso, False)
        if (file := self._files[dso]) is None:
            return np.full(len(offsets), NO_CFI, np.int32)
        addresses = file.to_vaddr(offsets)
        row = self.rules.sets_at(file.name, addresses)
        if not len(new := distinct(addresses[row < 0])):
            return row
        if file.table is None:  # the file may have changed in between
            self._files[dso] = self.table_of(dso, True)
        else:
            self.rules.note_sets(file.name, new, self._rows_of(dso, file.table, file.table.lookup(new)))
        return self._in_file(dso, offsets)

    def _rows_of(self, dso: int, table: CfiTable, sets: I32) -> I32:
        """Convert rows of `table.rules` (`sets`, int32[n] or NO_RULES) to rows of `rules`; new sets are added to it."""
        if dso not in self._numbers:
            numbers = np.append(np.full(len(table.rules), -1, np.int32), np.int32(NO_CFI))  # the last: of NO_RULES
            self._numbers[dso] = numbers, self.rules.add_expressions(table.expressions)
        numbers, shift = self._numbers[dso]
        new = distinct(sets[numbers[sets] < 0])
        numbers[new] = self.rules.add(renumbered(table.rules[new], shift)) + np.arange(len(new), dtype=np.int32)
        return numbers[sets]
