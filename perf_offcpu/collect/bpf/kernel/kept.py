# SPDX-License-Identifier: Apache-2.0
"""Facts about the kernel on disk, so that its types and symbols are searched once, not at each start (0.1 s).

    $XDG_CACHE_HOME/perf-offcpu/kernels/HEX.facts        (`perf_offcpu.cache` has the form)

A name is a hash of the kernel's identity and of the code that finds the facts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np

from perf_offcpu.build_ids import kernel_build_id
from perf_offcpu.cache import DiskCache
from perf_offcpu.collect.bpf import kprobe
from perf_offcpu.collect.bpf.kernel import facts as kernel_facts
from perf_offcpu.collect.bpf.kernel import members, objects
from perf_offcpu.collect.bpf.kernel.facts import KernelFacts, explore
from perf_offcpu.collect.system import btf as types_of_kernel
from perf_offcpu.collect.system import btf_walk, kallsyms
from perf_offcpu.collect.system.btf import Btf, Tracepoint

_KIND, _LIMIT, _COLUMN = "kernels", 1 << 20, "json"
_FINDERS = (btf_walk, kallsyms, kernel_facts, kprobe, members, objects, types_of_kernel)


def kernel_identity() -> tuple[object, ...]:
    """Return what tells the running kernel from others, the same at each of its boots."""
    system = os.uname()
    # Not all notes: before Linux 6.9 they have addresses (aaa8736370db), which differ at each boot.
    return (system.release, system.version, system.machine, sys.byteorder, sys.maxsize, kernel_build_id())


def kept_facts() -> KernelFacts:
    """Return the facts about the running kernel, of the user's cache or, for the first time, of its types.

    Raises:
        CapabilityError: the kernel is too old, or does not show its types.
        FormatError: its types are damaged.
    """
    files, name = DiskCache.usual(_KIND, _LIMIT), _name()
    facts = None if files is None else _read(files, name)
    if facts is None:
        facts = explore(Btf.load())
        if files is not None and facts.code:  # addresses may be hidden at this boot only
            text = json.dumps(dataclasses.asdict(facts)).encode()
            files.write(name, {_COLUMN: np.frombuffer(text, np.uint8)})
    return facts


def _name() -> str:
    # direct: the package's own sources
    finders = [Path(module.__file__ or "").read_bytes() for module in _FINDERS]
    return hashlib.sha256(repr((kernel_identity(), finders)).encode()).hexdigest() + ".facts"


def _read(files: DiskCache, name: str) -> KernelFacts | None:
    """Return the facts of a file; None if there is none or it is damaged."""
    try:
        document = json.loads((files.read(name) or {})[_COLUMN].tobytes())
        points = {name: Tracepoint(*values) for name, values in document.pop("tracepoints").items()}
        return KernelFacts(tracepoints=points, **document)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
