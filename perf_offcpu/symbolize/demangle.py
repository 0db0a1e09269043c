# SPDX-License-Identifier: Apache-2.0
"""Readable names for C++ and Rust symbols, spelled as perf spells them.

perf asks GNU's demangler for the name alone: no parameters, no return type, no qualifiers, no clone suffix
(tools/perf/util/demangle-cxx.cpp: no DMGL_PARAMS), and drops the hash of Rust names:

    _ZN3foo3barEi.constprop.0                              foo::bar
    _ZNSt6vectorIiSaIiEE9push_backEOi                      std::vector<int, std::allocator<int> >::push_back
    _ZN4core3fmt9Formatter9write_str17h0123456789abcdefE   core::fmt::Formatter::write_str

The work is multi-demangle's (Rust, MIT licence; a fork of symbolic-demangle): of the libraries on PyPI it
alone can leave parameters out and survives every hostile name. Others abort on deep nesting, or print
until memory ends. Its worst case is time, some seconds for one name built for it, so a thread does the work
and is left behind when it takes too long. Where the library is missing (perf's own Python sees no virtual
environment), names stay mangled and `available` says so.

What differs from perf: template arguments that are functions or expressions, thunks (no parameters here)
and abbreviations such as std::istream, together 0.4 % of the functions of libstdc++, LLVM, clang, the JVM,
rustc and cargo.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Final

_PREFIXES: Final = ("_Z", "_R")
_MAX_NAME: Final = 1 << 16
_CHUNK: Final = 256
_NAMES_PER_SECOND: Final = 50_000  # some 400 000 are usual
_SUFFIX: Final = {"int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul"} | {
    "long long": "ll",
    "unsigned long long": "ull",
}
_LITERAL: Final = re.compile(rf"\(({'|'.join(_SUFFIX)})\)(-?\d+)")
_CLONE: Final = re.compile(r"( \[clone [^\]]*\])+$")
_QUALIFIERS: Final = re.compile(r"( const| volatile| &&?)+$")
_THUNK: Final = re.compile(r"^\{virtual override thunk\(\{(virtual )?offset\([^)]*\)\}, (.*)\)\}$")

Batch = Callable[[list[str]], list[str]]


class Demangler:
    """Demangles names until the library or its time fails, and counts the names that stayed mangled.

    Args:
        patience_s: how long a call may take beyond what its number of names explains. A call that takes
            longer returns what is done, and later calls no longer try.

    Attributes:
        available: False if the library is not installed.
        left: names that look mangled and were not tried, or not finished in time.
    """

    def __init__(self, patience_s: float = 5.0) -> None:
        self._batch = _library()
        self.available = self._batch is not None
        self.left = 0
        self._patience_s = patience_s

    def demangle(self, names: Sequence[str]) -> list[str]:
        """The readable form of each name; names that are not mangled as they are.

        `name@plt` and `name@@VERSION` keep what follows the name.
        """
        result = list(names)
        rows = [row for row, name in enumerate(names) if name.startswith(_PREFIXES) and _speakable(name)]
        bare = [_bare(names[row]) for row in rows]
        done = self._in_time(bare)
        self.left += len(rows) - len(done)
        for row, mangled, readable in zip(rows, bare, done, strict=False):
            if readable != mangled:
                result[row] = as_perf(readable) + "".join(names[row].partition("@")[1:])
        return result

    def _in_time(self, names: list[str]) -> list[str]:
        """The first names demangled, as many as could be done; all of them but for hostile input."""
        batch = self._batch
        done: list[str] = []
        if batch is None or not names:
            return done
        call = batch
        worker = threading.Thread(target=_work, args=(call, names, done), daemon=True)
        worker.start()
        worker.join(self._patience_s + len(names) / _NAMES_PER_SECOND)
        if worker.is_alive():
            self._batch = None
        return done[:]


def demangle(names: Sequence[str]) -> list[str]:
    """The readable form of each name, with a `Demangler` for this one call."""
    return Demangler().demangle(names)


def as_perf(name: str) -> str:
    """Turn the library's spelling of a name without parameters into GNU's, which perf shows."""
    name = _CLONE.sub("", name)
    if thunk := _THUNK.match(name):
        name = ("" if thunk[1] else "non-") + "virtual thunk to " + thunk[2]
    name = _LITERAL.sub(lambda literal: literal[2] + _SUFFIX[literal[1]], name)
    name = name.replace(", >", ">").replace("std::nullptr_t", "decltype(nullptr)")
    return _QUALIFIERS.sub("", name)


def _work(batch: Batch, names: list[str], done: list[str]) -> None:
    """Append the results to `done`, a chunk at a time; runs without the GIL for most of it."""
    for at in range(0, len(names), _CHUNK):
        chunk = names[at : at + _CHUNK]
        try:
            done.extend(batch(chunk))
        except BaseException:  # a panic in the library is no Exception; the names stay as they are
            done.extend(chunk)


def _library() -> Batch | None:
    """The library's function for a batch of names, without parameters and return types."""
    try:
        import multi_demangle
    except ImportError:
        return None
    options = multi_demangle.DemangleOptions(return_type=False, parameters=False)
    return lambda names: list(multi_demangle.demangle_symbols(names, options))


def _speakable(name: str) -> bool:
    """Whether the library may see it: not monstrous, and text (names are decoded with surrogateescape)."""
    return len(name) <= _MAX_NAME and (name.isascii() or not any("\ud800" <= c <= "\udfff" for c in name))


def _bare(name: str) -> str:
    """The mangled name without version or `@plt`; Rust v0 without `.llvm.123`, `.cold` and the like."""
    name = name.partition("@")[0]
    return name.partition(".")[0] if name.startswith("_R") else name
