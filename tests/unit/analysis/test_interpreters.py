# SPDX-License-Identifier: Apache-2.0
"""Runs of an interpreter's functions are one frame."""

import numpy as np
import pytest
from builders.profile import Code, ProfileBuilder, Stack, functions_of, kernel

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.interpreters import fold_interpreters
from perf_offcpu.model.profile import Profile

EVAL, CALL, NODE = "_PyEval_EvalFrameDefault", "PyObject_Vectorcall", "Builtins_InterpreterEntryTrampoline"


def profile_of(*paths: Stack) -> Profile:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    for weight, path in enumerate(paths, 1):
        builder.sample("a", path, weight, state=1)
    return builder.build()


def shown(profile: Profile) -> list[list[str]]:
    return [functions_of(profile, stack) for stack in profile.samples.stack.tolist()]


@pytest.mark.parametrize(("path", "folded"), [
    (["main", EVAL, CALL, EVAL, "time_sleep"], ["main", "[CPython]", "time_sleep"]),
    ([EVAL, "py::work:/a.py", EVAL, CALL], ["[CPython]", "py::work:/a.py", "[CPython]"]),
    ([EVAL, "list_sort", CALL, EVAL], ["[CPython]", "list_sort", "[CPython]"]),
    (["_PyEval_EvalFrameDefault.cold", "method_vectorcall_VARARGS_KEYWORDS"], ["[CPython]"]),
    (["Builtins_JSEntry", NODE, NODE, "JS:~f a.js:1", NODE], ["[V8]", "JS:~f a.js:1", "[V8]"]),
    (["v8::internal::(anonymous namespace)::Invoke(v8::internal::Isolate*)", "Builtins_JSEntryTrampoline"], ["[V8]"]),
    (["call_stub", "Interpreter", "Interpreter", "LA;::f"], ["[JVM interpreter]", "LA;::f"]),
    (["call_stub", EVAL], ["[JVM interpreter]", "[CPython]"]),
    (["take_gil", "PyEval_RestoreThread"], ["take_gil", "PyEval_RestoreThread"]),
    ([EVAL, kernel("call_function")], ["[CPython]", "call_function"]),
])  # fmt: skip
def test_runs_are_one_frame(path: list[str | Code], folded: list[str]) -> None:
    profile = fold_interpreters(profile_of(path))
    profile.check()
    assert shown(profile) == [folded]


def test_paths_that_become_the_same_share_their_nodes_and_keep_their_weights() -> None:
    paths: list[list[str | Code]] = [
        ["main", EVAL, "read"], ["main", CALL, EVAL, CALL, "read"], ["main", EVAL], ["main", "other"], [],
    ]  # fmt: skip
    before = profile_of(*paths)
    profile = fold_interpreters(before)
    profile.check()
    assert shown(profile) == [["main", "[CPython]", "read"]] * 2 + [["main", "[CPython]"], ["main", "other"], []]
    assert len(profile.stacks) == 4 and profile.samples.stack[0] == profile.samples.stack[1]
    np.testing.assert_array_equal(profile.samples.period, before.samples.period)
    assert len(before.stacks) == 8 and before.strings.find("[CPython]") < 0
    without = profile_of(["main", "read"])
    assert fold_interpreters(without) is without


def test_classes_are_the_same() -> None:
    futex = [kernel("do_syscall_64"), kernel("futex_wait")]
    paths = [[EVAL, CALL, "lock_acquire", "PyThread_acquire_lock_timed", *futex], [EVAL, "take_gil", *futex]]
    profile = profile_of(*paths)
    one, other = classify(profile), classify(fold_interpreters(profile))
    np.testing.assert_array_equal(one.wait_class, other.wait_class)
    np.testing.assert_array_equal(one.for_work, other.for_work)
