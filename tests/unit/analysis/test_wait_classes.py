# SPDX-License-Identifier: Apache-2.0
"""Wait classes by the kernel's functions, the system call, wrappers and the object; of sums by single waits like
them; of a real recording, exactly."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from builders.examples import examples
from builders.profile import Code, ProfileBuilder, classes_of, kernel, stack

from perf_offcpu.abi.syscalls import syscall_number
from perf_offcpu.abi.wait_objects import ObjectKind as K
from perf_offcpu.analysis.classes import wait_classes
from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import CLASSES, ClassRow, WaitClass, Work
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.profile import ObjectFact as F
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize
from perf_offcpu.tables import read_table

TESTS = Path(__file__).resolve().parents[2]
DATA = TESTS / "data"
NONE, UNKNOWN = -1, -2
S, D, I = 1, 2, 0x402  # noqa: E741

COLOURS = "transparent grey darkgrey purple magenta red lightred lightblue blue green orange yellow brown".split()
"""What Firefox profiler can paint a category in (GraphColor in its src/types/profile.ts)."""


def class_of(path: list[str | Code], syscall: int = UNKNOWN, state: int = S, **columns: object) -> str:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    builder.sample("a", path, 5, syscall=syscall, state=state, **columns)  # type: ignore[arg-type]
    return classes_of(builder.build())[0]


def in_kernel(*functions: str) -> list[str | Code]:
    """Return a stack with these functions as its kernel part, leaf last."""
    return [
        "main", kernel("entry_SYSCALL_64_after_hwframe"), kernel("do_syscall_64"), *map(kernel, functions),
    ]  # fmt: skip


@pytest.mark.parametrize(("label", "functions"), examples("unit/analysis/stacks.txt", "kernel"))
def test_functions_of_the_kernel(label: str, functions: str) -> None:
    assert class_of(in_kernel(*functions.split(";"))) == label


@pytest.mark.parametrize(("label", "syscall", "state", "frames"), examples("unit/analysis/stacks.txt", "calls"))
def test_without_functions_of_the_kernel(label: str, syscall: str, state: str, frames: str) -> None:
    number = {"none": NONE, "?": UNKNOWN}.get(syscall) or syscall_number(syscall, "x86_64")
    assert class_of([*stack(frames)], number, {"S": S, "D": D, "I": I}[state]) == label


def test_a_runnable_thread_waits_for_a_cpu() -> None:
    sleeping = in_kernel("__x64_sys_futex", "futex_wait")
    assert class_of(sleeping, FUTEX, S, flags=SampleFlag.PREEMPTED) == "runqueue"
    assert class_of(sleeping, FUTEX, 0) == "runqueue"
    assert class_of(sleeping, FUTEX, 0, flags=SampleFlag.PREEMPTED | SampleFlag.THROTTLED) == "throttled"
    assert classes_of(ProfileBuilder().sample("a", sleeping, 5, event="cpu-clock").build()) == ["other"], "no wait"


def syscall_name(path: list[str | Code], number: int, arch: str = "x86_64") -> str:
    waits = classify(ProfileBuilder(meta={"arch": arch}).sample("a", path, 5, syscall=number).build())
    return waits.syscall_names[waits.syscall[0]]


def test_names_of_system_calls() -> None:
    assert syscall_name([], FUTEX) == "futex" and syscall_name([], 98, "aarch64") == "futex"
    assert syscall_name([], 4000) == "4000" and syscall_name([], 3, "vax") == "3"
    assert syscall_name([], NONE) == syscall_name([], UNKNOWN) == ""
    assert syscall_name(in_kernel("__x64_sys_ppoll", "do_sys_poll"), UNKNOWN) == "ppoll"
    assert syscall_name(in_kernel("ksys_read.isra.0"), UNKNOWN) == "read"
    # 3 is read for a 32-bit program, close for others
    assert syscall_name(["main", kernel("do_fast_syscall_32"), kernel("ksys_read")], 3) == "read"
    assert syscall_name(in_kernel("ksys_read"), 3) == "close"


def test_the_known_workload() -> None:
    """Each thread of the workload's recording (10 rounds, waits under 1 ms summed) has its classes."""
    options = SymbolizeOptions(symfs=str(DATA / "demo.symfs"), kallsyms=str(DATA / "demo.kallsyms"))
    profile = symbolize(load_recording(DATA / "demo.data"), options)
    waits, samples = classify(profile), profile.samples
    found = Counter[tuple[str, str, str]]()
    labels = classes_of(profile)
    for row in profile.is_offcpu().nonzero()[0].tolist():
        comm, syscall = profile.strings[samples.comm[row]], waits.syscall_names[waits.syscall[row]]
        found[comm, labels[row], syscall] += int(samples.count[row])
    assert {key: count for key, count in found.items() if key[2]} == {
        **{(comm, "lock", "futex"): 1 for comm in WAITS_FOR_THE_START}, **{("cond-waiter", "lock", "futex"): 11},
        **{(f"locker-{x}", "lock", "futex"): 11 for x in "ab"},
        **{(f"locker-{x}", "sleep", "clock_nanosleep"): 20 for x in "ab"},
        **{(comm, "sleep", "clock_nanosleep"): 10 for comm in SLEEPERS},
        **{(comm, "sleep", "clock_nanosleep"): 1 for comm in ("short-sleeper", "waiter")},
        ("pipe-reader", "pipe", "read"): 10, ("stuck-reader", "pipe", "read"): 1, ("poller", "poll", "poll"): 10,
        ("syncer", "disk", "fsync"): 1,
    }  # fmt: skip


SLEEPERS = ("cond-signaler", "deep-sleeper", "pipe-writer", "sleeper")
WAITS_FOR_THE_START = (
    *SLEEPERS,
    *("burner", "pipe-reader", "poller", "short-sleeper", "stuck-reader", "syncer", "waiter"),
)


def test_rows_are_whole() -> None:
    assert [int(class_) for class_ in WaitClass] == list(range(len(WaitClass)))
    assert [heading for heading, _ in read_table(wait_classes.__file__)] == [class_.label for class_ in WaitClass]
    assert {class_.row.work for class_ in WaitClass} <= set(Work)
    assert CLASSES[-1] is WaitClass.OTHER and set(CLASSES) == set(WaitClass)
    colours = [class_.row.colour for class_ in WaitClass]
    assert set(colours) <= set(COLOURS) - {"yellow", "orange"}, "those are of code in user space and kernel"
    assert len(set(colours)) >= min(len(colours), 10), "take a colour that no class has before sharing one"
    with pytest.raises(TypeError):
        ClassRow("without a colour")  # type: ignore[call-arg]


READ, WRITE, POLL, IOCTL, FUTEX, EPOLL = 0, 1, 7, 16, 202, 232
SUM = SampleFlag.AGGREGATED


def judged(
    syscall: int, kind: K, *, protocol: str = "", name: str = "x", connected: bool = False,
    inward: bool = False, path: tuple[str | Code, ...] = ("main",), state: int = S,
    flags: SampleFlag | None = None,
) -> tuple[str, bool]:  # fmt: skip
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    thing = builder.thing(name, kind, protocol=protocol, connected=connected, inward=inward)
    builder.sample("a", list(path), 5, syscall=syscall, state=state, object=thing, flags=flags)
    waits = classify(builder.build())
    return WaitClass(waits.wait_class[0]).label, bool(waits.for_work[0])


@pytest.mark.parametrize(("kind", "protocol", "label"), examples("unit/analysis/examples.txt", "reads"))
def test_a_read_without_kernel_functions_has_the_class_of_its_object(kind: str, protocol: str, label: str) -> None:
    assert judged(READ, K[kind], protocol=protocol) == (label, False)
    assert judged(IOCTL, K[kind], protocol=protocol) == (label, False)
    # functions of the kernel say more
    assert judged(WRITE, K[kind], path=("main", kernel("ksys_write"), kernel("__mutex_lock")), state=D) == (
        "lock",
        False,
    )
    assert judged(READ, K[kind], path=("main", kernel("exc_page_fault")), state=D) == ("fault", False)


@pytest.mark.parametrize(("syscall", "kind", "protocol", "label"), examples("unit/analysis/examples.txt", "calls"))
def test_system_calls_with_a_purpose(syscall: str, kind: str, protocol: str, label: str) -> None:
    assert judged(syscall_number(syscall, "x86_64"), K[kind], protocol=protocol)[0] == label


POLLING = ("main", kernel("do_syscall_64"), kernel("do_sys_poll"), kernel("schedule_timeout"))


@pytest.mark.parametrize("path", [POLLING, ("main",)])
def test_poll_of_one_descriptor(path: tuple[str | Code, ...]) -> None:
    """A connection or pipe is waited for as by a read; a listening socket or several descriptors for work."""
    assert judged(POLL, K.SOCKET, protocol="tcp", connected=True, path=path) == ("network", False)
    assert judged(POLL, K.SOCKET, protocol="tcp", path=path) == ("network", True)
    assert judged(POLL, K.SOCKET, protocol="unix", connected=True, path=path) == ("pipe", False)
    assert judged(POLL, K.PIPE, connected=True, path=path) == ("pipe", False)
    assert judged(POLL, K.DESCRIPTORS, path=path) == ("poll", True)
    assert judged(POLL, K.DESCRIPTORS, name="sleep", path=path) == ("sleep", False)
    assert judged(POLL, K.DESCRIPTORS, name="signal", path=path) == ("other", True)
    names = {"eventfd]": ("poll", True), "timerfd]": ("sleep", False), "io_uring]": ("poll", True)}
    rings = {"/data/x": ("disk", False), "time": ("sleep", False), "tcp 10.0.0.7:80": ("network", False)}
    for name, result in (names | {f"io_uring] of {what}": result for what, result in rings.items()}).items():
        assert judged(POLL, K.ANONYMOUS, name=f"[{name}", path=path) == result


def test_a_server_of_udp_waits_for_work() -> None:
    receive, send = (syscall_number(name, "x86_64") for name in ("recvfrom", "sendto"))
    assert judged(receive, K.SOCKET, protocol="udp", inward=True) == ("network", True)
    assert judged(receive, K.SOCKET, protocol="udp") == ("network", False)
    assert judged(send, K.SOCKET, protocol="udp", inward=True) == ("network", False)
    assert judged(receive, K.SOCKET, protocol="tcp", inward=True, connected=True) == ("network", False)


@pytest.mark.parametrize("path", [("main", kernel("do_epoll_wait"), kernel("ep_poll")), ("main",)])
def test_what_ended_a_wait_in_epoll(path: tuple[str | Code, ...]) -> None:
    """An answer is waited for; a client's request, a new connection, a timer or another thread is work."""
    tcp, unix = dict[str, Any](protocol="tcp", path=path), dict[str, Any](protocol="unix", path=path)
    assert judged(EPOLL, K.SOCKET, connected=True, **tcp) == ("network", False)
    assert judged(EPOLL, K.SOCKET, connected=True, inward=True, **tcp) == ("network", True)
    assert judged(EPOLL, K.SOCKET, **tcp) == ("network", True)
    assert judged(EPOLL, K.SOCKET, connected=True, **unix) == ("pipe", False)
    assert judged(EPOLL, K.PIPE, connected=True, path=path) == ("pipe", False)
    assert judged(EPOLL, K.PIPE, connected=True, inward=True, path=path) == ("pipe", True)
    assert judged(EPOLL, K.ANONYMOUS, name="[timerfd]", path=path) == ("poll", True)
    assert judged(EPOLL, K.ANONYMOUS, name="[eventpoll] of 5 descriptors", path=path) == ("poll", True)
    assert judged(POLL, K.SOCKET, connected=True, inward=True, **tcp) == ("network", False), "the only one"
    several = SampleFlag.OF_SEVERAL
    assert judged(POLL, K.SOCKET, connected=True, inward=True, flags=several, **tcp) == ("network", True)


def sums(*waits: tuple[int, int, list[str | Code], SampleFlag]) -> list[str]:
    """Classes of waits given by process, system call, stack and flags; single ones read from a pipe."""
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    pipe = builder.thing("pipe from find", K.PIPE)
    for pid, syscall, path, flags in waits:
        thing: dict[str, Any] = {} if flags & SUM else {"object": pipe}
        builder.sample("a", path, 5, pid=pid, tid=pid + 1, syscall=syscall, state=S, flags=flags, **thing)
    return classes_of(builder.build())


USER: list[str | Code] = ["main", "fill", "read"]
SINGLE = SampleFlag(0)


def test_a_sum_is_as_the_single_waits_of_its_process_there() -> None:
    single = (10, READ, [*USER, kernel("ksys_read"), kernel("schedule")], SINGLE)
    assert sums(single, (10, READ, USER, SUM)) == ["pipe", "pipe"]
    assert sums((10, READ, USER, SUM), (10, READ, USER, SINGLE)) == ["pipe", "pipe"], "in any order"
    receive = syscall_number("recvfrom", "x86_64")
    assert sums((10, receive, USER, SUM), (10, receive, USER, SINGLE)) == ["pipe", "pipe"], "a Unix socket"


@pytest.mark.parametrize("other", [
    (20, READ, USER, SUM),  # another process
    (10, WRITE, USER, SUM),  # another system call
    (10, READ, ["main", "read"], SUM),  # another place
    (10, READ, [], SUM),  # no stack
    (10, -1, USER, SUM),
])  # fmt: skip
def test_others_are_not(other: tuple[int, int, list[str | Code], SampleFlag]) -> None:
    assert sums((10, READ, USER, SINGLE), other)[1] in ("other", "fault")


def test_of_several_classes_the_most_frequent_counts_and_waits_for_a_cpu_do_not() -> None:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    pipe, file = builder.thing("p", K.PIPE), builder.thing("f", K.FILE)
    for thing, flags in ((pipe, SINGLE), (file, SINGLE), (pipe, SINGLE), *((file, SampleFlag.PREEMPTED),) * 5):
        builder.sample("a", USER, 1, syscall=READ, state=S, object=thing, flags=flags)
    builder.sample("a", USER, 1, syscall=READ, state=S, flags=SUM)
    assert classes_of(builder.build())[-1] == "pipe"
    builder.sample("a", USER, 1, syscall=READ, state=D, flags=SUM)
    assert classes_of(builder.build())[-2:] == ["pipe", "disk"], "a sum with a class keeps it"


@pytest.mark.parametrize(("facts", "for_work", "wrapper"), examples("unit/analysis/examples.txt", "futexes"))
def test_who_ends_waits_tells_a_queue_of_work_from_a_lock(facts: str, for_work: str, wrapper: str) -> None:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    path = ["main", *filter(None, wrapper.split(";"))]
    thing = builder.thing("x", facts=sum(F[name] for name in facts.split("|") if name))
    builder.sample("a", path, 5, syscall=FUTEX, state=S, object=thing)
    builder.sample("a", path, 1, syscall=FUTEX, state=S, flags=SUM)  # without an object: as the other
    waits = classify(builder.build())
    assert waits.for_work.tolist() == [bool(for_work)] * 2
    assert bool(waits.purposes[waits.purpose[0]]) is bool(for_work), "a reason, for people"
    assert classes_of(builder.build()) == ["lock"] * 2


def test_the_word_of_a_thread_is_waited_for_until_it_ends() -> None:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    thing = builder.thing("x", facts=F.THREAD | F.BY_OTHERS)
    for path in (["main"], ["main", kernel("futex_wait")]):
        builder.sample("a", path, 5, syscall=FUTEX, state=S, object=thing)
    assert classes_of(builder.build()) == ["child"] * 2 and not classify(builder.build()).for_work.any()
