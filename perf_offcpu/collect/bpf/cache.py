# SPDX-License-Identifier: Apache-2.0
"""Compiled programs on disk, so that the compiler and its 100 MB are needed once, not at each start.

    $XDG_CACHE_HOME/perf-offcpu/programs/HEX-HEX.program        (`perf_offcpu.cache` has the form)

A name is made of everything that the instructions follow from: the first part of the sources and of what the
running kernel is like, the second of what was asked for. What is compiled with is not part of it: the file
tells, so that it can be used where there is no compiler any more.

The recorder has every right on the machine, so it takes programs only from a place where nobody but its own
user (and root) can have put them: each directory on the way there is looked at. What is read is checked
for form, and then by the kernel's verifier as any other program is.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.cache import DiskCache
from perf_offcpu.collect.bpf.object import BpfObject, MapShape
from perf_offcpu.files import read_kernel

LIMIT = 32 << 20
"""Bytes that all programs together may take."""
_KIND = "programs"
_SUFFIX = ".program"
_KERNEL_NOTES = Path("/sys/kernel/notes")  # with its build-id
_POSSIBLE_CPUS = Path("/sys/devices/system/cpu/possible")  # as many entries have maps of perf events
_MAP_NUMBERS = 7  # of MapShape.numbers


@dataclass(frozen=True, slots=True)
class Recipe:
    """Inputs of a compilation."""

    source: Path
    """The C file; `include/` beside it serves as kernel headers."""
    kernel: Mapping[str, int | str]
    """Preprocessor constants that say what the running kernel is like."""
    options: Mapping[str, int | str]
    """Preprocessor constants of the chosen options."""
    functions: Sequence[str]
    """Names of the programs wanted."""
    maps: Sequence[str]
    """Names of the maps wanted."""

    @property
    def defines(self) -> dict[str, int | str]:
        """All constants."""
        return {**self.kernel, **self.options}

    def kernel_key(self) -> str:
        """Return the prefix of the names of all programs compiled from these sources for this kernel."""
        system = os.uname()
        facts = [system.release, system.version, system.machine, sys.byteorder, sys.maxsize]
        # direct: the package's own sources
        files = sorted(path for path in self.source.parent.rglob("*.[ch]") if path.is_file())
        # direct: the package's own sources
        parts = [(str(path.relative_to(self.source.parent)), path.read_bytes()) for path in files]
        notes, cpus = (_read(path) for path in (_KERNEL_NOTES, _POSSIBLE_CPUS))
        return _hash(facts, notes, cpus, parts, self.source.name, sorted(self.kernel.items()))

    def name(self) -> str:
        """The name of the file for these programs."""
        asked = _hash(sorted(self.options.items()), list(self.functions), list(self.maps))
        return f"{self.kernel_key()}-{asked}{_SUFFIX}"


@dataclass(frozen=True, slots=True)
class Kept:
    """Content of a cache file."""

    made: BpfObject
    compiler: str
    """The compiler, as `collect.bpf.compile.compiler` names it."""


class ProgramCache:
    """Programs by recipe.

    Args:
        files: where they are kept.
    """

    def __init__(self, files: DiskCache) -> None:
        self._files = files

    @classmethod
    def usual(cls) -> ProgramCache | None:
        """Return the user's cache; None if the environment allows none."""
        files = DiskCache.usual(_KIND, LIMIT)
        return None if files is None else cls(files)

    def read(self, recipe: Recipe) -> Kept | None:
        """Return the programs of a recipe; None if there are none, or they are damaged."""
        columns = self._files.read(recipe.name())
        kept = None if columns is None else _from_columns(columns)
        if kept is None or not set(recipe.functions) <= set(kept.made.functions):
            return None
        return kept if set(recipe.maps) <= {shape.name for shape in kept.made.maps} else None

    def write(self, recipe: Recipe, made: BpfObject, compiler: str) -> None:
        """Keep programs, if that is possible."""
        self._files.write(recipe.name(), _to_columns(made, compiler))

    def remove(self, recipe: Recipe) -> None:
        """Forget what was kept for a recipe."""
        self._files.remove(recipe.name())

    def count(self, recipe: Recipe) -> int:
        """How many programs there are for this kernel, whatever was asked for."""
        key = recipe.kernel_key()
        return sum(name.startswith(key) and name.endswith(_SUFFIX) for name in self._files.names())


def _hash(*facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return read_kernel(str(path))
    except OSError:
        return b""


def _to_columns(made: BpfObject, compiler: str) -> dict[str, NDArray[Any]]:
    numbers = [shape.numbers for shape in made.maps]
    return {
        "compiler": _text([compiler]),
        "functions": _text(made.functions),
        "sizes": np.array([len(code) for code in made.functions.values()], np.uint32),
        "code": np.frombuffer(b"".join(made.functions.values()), np.uint8),
        "maps": _text(shape.name for shape in made.maps),
        "shapes": np.array(numbers, np.uint32).reshape(-1),
        "btf": np.frombuffer(made.btf, np.uint8),
    }


def _from_columns(columns: Mapping[str, NDArray[Any]]) -> Kept | None:
    """What the columns hold; None if they do not belong together."""
    try:
        compiler, functions, maps = (_lines(columns[name]) for name in ("compiler", "functions", "maps"))
        sizes, shapes = (columns[name].tolist() for name in ("sizes", "shapes"))
        code, btf = columns["code"].tobytes(), columns["btf"].tobytes()
    except (KeyError, UnicodeDecodeError):
        return None
    whole = len(compiler) == 1 and len(sizes) == len(functions) and sum(sizes) == len(code)
    if not whole or len(shapes) != _MAP_NUMBERS * len(maps):
        return None
    ends = [sum(sizes[: row + 1]) for row in range(len(sizes))]
    codes = [code[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    rows = [shapes[row : row + _MAP_NUMBERS] for row in range(0, len(shapes), _MAP_NUMBERS)]
    described = tuple(MapShape(name, *row) for name, row in zip(maps, rows, strict=True))
    made = BpfObject(dict(zip(functions, codes, strict=True)), described, btf)
    return Kept(made, compiler[0]) if made.fits() else None


def _text(lines: Any) -> NDArray[np.uint8]:
    return np.frombuffer("\n".join(lines).encode(), np.uint8)


def _lines(column: NDArray[Any]) -> list[str]:
    return column.tobytes().decode().split("\n")
