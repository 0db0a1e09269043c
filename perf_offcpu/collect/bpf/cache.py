# SPDX-License-Identifier: Apache-2.0
"""Compiled BPF programs on disk, so that bcc and its 100 MB are loaded once, not at each start.

    $XDG_CACHE_HOME/perf-offcpu/programs/HEX-HEX.program        (`perf_offcpu.cache` says in which format)

A name is made of two hashes of everything that the instructions depend on: the first of the sources and the running
kernel, the second of the options. It is the same at each boot and in each container, because the loader fills in what
differs (`enum offcpu_late` in bpf/off_cpu.h). The compiler is not part of the name: the file names it, so that programs
remain useful where there is no compiler any more.

`build` loads cached programs if the installed compiler made them, or if no compiler is installed. Programs that the
kernel refuses are removed from the cache and compiled again; programs that it accepts are stored.

The recorder has every right on the machine, so it loads programs only from a directory that no user but its own (and
root) can have written to; each directory above it is checked, too. The content is checked for consistency, and then by
the kernel's verifier as any other program is."""

import contextlib
import dataclasses
import errno
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.cache import DiskCache
from perf_offcpu.collect.bpf.compile import compiled, compiler, has_other_headers
from perf_offcpu.collect.bpf.kernel.facts import kernel_identity
from perf_offcpu.collect.bpf.object import BpfObject, MapShape, describe, linked
from perf_offcpu.collect.system.privileges import too_many_files
from perf_offcpu.errors import CapabilityError

LIMIT = 32 << 20  # largest size of all files together, bytes
_KIND = "programs"
_SUFFIX = ".program"
_COLUMN = "json"


@dataclass(frozen=True, slots=True)
class Recipe:
    """All inputs of a compilation of BPF programs, from which the name of their cache file is derived."""

    source: Path  # the C file; `include/` next to it serves as kernel headers
    kernel: Mapping[str, int | str]  # preprocessor constants for facts about the running kernel
    options: Mapping[str, int | str]  # preprocessor constants for options
    functions: Sequence[str]  # names of the programs that are loaded
    maps: Sequence[str]  # names of the maps that are used from user space

    @property
    def defines(self) -> dict[str, int | str]:
        """All preprocessor constants by name: those for facts about the running kernel, and those for options."""
        return {**self.kernel, **self.options}

    def kernel_key(self) -> str:
        """Return the first part of cache file names: a hash of sources and running kernel, not of the options."""
        # direct: the package's own sources
        files = sorted(path for path in self.source.parent.rglob("*.[ch]") if path.is_file())
        # direct: the package's own sources
        parts = [(str(path.relative_to(self.source.parent)), path.read_bytes()) for path in files]
        return _hash(kernel_identity(), parts, self.source.name, sorted(self.kernel.items()))

    def name(self) -> str:
        """Return the name of the cache file for these programs, HEX-HEX.program."""
        options_key = _hash(sorted(self.options.items()), list(self.functions), list(self.maps))
        return f"{self.kernel_key()}-{options_key}{_SUFFIX}"


@dataclass(frozen=True, slots=True)
class CachedPrograms:
    """Compiled programs as a cache file holds them, and the compiler that made them."""

    programs: BpfObject
    compiler: str  # the compiler, as `compile.compiler` describes it


class ProgramCache:
    """Read and write compiled programs in a directory of cache files, one for each recipe."""

    def __init__(self, files: DiskCache) -> None:
        self._files = files

    @classmethod
    def usual(cls) -> "ProgramCache | None":
        """Return the user's cache of programs; None if `DiskCache.usual` finds no directory for it."""
        files = DiskCache.usual(_KIND, LIMIT)
        return None if files is None else cls(files)

    def read(self, recipe: Recipe) -> CachedPrograms | None:
        """Return the stored programs of a recipe; None if there are none, or they are damaged or incomplete."""
        columns = self._files.read(recipe.name())
        cached = None if columns is None else _unpack(columns)
        if cached is None or not set(recipe.functions) <= set(cached.programs.functions):
            return None
        return cached if set(recipe.maps) <= {shape.name for shape in cached.programs.maps} else None

    def write(self, recipe: Recipe, programs: BpfObject, compiler: str) -> None:
        """Store the programs of a recipe with the name of their compiler; a failure to write is ignored."""
        document = {
            "compiler": compiler,
            "functions": {name: code.hex() for name, code in programs.functions.items()},
            "maps": [dataclasses.astuple(shape) for shape in programs.maps],
            "btf": programs.btf.hex(),
        }
        self._files.write(recipe.name(), {_COLUMN: np.frombuffer(json.dumps(document).encode(), np.uint8)})

    def remove(self, recipe: Recipe) -> None:
        """Remove the cache file of a recipe."""
        self._files.remove(recipe.name())

    def count(self, recipe: Recipe) -> int:
        """Return the number of cache files for the sources and the kernel of a recipe, with any options."""
        key = recipe.kernel_key()
        return sum(name.startswith(key) and name.endswith(_SUFFIX) for name in self._files.names())


Load = Callable[[Mapping[str, bytes], Mapping[str, int]], None]
"""Loads programs. Arguments: function name → instructions; map name → descriptor, valid during the call only. Before it
raises OSError (VerifierError is one), it closes all descriptors that it has opened."""


def build(recipe: Recipe, load: Load, cache: ProgramCache | None) -> None:
    """Call `load` with the programs and maps of a recipe, from the cache or compiled (always, if `cache` is None or the
    user has set BCC_KERNEL_SOURCE). Raises CapabilityError: no bcc, and no programs in the cache; or too many open
    files; RecordingError: the source does not compile; OSError: as `load` does."""
    cache = None if has_other_headers() else cache
    cached, here = (cache.read(recipe), compiler()) if cache else (None, "")
    if cache and cached and here in (cached.compiler, "") and _load_cached(cached, recipe, load, cache):
        return
    try:
        with compiled(recipe.source, recipe.defines, recipe.functions, recipe.maps) as parts:
            load(*parts)
            with contextlib.suppress(OSError, ValueError):  # without a description it is not stored
                if cache:
                    cache.write(recipe, describe(*parts), here)
    except CapabilityError:
        # The package that looked like a compiler cannot compile.
        if not (cache and cached and here and cached.compiler != here and _load_cached(cached, recipe, load, cache)):
            raise


def _load_cached(cached: CachedPrograms, recipe: Recipe, load: Load, cache: ProgramCache) -> bool:
    """Load cached programs and return True; if the kernel refuses them, remove them and return False."""
    try:
        with linked(cached.programs) as parts:
            load(*parts)
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise too_many_files() from error
        cache.remove(recipe)
        return False
    return True


def _hash(*facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _unpack(columns: Mapping[str, NDArray[Any]]) -> CachedPrograms | None:
    """Decode the columns of a cache file; None if an earlier version wrote it or its parts do not fit together."""
    try:
        document = json.loads(columns[_COLUMN].tobytes())
        functions = {name: bytes.fromhex(code) for name, code in document["functions"].items()}
        maps = tuple(MapShape(*arguments) for arguments in document["maps"])
        programs = BpfObject(functions, maps, bytes.fromhex(document["btf"]))
        return CachedPrograms(programs, document["compiler"]) if programs.is_consistent() else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
