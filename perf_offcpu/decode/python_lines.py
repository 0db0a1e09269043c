# SPDX-License-Identifier: Apache-2.0
"""Read Python functions that samples name, and the lines of their instructions."""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.counters import CODES
from perf_offcpu.abi.offcpu import CODE_SHIFT, NO_INDEX, PYTHON_ENTRY
from perf_offcpu.binary.layout import Order
from perf_offcpu.binary.line_table import LineTable
from perf_offcpu.errors import LayoutError
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged, build_stack_tree
from perf_offcpu.model.columns import U64, Strings, distinct, is_among
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.recording import PythonPlaces, SampleFlag, Samples

_LAST_LINE = 2**31 - 1
_NOTE_NS = 100_000  # at most from an on-CPU sample to its functions: these are read in some 30 us


class Code(NamedTuple):
    """Describes a Python function; `lines`: the first bytes of its line table, as CPython 3.`minor` encodes it."""

    name: str
    file: str
    first_line: int
    minor: int
    lines: bytes


def read_codes(payload: bytes, order: Order) -> dict[int, Code]:
    """Return id → function of a CODES payload; raise LayoutError if it is damaged."""
    values, codes, begin = CODES.unpack(payload, order), dict[int, Code](), 0
    text = bytes(values["text"])
    for row in values["codes"]:
        places = [begin := begin + size for size in (0, row["name_size"], row["file_size"], row["lines_size"])]
        name, file, lines = (text[start:end] for start, end in pairwise(places))
        texts = name.decode("utf-8", "replace"), file.decode("utf-8", "replace")
        codes[row["id"]] = Code(*texts, row["first_line"], row["minor"], lines)
    if begin > len(text) or not codes:
        raise LayoutError("codes of Python functions: no text for them")
    return codes


def _is_init_cleanup(code: Code) -> bool:
    """Return True for the code with which CPython ends a call of a constructor (`_Py_InitCleanup`)."""
    return code.name == "__init__" and code.file in ("", "__init__") and code.minor >= 12


Functions = list[tuple[str, str, int, int]]
"""(name, file, line, call) of the functions of a wait, leaf first; `call`: number of the interpreter's call in C."""


def with_places(
    samples: Samples,
    chains: Ragged,
    codes: Mapping[int, Code],
    functions: Mapping[tuple[int, int], Functions],
    strings: Strings,
    lost: Losses,
) -> tuple[Samples, PythonPlaces]:
    """Decode the Python frames of samples. Returns (samples, places): column `python` of these samples is a row of
    places; of the given samples, a row of `chains` (words as in payloads). `functions`: of further waits, by (tid,
    begin in ns). `strings`: names are interned there. `lost`: counts frames whose function `codes` lacks."""
    rows = np.flatnonzero(samples.python >= 0)
    others = _rows_of(samples, functions)
    if not len(rows) and not others:
        return samples, PythonPlaces()
    used = distinct(samples.python[rows])
    stacks = chains.take(used)
    words = distinct(stacks.values)
    texts = _decoded(words, codes, strings, lost)
    row_of_text = dict[tuple[int, int, int, int], int]()
    lists = [
        [row_of_text.setdefault(text, len(texts) + len(row_of_text)) for text in _interned(functions[wait], strings)]
        for wait in others.values()
    ]
    named = Ragged(stacks.offsets, np.searchsorted(words, stacks.values).astype(np.uint64))
    caller, text_row, stack = build_stack_tree(Ragged.concat([named, Ragged.from_lists(lists)]) if lists else named)
    name, file, line, is_first = np.array([*texts, *row_of_text]).T[:, text_row]
    python = samples.python.copy()
    python[rows] = stack[np.searchsorted(used, python[rows])]
    python[list(others)] = stack[len(used) :]
    texts_of_place = name.astype(np.uint32), file.astype(np.uint32)
    places = PythonPlaces(caller.astype(np.int32), is_first > 0, *texts_of_place, line.astype(np.int32))
    return samples.with_columns(python=python), places


def with_functions_on_cpu(samples: Samples) -> Samples:
    """Return the samples without those flagged ON_CPU_NAMES, whose Python functions go to the on-CPU sample that they
    follow in their thread, within _NOTE_NS: BPF reads them after the perf core has set the time of the sample."""
    is_note = samples.has(SampleFlag.ON_CPU_NAMES)
    if not is_note.any():
        return samples
    notes, rows = np.flatnonzero(is_note), np.flatnonzero(~samples.has(SampleFlag.OFFCPU))
    notes = notes[np.lexsort((samples.time_ns[notes], samples.tid[notes]))]
    tid, time_ns, python = samples.tid[notes], samples.time_ns[notes], samples.python.copy()
    last = rows_at(tid, time_ns, samples.tid[rows], samples.time_ns[rows] - 1)
    note = np.minimum(last + (time_ns[last] < samples.time_ns[rows]), len(notes) - 1)
    delay = time_ns[note] - samples.time_ns[rows]
    is_own = (tid[note] == samples.tid[rows]) & (delay >= 0) & (delay <= _NOTE_NS)
    python[rows[is_own]] = samples.python[notes[note[is_own]]]
    return samples.with_columns(python=python).take(~is_note)


def _rows_of(samples: Samples, waits: Mapping[tuple[int, int], Functions]) -> dict[int, tuple[int, int]]:
    """Return row → (tid, switch_out_ns) for off-cpu samples without Python functions whose pair is a key of `waits`."""
    if not waits:
        return {}
    tids = distinct(np.array([tid for tid, _ in waits], np.int32))
    rows = np.flatnonzero(samples.has(SampleFlag.OFFCPU) & (samples.python < 0) & is_among(samples.tid, tids))
    begins = zip(rows.tolist(), samples.tid[rows].tolist(), samples.switch_out_ns[rows].tolist(), strict=True)
    return {row: wait for row, *ids in begins if (wait := (ids[0], ids[1])) in waits}


def _interned(functions: Functions, strings: Strings) -> list[tuple[int, int, int, int]]:
    """Return (string of the name, of the file, line, 1 if first in a call of the interpreter) of each function."""
    callers = [call for *_, call in functions[1:]] + [0]
    return [
        (strings.intern(name), strings.intern(file), line, int(call != caller))
        for (name, file, line, call), caller in zip(functions, callers, strict=True)
    ]


def _decoded(words: U64, codes: Mapping[int, Code], strings: Strings, lost: Losses) -> list[tuple[int, int, int, int]]:
    """Return for each Python frame, a word of a payload: (string of the name, of the file, line, 1 if first in a call
    of the interpreter); the first three are 0 for `_Py_InitCleanup` and for unknown functions, which `lost` counts."""
    texts, tables = [], dict[int, LineTable]()
    for word in words.tolist():
        id_, index, first = word >> CODE_SHIFT, word & NO_INDEX, int(word & PYTHON_ENTRY != 0)
        code = codes.get(id_)
        lost.add(losses.PYTHON_UNDESCRIBED, int(code is None))
        if code is None or _is_init_cleanup(code):
            texts.append((0, 0, 0, first))
            continue
        if id_ not in tables:
            tables[id_] = LineTable(code.lines, code.first_line, code.minor)
        line = tables[id_].line_of(index)
        names = strings.intern(code.name), strings.intern(code.file)
        texts.append((*names, line if 0 < line <= _LAST_LINE else 0, first))
    return texts
