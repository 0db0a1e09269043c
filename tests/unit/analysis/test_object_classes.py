# SPDX-License-Identifier: Apache-2.0
"""Wait classes by object, and of sums by single waits like them."""

from typing import Any

import pytest
from builders.profile import Code, ProfileBuilder, classes_of, kernel

from perf_offcpu.abi.wait_objects import ObjectKind as K
from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.model.profile import ObjectFact as F
from perf_offcpu.model.recording import SampleFlag

READ, WRITE, POLL, IOCTL, FUTEX, RECV, FSYNC, FLOCK, EPOLL = 0, 1, 7, 16, 202, 45, 74, 73, 232
SUM = SampleFlag.AGGREGATED
S, D = 1, 2


def judged(
    syscall: int, kind: K, *, protocol: str = "", name: str = "x", connected: bool = False,
    inward: bool = False, path: tuple[str | Code, ...] = ("main",), state: int = S,
) -> tuple[str, bool]:  # fmt: skip
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    thing = builder.thing(name, kind, protocol=protocol, connected=connected, inward=inward)
    builder.sample("a", list(path), 5, syscall=syscall, state=state, object=thing)
    waits = classify(builder.build())
    return WaitClass(waits.wait_class[0]).label, bool(waits.for_work[0])


@pytest.mark.parametrize(("kind", "protocol", "label"), [
    (K.SOCKET, "tcp", "network"), (K.SOCKET, "netlink", "network"), (K.SOCKET, "unix", "pipe"),
    (K.PIPE, "", "pipe"), (K.FILE, "", "disk"), (K.CHARACTER, "", "other"), (K.UNKNOWN, "", "other"),
])  # fmt: skip
def test_a_read_without_kernel_functions_has_the_class_of_its_object(kind: K, protocol: str, label: str) -> None:
    assert judged(READ, kind, protocol=protocol) == (label, False)
    assert judged(IOCTL, kind, protocol=protocol) == (label, False)
    # functions of the kernel say more
    assert judged(WRITE, kind, path=("main", kernel("ksys_write"), kernel("__mutex_lock")), state=D) == ("lock", False)
    assert judged(READ, kind, path=("main", kernel("exc_page_fault")), state=D) == ("fault", False)


@pytest.mark.parametrize(("syscall", "kind", "protocol", "label"), [
    (RECV, K.SOCKET, "unix", "pipe"),
    (RECV, K.SOCKET, "tcp", "network"),
    (FLOCK, K.FILE, "", "lock"),  # the system call says more
    (FSYNC, K.FILE, "", "disk"),
    (FUTEX, K.FUTEX, "", "lock"),
    (POLL, K.DESCRIPTORS, "", "poll"),
    (EPOLL, K.ANONYMOUS, "", "poll"),
])  # fmt: skip
def test_system_calls_with_a_purpose(syscall: int, kind: K, protocol: str, label: str) -> None:
    assert judged(syscall, kind, protocol=protocol)[0] == label


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
    for name, result in (names | {"io_uring] of /data/x": ("disk", False)}).items():
        assert judged(POLL, K.ANONYMOUS, name=f"[{name}", path=path) == result


WAITING_FOR_EVENTS = ("main", kernel("do_epoll_wait"), kernel("ep_poll"))


@pytest.mark.parametrize("path", [WAITING_FOR_EVENTS, ("main",)])
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


def sums(*waits: tuple[int, int, list[str | Code], SampleFlag]) -> list[str]:
    """Classes of waits given by process, system call, stack and flags; single ones read from a pipe."""
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    pipe = builder.thing("pipe from find", K.PIPE)
    for pid, syscall, path, flags in waits:
        thing: dict[str, Any] = {} if flags & SUM else {"object": pipe}
        builder.sample("a", path, 5, pid=pid, tid=pid + 1, syscall=syscall, state=S, flags=flags, **thing)
    return classes_of(builder.build())


USER: list[str | Code] = ["main", "fill", "read"]
NONE = SampleFlag(0)


def test_a_sum_is_as_the_single_waits_of_its_process_there() -> None:
    single = (10, READ, [*USER, kernel("ksys_read"), kernel("schedule")], NONE)
    assert sums(single, (10, READ, USER, SUM)) == ["pipe", "pipe"]
    assert sums((10, READ, USER, SUM), (10, READ, USER, NONE)) == ["pipe", "pipe"], "in any order"


@pytest.mark.parametrize("other", [
    (20, READ, USER, SUM),  # another process
    (10, WRITE, USER, SUM),  # another system call
    (10, READ, ["main", "read"], SUM),  # another place
    (10, READ, [], SUM),  # no stack
    (10, -1, USER, SUM),
])  # fmt: skip
def test_others_are_not(other: tuple[int, int, list[str | Code], SampleFlag]) -> None:
    assert sums((10, READ, USER, NONE), other)[1] in ("other", "fault")


def test_of_several_classes_the_most_frequent_counts_and_waits_for_a_cpu_do_not() -> None:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    pipe, file = builder.thing("p", K.PIPE), builder.thing("f", K.FILE)
    for thing, flags in ((pipe, NONE), (file, NONE), (pipe, NONE), *((file, SampleFlag.PREEMPTED),) * 5):
        builder.sample("a", USER, 1, syscall=READ, state=S, object=thing, flags=flags)
    builder.sample("a", USER, 1, syscall=READ, state=S, flags=SUM)
    assert classes_of(builder.build())[-1] == "pipe"
    builder.sample("a", USER, 1, syscall=READ, state=D, flags=SUM)
    assert classes_of(builder.build())[-2:] == ["pipe", "disk"], "a sum with a class keeps it"


GLIBC_2_41 = (
    *("pthread_cond_wait", "__pthread_cond_wait_common", "__futex_abstimed_wait_cancelable64"),
    *(
        "__futex_abstimed_wait_common",
        "__futex_abstimed_wait_common64",
        "__syscall_cancel",
        "__internal_syscall_cancel",
    ),
)
CONDITION, SEMAPHORE, MUTEX = ("pthread_cond_wait",), ("sem_wait", "[libc]"), ("pthread_mutex_lock",)


@pytest.mark.parametrize(("wrapper", "facts", "for_work"), [
    (CONDITION, 0, True), (CONDITION, F.BY_OTHERS, True), (CONDITION, F.BY_PEERS | F.SEVERAL, False),
    (GLIBC_2_41, 0, True),
    (CONDITION, F.BY_PEERS | F.BY_OTHERS, True), (CONDITION, F.BY_STRANGERS, True), (SEMAPHORE, 0, True),
    (SEMAPHORE, F.SHARED, False), (SEMAPHORE, F.SHARED | F.BY_OTHERS, True), (SEMAPHORE, F.BY_STRANGERS, False),
    (SEMAPHORE, F.BY_PEERS | F.BY_OTHERS, False), (MUTEX, F.BY_OTHERS | F.SEVERAL, False),
    (CONDITION, F.BY_OTHERS | F.CIRCLE, False), (SEMAPHORE, F.BY_OTHERS | F.CIRCLE, False),
    ((), F.BY_OTHERS | F.SEVERAL, True), ((), F.BY_OTHERS, False), ((), F.BY_PEERS | F.SEVERAL, False),
])  # fmt: skip
def test_who_ends_waits_tells_a_queue_of_work_from_a_lock(wrapper: tuple[str, ...], facts: int, for_work: bool) -> None:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    path, thing = ["main", *wrapper], builder.thing("x", facts=facts)
    builder.sample("a", path, 5, syscall=FUTEX, state=S, object=thing)
    builder.sample("a", path, 1, syscall=FUTEX, state=S, flags=SUM)  # without an object: as the other
    waits = classify(builder.build())
    assert waits.for_work.tolist() == [for_work] * 2
    assert bool(waits.purposes[waits.purpose[0]]) is for_work, "a reason, for people"
    assert classes_of(builder.build()) == ["lock"] * 2


def test_the_word_of_a_thread_is_waited_for_until_it_ends() -> None:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    thing = builder.thing("x", facts=F.THREAD | F.BY_OTHERS)
    for path in (["main"], ["main", kernel("futex_wait")]):
        builder.sample("a", path, 5, syscall=FUTEX, state=S, object=thing)
    assert classes_of(builder.build()) == ["child"] * 2 and not classify(builder.build()).for_work.any()
