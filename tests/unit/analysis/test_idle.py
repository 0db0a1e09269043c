# SPDX-License-Identifier: Apache-2.0
"""Idle threads: waits for work and waits for something under way."""

import pytest
from builders.profile import Code, ProfileBuilder, Stack, kernel

from perf_offcpu.analysis.classes.classify import classify, of_idle_threads
from perf_offcpu.analysis.select import Selection, select_samples

S, D, IDLE = 1, 2, 0x402
EPOLL = ["main", kernel("__x64_sys_epoll_wait"), kernel("ep_poll")]


def is_idle(*waits: tuple[Stack, int, int], cpu: int = 0) -> bool:
    """Return True if one thread with these waits (stack, ns, state) and CPU time is idle."""
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    for path, weight, state in waits:
        builder.sample("a", path, weight, state=state)
    if cpu:
        builder.sample("a", ["main"], cpu, event="cpu-clock")
    profile = builder.build()
    (answer,) = set(of_idle_threads(profile, classify(profile).for_work).tolist())
    return bool(answer)


@pytest.mark.parametrize(("path", "state"), [
    (EPOLL, S), (["main", kernel("do_sys_poll")], S), (["main", kernel("inet_csk_accept")], S),
    (["main", kernel("__x64_sys_rt_sigtimedwait"), kernel("do_sigtimedwait")], S),
    (["main", kernel("tty_read"), kernel("n_tty_read")], S),
    (["worker", "pthread_cond_wait@@GLIBC_2.3.2", kernel("futex_wait")], S),
    ([kernel("ret_from_fork"), kernel("kthread"), kernel("worker_thread")], IDLE),
    ([kernel("ret_from_fork"), kernel("kthread"), kernel("kcompactd")], S), ([], IDLE),
])  # fmt: skip
def test_waits_for_work(path: list[str | Code], state: int) -> None:
    assert is_idle((path, 1000, state))


@pytest.mark.parametrize(("path", "state"), [
    (["main", "pthread_mutex_lock", kernel("futex_wait")], S),
    (["main", kernel("anon_pipe_read")], S),
    (["main", kernel("tcp_recvmsg")], S),
    (["main", kernel("hrtimer_nanosleep")], S),
    (["main", kernel("do_wait")], S),
    (["main", kernel("io_schedule")], D),
    (["main", kernel("handle_mm_fault")], D),
    ([kernel("kthread"), kernel("worker_thread"), kernel("process_one_work"), kernel("msleep")], D),
    ([kernel("kthread"), kernel("worker_thread"), kernel("process_one_work"), kernel("down")], D),
    ([], S),
    (EPOLL, 0),  # runnable: it waits for a CPU
])  # fmt: skip
def test_waits_for_something_under_way(path: list[str | Code], state: int) -> None:
    assert not is_idle((path, 1000, state))


def test_a_thread_with_more_than_one_percent_of_anything_else_is_not_idle() -> None:
    disk = ["main", kernel("io_schedule")]
    assert is_idle((EPOLL, 9900, S), (disk, 100, D)) and not is_idle((EPOLL, 9899, S), (disk, 101, D))
    assert is_idle((EPOLL, 9900, S), cpu=100) and not is_idle((EPOLL, 9899, S), cpu=101)


def test_hidden_shown_or_alone() -> None:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    builder.sample("server", EPOLL, 1, tid=1).sample("server", ["main"], 2, tid=1, event="cpu-clock")
    builder.sample("pool", EPOLL, 4, tid=2).sample("burner", ["main"], 8, tid=3, event="cpu-clock")
    profile = builder.build()
    for choice, weight in {"show": 15, "hide": 11, "only": 4}.items():
        assert int(select_samples(profile, Selection(idle=choice)).samples.period.sum()) == weight
