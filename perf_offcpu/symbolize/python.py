# SPDX-License-Identifier: Apache-2.0
"""Merge Python functions into stacks.

One call of CPython's interpreter (a C function) runs several Python functions: their frames are inserted on the
leaf side of the call's frame, named as in a perf map. Calls and functions are paired from the leaf on: so a stack that
is cut before its root has the right functions at its calls, and the functions of missing calls stand next to its
root. The innermost call of an on-CPU sample may have no function yet, or no more. With perf trampolines
(`python -X perf`) the caller of the call already has the name: nothing is inserted."""

import re
from typing import Final

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.binary.columnar import offsets_of
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I32, I64, U32, U64, Bool, Strings, group
from perf_offcpu.model.profile import Frames
from perf_offcpu.model.recording import PythonPlaces, Recording, SampleFlag
from perf_offcpu.objects.perf_map import read_jit_name

_INTERPRETS: Final = re.compile(r"_?PyEval_EvalFrame(Default|Ex)(\..*)?")


def interpreting(frames: Frames, strings: Strings) -> Bool:
    """Return bool[frames]: True for frames of CPython's interpreter, the C function that runs Python functions."""
    symbols, inverse = np.unique(frames.symbol, return_inverse=True)
    return np.array([bool(_INTERPRETS.fullmatch(strings[row])) for row in symbols.tolist()], np.bool_)[inverse]


def python_symbols(functions: PythonPlaces, strings: Strings) -> U32:
    """Return uint32[n], rows of strings: the symbol of each function, `work (app.py)`."""
    return strings.intern_all(
        read_jit_name(f"py::{strings[name]}:{strings[file]}").symbol
        for name, file in zip(functions.name.tolist(), functions.file.tolist(), strict=True)
    )


def with_places(
    recording: Recording, frames: Frames, chains: Ragged, pair_of: I32, strings: Strings, lost: Losses
) -> tuple[Frames, Ragged, I32]:
    """Insert the Python functions of samples into their chains (rows of frames, leaf first). Returns (frames, chains,
    pair_of) with the new frames and chains appended. `pair_of`: row in chains of each sample, then, if any waker has a
    chain, of each waker. `lost`: waits in Python whose functions are missing are counted there."""
    samples, places = recording.samples, recording.places
    first, function = group(places.name, places.file, places.line)
    shown = places.take(first)
    functions = Frames.filled(len(shown), line=shown.line, cpumode=np.full(len(shown), CpuMode.USER))
    functions.symbol, functions.file = python_symbols(shown, strings), shown.file
    function = (function + len(frames)).astype(np.uint64)
    symbol, nothing = np.concatenate([frames.symbol, functions.symbol, [0]]), np.uint64(len(frames) + len(functions))
    interprets, own = interpreting(frames, strings), pair_of[: len(samples)]
    calls = np.flatnonzero(interprets[chains.values.astype(np.int64)])
    has_calls = np.bincount(chains.row_of_value()[calls], minlength=len(chains) + 1) > 0  # the last one: no chain
    is_wait = samples.has(SampleFlag.OFFCPU) & ~samples.has(SampleFlag.AGGREGATED)
    lost.add(losses.PYTHON_MISSED, int((has_calls[own] & is_wait & (samples.python < 0)).sum()))
    rows = np.flatnonzero((samples.python >= 0) & (own >= 0))
    on_cpu = ~samples.has(SampleFlag.OFFCPU | SampleFlag.TRUNCATED)
    first, pair = group(own[rows], samples.python[rows], on_cpu[rows])
    caller_of, added = places.caller.tolist(), list[U64]()
    columns = own[rows[first]], samples.python[rows[first]], on_cpu[rows[first]]
    for chain_row, leaf, is_on_cpu in zip(*(column.tolist() for column in columns), strict=True):
        stack = [leaf]
        while (place := caller_of[stack[-1]]) >= 0:
            stack.append(place)
        chain = chains.row(chain_row)
        is_first, calls = places.is_first[stack], np.flatnonzero(interprets[chain.astype(np.int64)])
        if is_on_cpu and is_first[-1] and len(calls) == is_first.sum() + 1:
            calls = calls[1:]
        index = _insertions(is_first, calls, len(chain))
        caller = np.append(chain, [nothing, nothing])[index + 1].astype(np.int64)
        is_named = (places.name[stack] > 0) & (symbol[caller] != symbol[function[stack].astype(np.int64)])
        added.append(np.insert(chain, index[is_named], function[stack][is_named]))
    pair_of = pair_of.copy()
    pair_of[rows] = len(chains) + pair
    lengths = np.array([len(chain) for chain in added], np.int64)
    table = Ragged(offsets_of(lengths), np.concatenate([np.empty(0, np.uint64), *added]))
    return Frames.concat([frames, functions]), Ragged.concat([chains, table]), pair_of


def _insertions(is_first: Bool, calls: I64, length: int) -> I64:
    """Return int64[n]: index in a chain of `length` frames before which each of n Python functions goes, leaf first.
    `is_first`: bool[n], first in a call of the interpreter. `calls`: indices of these calls in the chain."""
    call: I64 = np.cumsum(is_first) - is_first
    after_last = calls[-1] + 1 if len(calls) else length
    return np.append(calls, after_last)[np.minimum(call, len(calls))]
