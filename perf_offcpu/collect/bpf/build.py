# SPDX-License-Identifier: Apache-2.0
"""Build programs: load them from the cache, or else compile them and store them there.

Cached programs are used if the installed compiler made them, or if no compiler is installed. Programs that
the kernel refuses are removed from the cache and compiled again; programs that it accepts are stored.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Mapping

from perf_offcpu.collect.bpf.cache import CachedPrograms, ProgramCache, Recipe
from perf_offcpu.collect.bpf.compile import compiled, compiler, is_led_elsewhere
from perf_offcpu.collect.bpf.object import describe, linked
from perf_offcpu.collect.system.limits import too_many_files
from perf_offcpu.errors import CapabilityError

Load = Callable[[Mapping[str, bytes], Mapping[str, int]], None]
"""Loads instructions by function name, with descriptors by map name, which are valid during the call. When it
raises OSError (VerifierError is one) it has closed what it had opened."""


def build(recipe: Recipe, load: Load, cache: ProgramCache | None) -> None:
    """Hand programs and their maps to `load`.

    Args:
        cache: None: always compile.

    Raises:
        CapabilityError: no bcc, and no programs in the cache; too many open files.
        RecordingError: it does not compile.
        OSError: of `load`.
    """
    if cache is None or is_led_elsewhere():
        with compiled(recipe.source, recipe.defines, recipe.functions, recipe.maps) as parts:
            load(*parts)
        return
    cached, here = cache.read(recipe), compiler()
    if cached and here in (cached.compiler, "") and _load_cached(cached, recipe, load, cache):
        return
    try:
        with compiled(recipe.source, recipe.defines, recipe.functions, recipe.maps) as parts:
            load(*parts)
            with contextlib.suppress(OSError, ValueError):  # without a description it is not stored
                cache.write(recipe, describe(*parts), here)
    except CapabilityError:
        # The package that looked like a compiler is none.
        if not (cached and here and cached.compiler != here and _load_cached(cached, recipe, load, cache)):
            raise


def _load_cached(cached: CachedPrograms, recipe: Recipe, load: Load, cache: ProgramCache) -> bool:
    """Load cached programs and return True; remove them from the cache if the kernel refuses them."""
    try:
        with linked(cached.programs) as parts:
            load(*parts)
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise too_many_files() from error
        cache.remove(recipe)
        return False
    return True
