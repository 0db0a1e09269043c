# SPDX-License-Identifier: Apache-2.0
"""Build the frame rules of one file as a flat table: for each address the rule set that locates its caller.

Files repeat few rule sets many times (libc: 25 000 rows, some thousand sets), so rows hold an address and a number, and
each set is stored once. Addresses are those of the file (as p_vaddr and st_value).

The rules also tell if a file was built with frame pointers. Code with frame pointers finds the caller's frame from the
frame pointer nearly everywhere; code without them only in the few functions that need one (alloca, realigned stacks).
So the share of functions that do it anywhere decides. Small functions do not count; a few hundred are enough."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import field
from typing import Final

import numpy as np

from perf_offcpu.abi import elf
from perf_offcpu.abi.machine import REGISTERS, Registers
from perf_offcpu.cache import DiskCache
from perf_offcpu.errors import FormatError
from perf_offcpu.model import columns as model
from perf_offcpu.model.callchains import Ragged, unique_rows
from perf_offcpu.model.columns import I32, I64, distinct
from perf_offcpu.objects.elf.image import ElfImage, open_elf
from perf_offcpu.structs import mutable
from perf_offcpu.unwind.cfi.entries import Section, read_entries
from perf_offcpu.unwind.cfi.program import Kind, run_programs

NO_RULES: Final = -1
MAX_CONTENT: Final = 1 << 27  # bytes of a section of call frame information; the largest browsers have some 20 MB
MAX_ROWS: Final = 1 << 24
MAX_EXPRESSIONS: Final = 1 << 12


@mutable
class CfiTable:
    """Find the rule set at addresses of one file: rows of (start, rule set), each set stored once in `rules`."""

    # uint64[rows], sorted; a row holds up to the start of the next
    start: model.U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    # int32[rows], row in `rules`; NO_RULES after the end of a function
    rule: I32 = field(default_factory=lambda: np.empty(0, np.int32))
    # int64[sets, registers + 2]: a rule (`cfi.program`) of each register, of the CFA, and 1 for the frame of a
    # signal handler, else 0. The value of an expression's rule is its index in `expressions`.
    rules: I64 = field(default_factory=lambda: np.empty((0, 2), np.int64))
    expressions: list[bytes] = field(default_factory=list)  # bytes of the distinct expressions

    def __len__(self) -> int:
        return len(self.start)

    def is_sound(self) -> bool:
        """Return True if rules refer to existing registers and expressions; for tables from the cache."""
        kind, value = self.rules & 7, self.rules >> 3
        named, registers = value[_is_expression(self.rules)], self.rules.shape[1] - 2
        register = np.where(kind == Kind.REGISTER, value, 0)
        register[:, registers] &= 0xFF
        register[:, -1] = 0
        are_expressions = bool(((named >= 0) & (named < len(self.expressions))).all())
        return are_expressions and bool(((register >= 0) & (register < registers)).all())

    def lookup(self, addresses: model.U64) -> I32:
        """Return int32[n]: the row in `rules` for each address of the file, NO_RULES if no rule set covers it."""
        if not len(self):
            return np.full(len(addresses), NO_RULES, np.int32)
        slot = np.searchsorted(self.start, addresses, side="right") - 1
        return np.where(slot >= 0, self.rule[slot], np.int32(NO_RULES)).astype(np.int32)


def frame_sections(image: ElfImage) -> list[Section]:
    """Read the sound sections of call frame information of a little-endian 64-bit file, .eh_frame first."""
    sections = list[Section]()
    if image.bits != elf.ElfClass.BITS64 or image.order != "<":
        return sections
    for name, is_eh in ((b".eh_frame", True), (b".debug_frame", False)):
        section = image.section_named(name)
        with suppress(FormatError):
            if section is not None and (content := image.content(section, MAX_CONTENT)):
                sections.append(Section(content, section.addr, is_eh))
    return sections


def build_table(sections: Iterable[Section], registers: Registers) -> CfiTable:
    """Build the table of a file from its sections; where they overlap, the rules of the first are taken."""
    table = CfiTable(rules=np.empty((0, registers.count + 2), np.int64))
    for other in filter(len, (_section_table(section, registers) for section in sections)):
        table = joined(table, other) if len(table) else other
    return table


def _section_table(section: Section, registers: Registers) -> CfiTable:
    cies, fdes = read_entries(section)
    fdes = fdes.take(cies.ra[fdes.cie] == registers.ra)
    sets, starts, rows = dict[bytes, int](), list[model.U64](), list[I32]()
    for part in run_programs(section, cies, fdes, registers.count):
        signal = cies.is_signal[fdes.cie[part.fde]].astype(np.int64)
        rows.append(_set_numbers(np.column_stack([part.rules, signal]), sets))
        starts.append(part.start)
        if sum(map(len, starts)) > MAX_ROWS:
            break
    if not any(map(len, starts)):
        return CfiTable()
    rules = np.frombuffer(b"".join(sets), np.int64).reshape(-1, registers.count + 2)
    rules, expressions = _number_expressions(rules, section)
    start, rule = _with_ends(np.concatenate(starts), np.concatenate(rows), fdes.end)
    return CfiTable(start, rule, rules, expressions)


def _with_ends(start: model.U64, rule: I32, ends: model.U64) -> tuple[model.U64, I32]:
    """Return the columns (start, rule) with a row NO_RULES where a function ends (`ends`) and no other begins, without
    rows that repeat the rule set before them."""
    both = np.concatenate([start, ends])
    rules = np.concatenate([rule, np.full(len(ends), NO_RULES, np.int32)])
    # Of rows with one address the last counts (an advance by 0); an end does not count where another
    # function begins, so ends come first.
    is_row = np.concatenate([np.ones(len(start), np.int8), np.zeros(len(ends), np.int8)])
    order = np.lexsort((is_row, both))
    both, rules = both[order], rules[order]
    last = np.append(both[1:] != both[:-1], True)
    both, rules = both[last], rules[last]
    new = np.append(True, rules[1:] != rules[:-1])
    return both[new], rules[new]


def joined(first: CfiTable, second: CfiTable) -> CfiTable:
    """Join two tables of one file: the second applies where the first has no rules."""
    starts = distinct(np.concatenate([first.start, second.start]))
    rule, other = first.lookup(starts), second.lookup(starts)
    other = np.where(other != NO_RULES, other + len(first.rules), NO_RULES)
    rule = np.where(rule != NO_RULES, rule, other)
    rules = np.concatenate([first.rules, renumbered(second.rules, len(first.expressions))])
    return CfiTable(starts, rule.astype(np.int32), rules, first.expressions + second.expressions)


def _is_expression(rules: I64) -> model.Bool:
    kind = rules & 7
    is_expression: model.Bool = (kind == Kind.EXPRESSION) | (kind == Kind.VAL_EXPRESSION)
    is_expression[:, -1] = False
    return is_expression


def renumbered(rules: I64, shift: int) -> I64:
    """Return the rules with `shift` added to the indices of expressions, for a list that begins with `shift` others."""
    return np.where(_is_expression(rules), rules + (shift << 3), rules)


def _number_expressions(rules: I64, section: Section) -> tuple[I64, list[bytes]]:
    """Return (rules that refer to expressions by their index, not by their place in the section; the expressions)."""
    place = np.argwhere(_is_expression(rules))
    rules, numbers = rules.copy(), dict[bytes, int]()
    words = rules[place[:, 0], place[:, 1]]
    for word in distinct(words).tolist():
        begin, length = word >> 15, word >> 3 & 0xFFF
        code = section.data[begin : begin + length].tobytes()
        number = numbers.setdefault(code, len(numbers)) if len(numbers) < MAX_EXPRESSIONS else -1
        row, column = place[words == word].T
        rules[row, column] = Kind.INVALID if number < 0 else number << 3 | word & 7
        if number < 0:
            break
    return rules, list(numbers)


def _set_numbers(rules: I64, sets: dict[bytes, int]) -> I32:
    """Return int32[n]: number of each rule set in `rules`. `sets`: bytes of a rule set → its number; new ones are
    added."""
    offsets = np.arange(0, rules.size + 1, rules.shape[1])
    unique, ids = unique_rows(Ragged(offsets, rules.reshape(-1).view(np.uint64)))
    numbers = [sets.setdefault(unique.row(row).tobytes(), len(sets)) for row in range(len(unique))]
    return np.array(numbers, np.int32)[ids]


LOOKED_AT: Final = 512
_MIN_SIZE: Final = np.uint64(64)  # bytes of the smallest function that counts: smaller ones often need no frame at all
_ENOUGH: Final = 0.75


def frame_pointer_share(path: str) -> float | None:
    """Return the share of a file's functions that keep frame pointers, 0 to 1; None if it is unknown, or of no use: on
    arm64 the return address of a leaf function is in a register, so that along frame pointers its caller is missing."""
    with open_elf(path, DiskCache.usual()) as image:  # without pyelftools, which takes 40 ms to import
        sections = frame_sections(image) if image.machine in REGISTERS else []
    if not sections:
        return None
    registers = REGISTERS[elf.Machine(image.machine)]
    if registers.ra != registers.pc:
        return None
    cies, fdes = read_entries(sections[0])
    fdes = fdes.take(fdes.end - fdes.start >= _MIN_SIZE)
    fdes = fdes.take(slice(None, None, max(1, len(fdes) // LOOKED_AT)))
    keeping = 0
    for rows in run_programs(sections[0], cies, fdes, registers.count):
        by_frame_pointer = rows.rules[:, registers.count] & 0x7FF == registers.fp << 3 | Kind.REGISTER
        # Not np.unique(), which imports numpy.ma: users wait for this when they record.
        keeping += int(np.count_nonzero(np.bincount(rows.fde[by_frame_pointer])))
    return keeping / len(fdes) if len(fdes) else None


def keeps_frame_pointers(path: str) -> bool:
    """Return True if a file was built with frame pointers; False if not, or if that is unknown."""
    try:
        return (frame_pointer_share(path) or 0.0) >= _ENOUGH
    except (OSError, FormatError):
        return False
