# SPDX-License-Identifier: Apache-2.0
"""Fold the frames of interpreters: consecutive functions of an interpreter become one frame, `[CPython]`. Two thirds of
a Python flame graph are functions that CPython runs to call a function. They say nothing about the program, whose
functions have their own frames (`py::work` of a trampoline, a line of a perf map). Any frame that is no function of the
interpreter ends a sequence. Documentation/user-stacks.md has a table made from interpreters.toml."""

import re
from dataclasses import replace
from typing import Final

import numpy as np

from perf_offcpu.abi.records import CpuMode
from perf_offcpu.analysis.classes.program_rules import fits
from perf_offcpu.analysis.stack_walk import without_nodes
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Frames, Profile
from perf_offcpu.tables import read_table

_TABLES: Final = dict(read_table(__file__))
INTERPRETERS: Final = _TABLES["interpreters"]
"""Frame that is shown → its functions, as the `frames` of a ProgramRule."""
RUNTIME_FILES: Final = _TABLES["files"]["all"]
RUNTIME_FUNCTIONS: Final = " ".join(
    [*(re.escape(frame).replace(r"\ ", r"\s") for frame in INTERPRETERS), *_TABLES["functions"].values()]
)
RUNTIME_SOURCES: Final = _TABLES["files"]["sources"]
"""Files, functions and source files of runtimes, which explain no wait."""


def fold_interpreters(profile: Profile) -> Profile:
    """Return the profile with one frame for consecutive functions of an interpreter; weights stay."""
    frames, stacks, strings = profile.frames, profile.stacks, profile.strings
    kind = _kinds(profile)
    if not kind.any():
        return profile
    pairs, inverse = np.unique(np.stack([kind, frames.dso.astype(np.int64)]), axis=1, return_inverse=True)
    strings = strings.copy()
    names = strings.intern_all(["", *INTERPRETERS])
    added = Frames.filled(pairs.shape[1], symbol=names[pairs[0]], dso=pairs[1], cpumode=CpuMode.USER)
    shown = np.where(kind > 0, len(frames) + inverse.reshape(-1), np.arange(len(frames)))
    frame, parent = stacks.frame.astype(np.int64), stacks.parent.astype(np.int64)
    kind = np.append(kind[frame], 0)
    repeated = (kind[:-1] > 0) & (kind[:-1] == kind[parent])
    stacks, node = without_nodes(parent, shown[frame], repeated)
    samples = profile.samples
    samples = samples.with_columns(stack=node[samples.stack], waker_stack=node[samples.waker_stack])
    return replace(profile, frames=Frames.concat([frames, added]), stacks=stacks, samples=samples, strings=strings)


def _kinds(profile: Profile) -> I64:
    """Return int64[frames]: the number, from 1, of the interpreter in INTERPRETERS that has the function; 0 none."""
    symbols, inverse = np.unique(profile.frames.symbol, return_inverse=True)
    kinds = np.zeros(len(symbols), np.int64)
    for index, symbol in enumerate(symbols.tolist()):
        function = profile.strings[symbol]
        met = (row for row, functions in enumerate(INTERPRETERS.values(), 1) if fits(functions, function))
        kinds[index] = next(met, 0)
    return np.where(profile.frames.is_kernel(), 0, kinds[inverse.reshape(-1)])
