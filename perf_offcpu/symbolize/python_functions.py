# SPDX-License-Identifier: Apache-2.0
"""Insert Python functions into the stacks of threads that were still blocked at the end (`--python-stacks`).

CPython's C function that interprets, once for each entry into the interpreter, runs all functions that this
entry has called. They stand above it, towards the leaf, named as functions of a perf map. Where a stack has
another number of its calls than the functions say, part of it is unknown: all stand above the call next to
the leaf.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Final

import numpy as np

from perf_offcpu.abi.records import CpuMode
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I32
from perf_offcpu.model.profile import Frames
from perf_offcpu.model.recording import Recording, SampleFlag
from perf_offcpu.model.strings import Strings
from perf_offcpu.objects.perf_map import read_jit_name

_INTERPRETS: Final = re.compile(r"_?PyEval_EvalFrame(Default|Ex)(\..*)?")


def with_python_functions(
    recording: Recording, frames: Frames, chains: Ragged, pair_of: I32, strings: Strings
) -> tuple[Frames, Ragged, I32]:
    """Return frames, chains of frames, and the chain of each sample, with Python functions.

    Args:
        chains: rows of frames, leaf first.
        pair_of: the chain of each sample, then of each waker, if any has one.
    """
    samples, python = recording.samples, recording.python
    functions = Frames.filled(len(python), line=python.line, cpumode=np.full(len(python), CpuMode.USER))
    functions.symbol = strings.intern_all(
        read_jit_name(f"py::{strings[name]}:{strings[file]}").symbol
        for name, file in zip(python.name.tolist(), python.file.tolist(), strict=True)
    )
    functions.file = python.file
    interprets = np.array(
        [bool(_INTERPRETS.fullmatch(strings[symbol])) for symbol in frames.symbol.tolist()], np.bool_
    )
    blocked = np.flatnonzero(samples.has(SampleFlag.STILL_BLOCKED) & (pair_of[: len(samples)] >= 0))
    sample_of = {
        (tid, since): row
        for row, tid, since in zip(
            blocked.tolist(),
            samples.tid[blocked].tolist(),
            samples.switch_out_ns[blocked].tolist(),
            strict=True,
        )
    }
    waits = zip(python.tid.tolist(), python.switch_out_ns.tolist(), strict=True)
    pair_of, added = pair_of.copy(), list[list[int]]()
    for wait, rows in groupby(enumerate(waits), key=lambda item: item[1]):
        if (sample := sample_of.get(wait)) is None:
            continue
        chain = chains.row(int(pair_of[sample])).astype(np.int64)
        calls = np.flatnonzero(interprets[chain])  # leaf first
        if len(calls):
            own = np.array([row for row, _ in rows])
            call = python.call[own]
            last = int(call.max(initial=0))
            at = (
                calls[np.minimum(last - call, last - 1)]
                if last == len(calls)
                else np.full(len(own), calls[0])
            )
            pair_of[sample] = len(chains) + len(added)
            added.append(np.insert(chain, at, own + len(frames)).tolist())
    whole = Ragged.concat([chains, Ragged.from_lists(added)]) if added else chains
    return Frames.concat([frames, functions]), whole, pair_of
