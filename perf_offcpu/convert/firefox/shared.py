# SPDX-License-Identifier: Apache-2.0
"""Write the tables that threads of a Firefox profile share: strings, libraries, functions, frames, stacks.

A frame is an address, so that the profiler can show source lines and assembly; the profiler's trees merge
frames by function. The category of a frame is its colour. The category of the innermost frame is the class of
the wait, which is no property of the code: so the ends of stacks are rows of their own, one for each class of
waits that ends there, with copies of the frames.

Source of the format: src/types/profile.ts of https://github.com/firefox-devtools/profiler, version 70."""

import json
import uuid
from collections.abc import Iterator
from importlib import resources
from typing import Any

import numpy as np

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.callpaths.options import Name, NameKind
from perf_offcpu.callpaths.tree import paths_with_wakers
from perf_offcpu.convert.encode.text_columns import array_items
from perf_offcpu.convert.registry import Options
from perf_offcpu.model.columns import I64, U32, Bool, distinct, group
from perf_offcpu.model.profile import Frames, Profile
from perf_offcpu.text import printable

_COLOURS = {WaitClass.OTHER.label: WaitClass.OTHER.row.colour, "user": "yellow", "kernel": "orange"}
_COLOURS |= {kind.label: kind.row.colour for kind in WaitClass if kind != WaitClass.OTHER}
"""Category → colour; the first grey one is the default of frames without category (CategoryList)."""
_NAMES = list(_COLOURS)
CATEGORY_OF_CLASS = np.array([_NAMES.index(kind.label) for kind in WaitClass], np.int64)
"""int64[classes]: the category of a WaitClass."""
_CATEGORIES_OF_KINDS = ((NameKind.USER, "user"), (NameKind.KERNEL, "kernel"), (NameKind.MARK, "other"))
_CATEGORY_OF_KIND = {kind: _NAMES.index(name) for kind, name in _CATEGORIES_OF_KINDS}
CATEGORIES: list[dict[str, Any]] = [
    {"name": name, "color": colour, "subcategories": ["Other"]} for name, colour in _COLOURS.items()
]
_FORMAT = json.loads(resources.files(__package__).joinpath("shared.json").read_text("utf-8"))  # direct: of this package
MARKERS: list[dict[str, Any]] = _FORMAT["markers"]
"""Schemas of the types of markers: waits, wake-ups, segments of a critical path."""
THREAD: dict[str, Any] = _FORMAT["thread"]
"""Members that the JSON of every thread has with these values."""
_MINUS_ONE = frozenset({"address", "lib", "resource"})  # columns in which -1 stands for none; in the others null does
_LIBRARY = 1
_OWN = -1
_MOST_ADDRESS = 2**31  # larger addresses are left out: the profiler may read them into an Int32Array


class StringArray:
    """The string table of the file: numbers texts in order of first use."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}

    def row(self, text: str) -> int:
        """Return the number of a text, made printable, in the string table; a new text is added."""
        return self._rows.setdefault(printable(text), len(self._rows))

    def rows(self, texts: list[str]) -> I64:
        """Return int64[texts], the number of each text in the string table; new texts are added."""
        return np.array([self.row(text) for text in texts], np.int64)

    def json(self) -> str:
        """Return all strings as a JSON array."""
        return json.dumps(list(self._rows), separators=(",", ":"))


def table(length: int, **columns: I64 | bool | None) -> Iterator[str]:
    """Yield the JSON of a table of `length` rows. A column is one value for all rows, or int64[length], whose negative
    numbers are written as null, except in columns of _MINUS_ONE."""
    yield "{"
    for name, values in columns.items():
        yield f'"{name}":['
        if values is None or isinstance(values, bool):
            yield ",".join([json.dumps(values)] * length)
        elif name in _MINUS_ONE:
            yield ",".join(map(str, values.tolist()))
        else:
            yield from array_items(values, null=values < 0)
        yield "],"
    yield f'"length":{length}}}'


class SharedTables:
    """The tables that all threads of the file share, and for each sample its row in them (int64[samples])."""

    def __init__(self, profile: Profile, options: Options) -> None:
        self.profile, self.strings = profile, StringArray()
        self.tree, self.waker_node = paths_with_wakers(profile, options, merged=False)
        self.node, self.waits = self.tree.of_sample.astype(np.int64), classify(profile)
        """`node`, `waker_node`: tree nodes at which the stack and the waker's stack end, -1 none; `waits`: classes."""
        self.category = np.where(profile.is_offcpu(), CATEGORY_OF_CLASS[self.waits.wait_class], _OWN)
        """Category of the innermost frame; -1 for the category of its code."""
        ends, own = np.append(self.node, self.waker_node), np.full(len(self.node), _OWN)
        stacks = self._add_stacks(ends, np.append(self.category, own))
        self.stack, self.waker_stack = np.split(stacks, [len(self.node)])
        """Rows of `node` and `waker_node` in the table of stacks; -1 none."""
        self._add_functions()
        self._add_libs()

    def _add_stacks(self, node: I64, category: I64) -> I64:
        """Make the tables of stacks and frames for stacks that end at `node` (-1 none), with a leaf of `category`;
        return int64[n]: the row of each stack, -1 none."""
        parent = self.tree.parent.astype(np.int64)
        inner = np.zeros(len(parent), np.bool_)
        inner[parent[parent >= 0]] = True
        row_of = np.cumsum(inner) - 1
        with_node = np.flatnonzero(node >= 0)
        first, group_of = group(node[with_node], category[with_node])
        rows = int(inner.sum())
        stack_of = np.full(len(node), -1)
        stack_of[with_node] = rows + group_of
        nodes = np.concatenate([np.flatnonzero(inner), node[with_node[first]]])
        above = parent[nodes]
        self._prefix = np.where(above >= 0, np.arange(len(nodes)) - row_of[above], 0)
        categories = np.concatenate([np.full(rows, _OWN), category[with_node[first]]])
        kept, self._frame_of_stack = group(self.tree.name[nodes], categories)
        self._name_of_frame = self.tree.name[nodes[kept]].astype(np.int64)
        self._category_of_frame = categories[kept]
        return stack_of

    def _add_functions(self) -> None:
        names, self._functions = self.tree.names, dict[Name, int]()
        function = [self._functions.setdefault(name, len(self._functions)) for name in names]
        self._function_of_name = np.array(function, np.int64)
        self._labels = self.strings.rows([name.label for name in self._functions])
        own = np.array([_CATEGORY_OF_KIND[name.kind] for name in names], np.int64)
        has_own = self._category_of_frame == _OWN
        self._category_of_frame = np.where(has_own, own[self._name_of_frame], self._category_of_frame)

    def label_of(self, node: I64) -> I64:
        """Return int64[n]: the number of the string that names the function of each tree node."""
        return self._labels[self._function_of_name[self.tree.name[node]]]

    def _add_libs(self) -> None:
        frames = self.profile.frames
        self._row = self.tree.frames[self._name_of_frame]
        self._dsos = distinct(frames.dso[self._row[self._row >= 0]]).astype(np.int64)
        self._dsos = self._dsos[self._dsos > 0]
        self._lib_of_dso = {dso: row for row, dso in enumerate(self._dsos.tolist())}

    def libs(self) -> str:
        """Return the JSON of the member `libs` of the file: the mapped files of all frames."""
        return json.dumps([self._lib(dso) for dso in self._dsos.tolist()], separators=(",", ":"))

    def _lib(self, dso: int) -> dict[str, str | None]:
        path, build_id = printable(self.profile.strings[dso]), self.profile.build_id(dso)
        name = path.rpartition("/")[2] or path
        return {
            "arch": self.profile.meta.arch,
            "name": name,
            "path": path,
            "debugName": name,
            "debugPath": path,
            "breakpadId": breakpad_id(build_id),
            "codeId": build_id or None,
        }

    def shared(self) -> Iterator[str]:
        """Yield the JSON of the file's member `shared`, all tables, in parts. No string can be added afterwards."""
        yield '{"stackTable":{"frame":['
        yield from array_items(self._frame_of_stack)
        yield '],"prefixOffset":['
        yield from array_items(self._prefix)
        yield f'],"length":{len(self._prefix)}}},"frameTable":'
        yield from self._frame_table()
        yield ',"funcTable":'
        yield from self._function_table()
        resources = self.strings.rows([self.profile.strings[dso] for dso in self._dsos.tolist()])
        yield ',"resourceTable":'
        yield from table(len(resources), name=resources, host=None, type=np.full(len(resources), _LIBRARY))
        yield ',"nativeSymbols":'
        symbols = {"libIndex": self._symbol_libs, "address": self._symbols, "name": self._symbol_names}
        yield from table(len(self._symbols), **symbols, functionSize=None)
        yield ',"sources":'
        files, ones = self._sources, np.ones(len(self._sources), np.int64)
        start = {"startLine": ones, "startColumn": ones}
        yield from table(len(files), id=None, filename=files, **start, sourceMapURL=None, content=None)
        yield ',"sourceLocationTable":'
        nothing = np.empty(0, np.int64)
        yield from table(0, source=nothing, line=nothing, column=nothing)
        yield ',"stringArray":'
        yield self.strings.json()
        yield "}"

    def _frame_table(self) -> Iterator[str]:
        row, real = self._row, self._row >= 0
        frames = self.profile.frames if len(self.profile.frames) else Frames.filled(1)
        frames = frames.take(np.maximum(row, 0))
        dso, address, symbol = np.where(real, frames.dso, 0), frames.address, frames.symbol
        lib = np.array([self._lib_of_dso.get(number, -1) for number in dso.tolist()], np.int64)
        has_address = real & (lib >= 0) & (address > 0) & (address < _MOST_ADDRESS)
        begin = address.astype(np.int64) - frames.offset.astype(np.int64)
        native = self._native_symbols(has_address & (symbol > 0) & ~frames.is_called & (begin >= 0), lib, begin, symbol)
        self._lib_of_frame = lib
        yield from table(
            len(row),
            address=np.where(has_address, address.astype(np.int64), -1),
            lib=lib,
            inlineDepth=np.where(real, frames.inline_depth, 0),
            category=self._category_of_frame,
            subcategory=np.zeros(len(row), np.int64),
            func=self._function_of_name[self._name_of_frame],
            nativeSymbol=native,
            innerWindowID=None,
            line=np.where(real & (frames.line > 0), frames.line, -1),
            column=None,
            originalLocation=None,
        )

    def _native_symbols(self, has: Bool, lib: I64, begin: I64, symbol: U32) -> I64:
        """Make `nativeSymbols`, functions by (library, begin address, symbol), of the frames where `has` is True;
        return int64[frames]: the row of each frame's function, else -1."""
        rows = np.flatnonzero(has)
        first, group_of = group(lib[rows], begin[rows], symbol[rows])
        self._symbol_libs, self._symbols = lib[rows[first]], begin[rows[first]]
        strings = self.profile.strings
        self._symbol_names = self.strings.rows([strings[name] for name in symbol[rows[first]].tolist()])
        native = np.full(len(lib), -1)
        native[rows] = group_of
        return native

    def _function_table(self) -> Iterator[str]:
        """Yield the JSON of the functions, each with the library and the source file of its first frame."""
        count, frames = len(self._functions), self.profile.frames
        function = self._function_of_name[self._name_of_frame]
        resource, source = np.full((2, count), -1)
        resource[function[::-1]] = self._lib_of_frame[::-1]
        rows = np.flatnonzero(self._row >= 0)
        rows = rows[frames.file[self._row[rows]] > 0]
        files, inverse = np.unique(frames.file[self._row[rows]], return_inverse=True)
        source[function[rows][::-1]] = inverse[::-1]
        self._sources = self.strings.rows([self.profile.strings[file] for file in files.tolist()])
        yield from table(
            count, name=self._labels, isJS=False, relevantForJS=False, resource=resource, source=source,
            lineNumber=None, columnNumber=None, originalLocation=None,
        )  # fmt: skip


def breakpad_id(build_id: str) -> str:
    """Convert a build-id in hex to the id by which symbol servers know the file: a GUID of its first 16 bytes, the
    first three fields little-endian, and the age 0; "" for ""."""
    if not build_id:
        return ""
    return uuid.UUID(bytes_le=bytes.fromhex(build_id)[:16].ljust(16, b"\0")).hex.upper() + "0"
