# SPDX-License-Identifier: Apache-2.0
"""The function that a wait is named by: the innermost one of the program; runs of an interpreter's are one frame."""

import numpy as np
import pytest
from builders.examples import examples
from builders.profile import Code, ProfileBuilder, Stack, functions_of, kernel, stack

from perf_offcpu.abi.syscalls import syscall_names
from perf_offcpu.analysis.causes import causes_of
from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.interpreters import fold_interpreters
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

FUTEX = [kernel("do_syscall_64"), kernel("futex_wait")]
NUMBERS = {name: number for number, name in syscall_names("x86_64").items()}


def libc(name: str) -> Code:
    return Code(name, "/usr/lib/x86_64-linux-gnu/libc.so.6")


def causes(builder: ProfileBuilder) -> list[str]:
    profile = builder.build()
    found = causes_of(profile, classify(profile))
    assert found.names[0] == ""
    return [found.names[row] for row in found.function.tolist()]


def named(path: list[str | Code], syscall: str = "") -> str:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    (name,) = causes(builder.sample("a", path, 5, state=1, syscall=NUMBERS.get(syscall, -2)))
    return name


@pytest.mark.parametrize(("function", "frames"), examples("unit/analysis/stacks.txt", "causes"))
def test_the_innermost_function_of_the_program(function: str, frames: str) -> None:
    assert named([*stack(frames)]) == function


@pytest.mark.parametrize(("files", "function"), [
    (["/srv/app.py", "/usr/lib/python3.11/socket.py"], "app.py"),
    (["/srv/app.py", "<frozen importlib._bootstrap>"], "app.py"),
    (["/srv/app.py", "/v/lib/python3.11/site-packages/requests/api.py", "/usr/lib/python3.11/ssl.py"], "api.py"),
    (["/usr/lib/python3.11/threading.py", "/usr/lib/python3.11/concurrent/futures/thread.py"], "thread.py"),
    (["/srv/app.py", "/usr/lib/python3.11/asyncio/base_events.py", "/usr/lib/python3.11/selectors.py"],
     "base_events.py"),
])  # fmt: skip
def test_pythons_library_explains_no_wait_of_a_program(files: list[str], function: str) -> None:
    assert named([*(Code(file.rsplit("/", 1)[-1], file=file) for file in files), kernel("ep_poll")]) == function


def test_waits_for_a_cpu_have_no_function() -> None:
    builder = ProfileBuilder()
    for flags in (SampleFlag.THROTTLED, SampleFlag.PREEMPTED):
        builder.sample("a", ["main", "crunch"], 5, state=0, flags=flags)
    assert causes(builder) == ["", ""]


def test_code_without_a_name_has_its_system_call() -> None:
    write = [libc("write"), kernel("ext4_file_write_iter")]
    assert named(["main", libc("f"), Code("", "/bin/dash"), *write], "write") == "main"
    assert named([Code("", "/bin/dash"), *write], "write") == "write() of [dash]"
    for dso in ("//anon", "/tmp/perf-7.map"):
        assert named([Code("", dso), *write], "write") == "write()"
    frozen = [kernel("vfs_write"), kernel("percpu_rwsem_wait")]
    assert named([Code("", "/bin/dash"), libc("write"), *frozen], "write") == "write() of [dash]"
    assert named([libc("_start"), libc("__GI___libc_read"), kernel("pipe_read")], "read") == "read()"
    assert named([], "futex") == "futex()"


def test_each_sample_has_its_own_and_a_long_name_is_cut() -> None:
    builder = ProfileBuilder()
    builder.sample("a", ["main", "one"], 1).sample("a", ["main", "two"], 2).sample("a", ["main", "one"], 3)
    assert causes(builder) == ["one", "two", "one"]
    name = named(["ns::" + "x" * 100])
    assert len(name) == 60 and name.startswith("ns::xxx") and name.endswith("...")


@pytest.mark.parametrize("name", ["PyramidBuild", "syscalls_total", "sleeper", "stdout_lock", "main", "Javac"])
def test_functions_of_programs_are_no_runtime(name: str) -> None:
    assert named(["main_loop", name, *FUTEX]) == name


EVAL, CALL = "_PyEval_EvalFrameDefault", "PyObject_Vectorcall"


def profile_of(*paths: Stack) -> Profile:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    for weight, path in enumerate(paths, 1):
        builder.sample("a", path, weight, state=1)
    return builder.build()


def shown(profile: Profile) -> list[list[str]]:
    return [functions_of(profile, stack) for stack in profile.samples.stack.tolist()]


@pytest.mark.parametrize(("frames", "folded"), examples("unit/analysis/stacks.txt", "interpreters"))
def test_runs_are_one_frame(frames: str, folded: str) -> None:
    profile = fold_interpreters(profile_of(stack(frames)))
    profile.check()
    assert shown(profile) == [folded.split(";")]


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
