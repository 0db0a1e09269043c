# SPDX-License-Identifier: Apache-2.0
"""Fold the frames of interpreters: consecutive functions of an interpreter become one frame, `[CPython]`.

Two thirds of a Python flame graph are functions that CPython runs to call a function. They say nothing about
the program, whose functions have their own frames (`py::work` of a trampoline, a line of a perf map). Any frame
that is no function of the interpreter ends a sequence. Documentation/user-stacks.md has a table made from
INTERPRETERS. Names are those of CPython 3.8 to 3.14, V8 and HotSpot.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from perf_offcpu.abi.records import CpuMode
from perf_offcpu.analysis.classes.program_rules import fits
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.profile import Frames, Profile, Stacks
from perf_offcpu.model.stacks import depths

INTERPRETERS: Final = {
    "[CPython]": r"""
        _PyEval_(EvalFrameDefault|EvalFrame|Vector|EvalCodeWithName) PyEval_(EvalFrame(Ex)?|EvalCode(Ex)?)
        _?PyObject_(Vectorcall\w*|Call|Call_Prepend|CallFunction\w*|CallMethod\w*|CallOneArg|CallNoArgs)
        _?PyObject_(MakeTpCall|FastCall\w*) _PyVectorcall_Call PyVectorcall_Call
        _PyFunction_(Vectorcall\w*|FastCall\w*) _?PyCFunction_(Call|FastCall\w*) _PyMethodDef_RawFastCall\w*
        function_code_fastcall (object|method|cfunction)_vectorcall\w* cfunction_call
        call_function do_call_core _Py_trampoline_func_\w+ py_trampoline_evaluator
    """,
    "[V8]": r"""
        Builtins_(InterpreterEntryTrampoline|InterpreterPushArgs\w*|JSEntry\w*|Call_\w+|CallFunction_\w+)
        Builtins_\w+Handler v8::internal::Execution::(Call|TryCall)\w*
        v8::internal::\(anonymous\snamespace\)::Invoke\(.*
    """,
    "[JVM interpreter]": r"Interpreter call_stub",
}
"""Frame that is shown → its functions, as the `frames` of a ProgramRule."""


def fold_interpreters(profile: Profile) -> Profile:
    """Return the profile with one frame for consecutive functions of an interpreter; weights stay."""
    frames, stacks, strings = profile.frames, profile.stacks, profile.strings
    kind = _kinds(profile)
    if not kind.any():
        return profile
    pairs, inverse = np.unique(np.stack([kind, frames.dso.astype(np.int64)]), axis=1, return_inverse=True)
    strings = strings.copy()
    names = strings.intern_all(["", *INTERPRETERS])
    added = Frames.filled(
        pairs.shape[1],
        symbol=names[pairs[0]],
        dso=pairs[1].astype(np.uint32),
        cpumode=np.full(pairs.shape[1], CpuMode.USER),
    )
    shown = np.where(kind > 0, len(frames) + inverse.reshape(-1), np.arange(len(frames)))
    frame, parent = stacks.frame.astype(np.int64), stacks.parent.astype(np.int64)
    kind = np.append(kind[frame], 0)
    repeated = (kind[:-1] > 0) & (kind[:-1] == kind[parent])
    stacks, node = _without(parent, shown[frame], repeated)
    samples = profile.samples
    samples = samples.with_columns(stack=node[samples.stack], waker_stack=node[samples.waker_stack])
    return replace(profile, frames=Frames.concat([frames, added]), stacks=stacks, samples=samples, strings=strings)


def _kinds(profile: Profile) -> I64:
    """Return int64[frames]: the number, from 1, of the row of INTERPRETERS that has the function; 0 none."""
    symbols, inverse = np.unique(profile.frames.symbol, return_inverse=True)
    kinds = np.zeros(len(symbols), np.int64)
    for index, symbol in enumerate(symbols.tolist()):
        function = profile.strings[symbol]
        met = (row for row, functions in enumerate(INTERPRETERS.values(), 1) if fits(functions, function))
        kinds[index] = next(met, 0)
    return np.where(profile.frames.is_kernel(), 0, kinds[inverse.reshape(-1)])


def _without(parent: I64, frame: I64, left_out: Bool) -> tuple[Stacks, I64]:
    """Return the stack tree without the nodes `left_out`, and int32[nodes + 1]: old row → new row (of a node left out:
    of its nearest ancestor that is kept), -1 last. `frame`: frame of each node; equal children are merged."""
    above = np.where(left_out, parent, np.arange(len(parent)))
    while (jump := above[above] if len(above) else above).tobytes() != above.tobytes():
        above = jump
    kept = np.flatnonzero(~left_out)
    over = np.where(parent[kept] >= 0, above[parent[kept]], -1)
    number = np.append(np.full(len(parent), -1), -1)  # of kept nodes, in the new tree
    level = depths(np.append(np.cumsum(~left_out) - 1, -1)[over].astype(np.int32))
    parents, frames, total = list[I64](), list[I64](), 0
    for depth in range(1, int(level.max(initial=0)) + 1):
        of_depth = level == depth
        keys, inverse = np.unique((number[over[of_depth]] + 1) << 31 | frame[kept[of_depth]], return_inverse=True)
        number[kept[of_depth]] = inverse.reshape(-1) + total
        parents.append((keys >> 31) - 1)
        frames.append(keys & 0x7FFFFFFF)
        total += len(keys)
    columns = (np.concatenate(parents).astype(np.int32), np.concatenate(frames).astype(np.int32))
    return Stacks(*columns), np.append(number[above], -1).astype(np.int32)
