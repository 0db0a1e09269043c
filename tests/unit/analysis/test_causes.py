# SPDX-License-Identifier: Apache-2.0
"""The function that a wait is named by: the innermost one of the program."""

import pytest
from builders.profile import Code, ProfileBuilder, kernel

from perf_offcpu.abi.syscalls import syscall_names
from perf_offcpu.analysis.causes import FUNCTIONS, causes_of
from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.model.recording import SampleFlag

FUTEX = [kernel("do_syscall_64"), kernel("futex_wait")]
EPOLL = [kernel("do_syscall_64"), kernel("ep_poll")]
NUMBERS = {name: number for number, name in syscall_names("x86_64").items()}


def libc(name: str) -> Code:
    return Code(name, "/usr/lib/x86_64-linux-gnu/libc.so.6")


def python(name: str) -> Code:
    return Code(name, "/usr/bin/python3.11")


def causes(builder: ProfileBuilder) -> list[str]:
    profile = builder.build()
    found = causes_of(profile, classify(profile))
    assert found.names[0] == ""
    return [found.names[row] for row in found.function.tolist()]


def named(path: list[str | Code], syscall: str = "") -> str:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    (name,) = causes(builder.sample("a", path, 5, state=1, syscall=NUMBERS.get(syscall, -2)))
    return name


@pytest.mark.parametrize(("path", "function"), [
    ([libc("start_thread"), "work", "take", libc("pthread_mutex_lock@@GLIBC_2.2.5"), *FUTEX], "take"),
    # linked into the program
    (["_start", "__libc_start_main", "main", "pause_here", "__clock_nanosleep", "nanosleep"], "pause_here"),
    (["main", "std::this_thread::sleep_for<long>", libc("clock_nanosleep")], "main"),
    (["main", "ns::Pool::get(std::function<void (int)>, int)", libc("sem_wait"), *FUTEX], "ns::Pool::get"),
    (["(anonymous namespace)::run(int)", *FUTEX], "(anonymous namespace)::run"),
    (["main.main", "sync.(*Mutex).Lock", "runtime.semasleep", "runtime.futex.abi0", *FUTEX], "main.main"),
    # frames of a rule do not count, nor what leads to them
    (
        ["exec", "XactLockTableWait", "LockAcquire", "LockAcquireExtended", "WaitOnLock", "ProcSleep"]
        + ["WaitLatch", "WaitEventSetWait", libc("epoll_wait"), *EPOLL],
        "XactLockTableWait",
    ),
    # the loop of a program has no caller to blame
    (["PostgresMain", "ReadCommand", "SocketBackend", "secure_read", *EPOLL], "ReadCommand"),
    (["main.produce", "runtime.mcall", "runtime.findRunnable", *FUTEX], "runtime.findRunnable"),
    # Python's functions where they are known; else the rule's own
    (
        [
            python("_PyEval_EvalFrameDefault"),
            Code("py::handle:/srv/app.py", "/tmp/perf-7.map"),
            python("take_gil"),
            *FUTEX,
        ],
        "py::handle:/srv/app.py",
    ),
    ([python("Py_BytesMain"), python("PyEval_EvalCode"), python("take_gil"), *FUTEX], "take_gil"),
    # no name: the file
    ([libc("start_thread"), Code("", "/srv/waiter"), libc("clock_nanosleep")], "[waiter]"),
    (["main", Code("", "/srv/waiter"), libc("clock_nanosleep")], "main"),
    ([kernel("kthread"), kernel("worker_thread")], ""),
    ([], ""),
])  # fmt: skip
def test_the_innermost_function_of_the_program(path: list[str | Code], function: str) -> None:
    assert named(path) == function


def test_waits_for_a_cpu_have_no_function() -> None:
    builder = ProfileBuilder()
    for flags in (SampleFlag.THROTTLED, SampleFlag.PREEMPTED):
        builder.sample("a", ["main", "crunch"], 5, state=0, flags=flags)
    assert causes(builder) == ["", ""]


def test_code_without_a_name_has_its_system_call() -> None:
    write = [libc("write"), kernel("ext4_file_write_iter")]
    assert named(["main", libc("f"), Code("", "/bin/dash"), *write], "write") == "main"
    assert named([Code("", "/bin/dash"), *write], "write") == "write() of [dash]"
    assert named([Code("", "//anon"), *write], "write") == "write()"
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
    assert FUNCTIONS and named(["main_loop", name, *FUTEX]) == name
