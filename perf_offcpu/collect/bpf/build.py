# SPDX-License-Identifier: Apache-2.0
"""Programs from where they are had soonest: kept from an earlier start, or else from the compiler.

What is kept is used if it was made by the compiler that is there now, or if there is none. What the kernel
refuses is forgotten and compiled anew; what the kernel took is kept.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Mapping

from perf_offcpu.collect.bpf.cache import Kept, ProgramCache, Recipe
from perf_offcpu.collect.bpf.compile import compiled, compiler, is_led_elsewhere
from perf_offcpu.collect.bpf.object import describe, linked
from perf_offcpu.collect.system.limits import too_many_files
from perf_offcpu.errors import CapabilityError

Load = Callable[[Mapping[str, bytes], Mapping[str, int]], None]
"""Takes instructions by function name and descriptors by map name, good as long as it runs; when it raises
OSError (VerifierError is one) it has given back what it took."""


def build(recipe: Recipe, load: Load, cache: ProgramCache | None) -> None:
    """Hand programs and their maps to `load`.

    Args:
        cache: where programs are kept; None for the compiler in any case.

    Raises:
        CapabilityError: no bcc, nor anything kept; too many open files.
        RecordingError: it does not compile.
        OSError: what `load` raises.
    """
    if cache is None or is_led_elsewhere():
        with compiled(recipe.source, recipe.defines, recipe.functions, recipe.maps) as parts:
            load(*parts)
        return
    kept, here = cache.read(recipe), compiler()
    if kept and here in (kept.compiler, "") and _load_kept(kept, recipe, load, cache):
        return
    try:
        with compiled(recipe.source, recipe.defines, recipe.functions, recipe.maps) as parts:
            load(*parts)
            with contextlib.suppress(OSError, ValueError):  # it is not kept, then
                cache.write(recipe, describe(*parts), here)
    except CapabilityError:
        # What looked like a compiler is none.
        if not (kept and here and kept.compiler != here and _load_kept(kept, recipe, load, cache)):
            raise


def _load_kept(kept: Kept, recipe: Recipe, load: Load, cache: ProgramCache) -> bool:
    """Load cached programs and return True; remove them from the cache if the kernel refuses them."""
    try:
        with linked(kept.made) as parts:
            load(*parts)
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise too_many_files() from error
        cache.remove(recipe)
        return False
    return True
