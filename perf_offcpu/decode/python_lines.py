# SPDX-License-Identifier: Apache-2.0
"""Read Python functions that samples name, and the lines of their instructions."""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.counters import CODES
from perf_offcpu.abi.offcpu import CODE_SHIFT, NO_INDEX, PYTHON_ENTRY
from perf_offcpu.binary.fields import Order
from perf_offcpu.binary.line_table import LineTable
from perf_offcpu.errors import LayoutError
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import Strings, distinct
from perf_offcpu.model.recording import PythonPlaces, Samples
from perf_offcpu.model.stacks import build_stack_tree

_LAST_LINE = 2**31 - 1


class Code(NamedTuple):
    """A Python function; `lines`: the begin of its table of lines, as CPython 3.`minor` has it."""

    name: str
    file: str
    first_line: int
    minor: int
    lines: bytes


def read_codes(payload: bytes, order: Order) -> dict[int, Code]:
    """Return the functions of a CODES payload by id; {} if it is damaged."""
    try:
        values = CODES.unpack(payload, order)
    except LayoutError:
        return {}
    codes, begin, text = {}, 0, bytes(values["text"])
    for row in values["codes"]:
        places = [begin := begin + size for size in (0, row["name_size"], row["file_size"], row["lines_size"])]
        name, file, lines = (text[start:end] for start, end in pairwise(places))
        texts = name.decode("utf-8", "replace"), file.decode("utf-8", "replace")
        codes[row["id"]] = Code(*texts, row["first_line"], row["minor"], lines)
    return codes if begin <= len(text) else {}


def is_own(code: Code) -> bool:
    """Return True for the code with which CPython ends a call of a constructor (`_Py_InitCleanup`)."""
    return code.name == "__init__" and code.file in ("", "__init__") and code.minor >= 12


def with_places(
    samples: Samples, chains: Ragged, codes: Mapping[int, Code], strings: Strings, lost: Losses
) -> tuple[Samples, PythonPlaces]:
    """Return (samples, places), where `python` of the samples is a row of places; in the given samples it is a row of
    `chains`, words as in their payload. `strings`: names are interned there. `lost`: counts functions not known."""
    rows = np.flatnonzero(samples.python >= 0)
    if not len(rows):
        return samples, PythonPlaces()
    used = distinct(samples.python[rows])
    stacks = chains.take(used)
    words = distinct(stacks.values)
    word_rows = np.searchsorted(words, stacks.values).astype(np.uint64)
    caller, word_row, stack = build_stack_tree(Ragged(stacks.offsets, word_rows))
    texts, tables = [], dict[int, LineTable]()
    for word in words.tolist():
        id_, index = word >> CODE_SHIFT, word & NO_INDEX
        code = codes.get(id_)
        lost.add(losses.PYTHON_UNDESCRIBED, int(code is None))
        if code is None or is_own(code):
            texts.append((0, 0, 0))
            continue
        if id_ not in tables:
            tables[id_] = LineTable(code.lines, code.first_line, code.minor)
        line = tables[id_].line_of(index)
        texts.append((strings.intern(code.name), strings.intern(code.file), line if 0 < line <= _LAST_LINE else 0))
    name, file, line = np.array(texts)[word_row].T
    is_first = (words & np.uint64(PYTHON_ENTRY) != 0)[word_row]
    python = samples.python.copy()
    python[rows] = stack[np.searchsorted(used, python[rows])]
    places = PythonPlaces(
        caller.astype(np.int32), is_first, name.astype(np.uint32), file.astype(np.uint32), line.astype(np.int32)
    )
    return samples.with_columns(python=python), places
