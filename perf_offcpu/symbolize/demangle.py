# SPDX-License-Identifier: Apache-2.0
"""Demangle C++ and Rust symbols, spelled as in perf.

perf asks GNU's demangler for the name alone: no parameters, no return type, no qualifiers, no clone suffix
(tools/perf/util/demangle-cxx.cpp: no DMGL_PARAMS), and drops the hash of Rust names:

    _ZN3foo3barEi.constprop.0                              foo::bar
    _ZNSt6vectorIiSaIiEE9push_backEOi                      std::vector<int, std::allocator<int> >::push_back
    _ZN4core3fmt9Formatter9write_str17h0123456789abcdefE   core::fmt::Formatter::write_str

The library is multi-demangle (Rust, MIT licence; a fork of symbolic-demangle), the only one on PyPI that can leave
parameters out and survives deep nesting. But a hostile name makes it take time and memory without bound (100 MB a
second: `_ZNKSt4hashIRKSbIwSt11char` with its last part repeated), and Rust aborts the process when memory runs out. So
it runs in a process of its own (demangle_child.py), with bounds for time and memory; a name on which that process dies
stays mangled. Where the library is missing (perf's own Python sees no virtual environment), all names stay mangled.

Differences from perf: template arguments that are functions or expressions, thunks (no parameters here) and
abbreviations such as std::istream, 0.4 % of the functions of libstdc++, LLVM, clang, the JVM, rustc and cargo."""

import os
import re
import time
from collections.abc import Sequence
from typing import Final

from perf_offcpu.environment import child_environment, interpreter

_PREFIXES: Final = ("_Z", "_R")
_MAX_NAME: Final = 1 << 16
_MAX_DEATHS: Final = 8
PATIENCE_S = 5.0  # time that demangling may take in addition to its share for each name
_NAMES_PER_SECOND: Final = 20_000  # some 200 000 are usual
_CHILD: Final = os.path.join(os.path.dirname(__file__), "demangle_child.py")
_SUFFIX: Final = {"int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul"} | {
    "long long": "ll",
    "unsigned long long": "ull",
}
_LITERAL: Final = re.compile(rf"\(({'|'.join(_SUFFIX)})\)(-?\d+)")
_CLONE: Final = re.compile(r"( \[clone [^\]]*\])+$")
_QUALIFIERS: Final = re.compile(r"( const| volatile| &&?)+$")
_THUNK: Final = re.compile(r"^\{virtual override thunk\(\{(virtual )?offset\([^)]*\)\}, (.*)\)\}$")


def demangle(names: Sequence[str]) -> list[str]:
    """Return the readable form of each name; names that are not mangled stay as they are. `name@plt` and
    `name@@VERSION` keep the part after the name. Names that take too long, or kill the library, stay."""
    result = list(names)
    rows = [row for row, name in enumerate(names) if name.startswith(_PREFIXES) and _is_fit(name)]
    bare = [_bare(names[row]) for row in rows]
    for row, mangled, readable in zip(rows, bare, _in_time(bare), strict=True):
        if readable != mangled:
            result[row] = as_perf(readable) + "".join(names[row].partition("@")[1:])
    return result


def _in_time(names: list[str]) -> list[str]:
    """Demangle names within a bounded time; names that come too late, or kill the library, stay mangled."""
    directory, done = _library_directory() if names else None, list[str]()
    deadline = time.monotonic() + PATIENCE_S + len(names) / _NAMES_PER_SECOND
    for _ in range(_MAX_DEATHS):
        if directory is None or len(done) == len(names) or time.monotonic() >= deadline:
            break
        done += _in_child(directory, names[len(done) :], deadline)
        done += names[len(done) :][:1]  # the process died of this one
    return done + names[len(done) :]


def as_perf(name: str) -> str:
    """Return a name as GNU's demangler, and so perf, spells it."""
    name = _CLONE.sub("", name)
    if thunk := _THUNK.match(name):
        name = ("" if thunk[1] else "non-") + "virtual thunk to " + thunk[2]
    name = _LITERAL.sub(lambda literal: literal[2] + _SUFFIX[literal[1]], name)
    name = name.replace(", >", ">").replace("std::nullptr_t", "decltype(nullptr)")
    return _QUALIFIERS.sub("", name)


def _in_child(directory: str, names: list[str], deadline: float) -> list[str]:
    """Demangle names in a process, in order; return those done before it died or the time was over."""
    import subprocess  # not needed where there are no C++ or Rust names

    seconds = max(deadline - time.monotonic(), 0.01)
    command = [interpreter(), "-I", "-S", _CHILD, directory, str(int(seconds) + 1)]
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=child_environment()
        )
    except OSError:
        return []
    with child:
        try:
            out = child.communicate("".join(name + "\0" for name in names).encode(), timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            out = child.communicate()[0]
    return out[: out.rfind(b"\0") + 1].decode().split("\0")[:-1]


def _library_directory() -> str | None:
    """Return the directory that holds the package multi_demangle, without importing it; None if not installed."""
    from importlib.util import find_spec

    spec = find_spec("multi_demangle")
    return None if spec is None or spec.origin is None else os.path.dirname(os.path.dirname(spec.origin))


def _is_fit(name: str) -> bool:
    """Return True if the library can take the name: it is of bounded length, and holds no NUL and no surrogates."""
    if len(name) > _MAX_NAME or "\0" in name:
        return False
    return name.isascii() or not any("\ud800" <= c <= "\udfff" for c in name)


def _bare(name: str) -> str:
    """Return the mangled name without version or `@plt`; Rust v0 without `.llvm.123`, `.cold` and so on."""
    name = name.partition("@")[0]
    return name.partition(".")[0] if name.startswith("_R") else name
