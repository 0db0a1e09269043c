# SPDX-License-Identifier: Apache-2.0
"""The workload itself: what waiter reports of its waits agrees with the kernel's own counters."""

import subprocess
from pathlib import Path

import pytest
from workload.measured import Thread, run

ROUNDS = 7
MS = 1_000_000

ONE_WAIT = "sleeper pipe-reader pipe-writer poller cond-waiter cond-signaler deep-sleeper".split()
WAITS_A_ROUND = dict.fromkeys(ONE_WAIT, 1) | {"locker-a": 3, "locker-b": 3, "short-sleeper": 20, "burner": 0}
"""Besides the one wait for the start."""
SHORTEST_SLEEP_NS = {"sleep": 4 * MS, "deep": 6 * MS, "poll": 9 * MS, "short-sleep": 200_000}


@pytest.fixture(scope="module")
def threads(waiter: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Thread]:
    return run(waiter, "--rounds", str(ROUNDS), cwd=tmp_path_factory.mktemp("waiter"))


def test_all_threads_report(threads: dict[str, Thread]) -> None:
    assert set(threads) == {*WAITS_A_ROUND, "syncer", "stuck-reader", "waiter"}
    assert len({thread.tid for thread in threads.values()}) == len(threads)
    assert threads["waiter"].tid == threads["waiter"].pid


def test_kernel_counts_switches_inside_measured_places(threads: dict[str, Thread]) -> None:
    """Elsewhere a thread waits, seldom, only for a page of the program or the lock of its address space."""
    elsewhere = {thread.comm: thread.nvcsw - sum(site.switches for site in thread.sites) for thread in threads.values()}
    assert min(elsewhere.values()) >= 0
    assert sum(elsewhere.values()) <= 2, elsewhere


@pytest.mark.parametrize("comm", WAITS_A_ROUND)
def test_calls_are_the_planned_ones(threads: dict[str, Thread], comm: str) -> None:
    calls, planned = sum(site.calls for site in threads[comm].sites), 1 + WAITS_A_ROUND[comm] * ROUNDS
    if comm == "cond-waiter":  # one that comes late finds the signal there
        assert planned // 2 <= calls <= planned
    else:
        assert calls == planned


def test_no_sleep_is_shorter_than_asked_for(threads: dict[str, Thread]) -> None:
    for thread in threads.values():
        for site in thread.sites:
            assert site.min_ns >= SHORTEST_SLEEP_NS.get(site.kind, 0), (thread.comm, site)


def test_waits_and_cpu_time_fit_into_the_threads_life(threads: dict[str, Thread]) -> None:
    for thread in threads.values():
        assert 0 < thread.total_ns < thread.end_ns - thread.begin_ns, thread.comm
    assert threads["burner"].cpu_ns >= ROUNDS * 10 * MS


def test_deep_stack_is_a_hundred_deep(threads: dict[str, Thread]) -> None:
    stack = threads["deep-sleeper"].site("deep").stack
    assert stack == ("run_worker", "deep_worker", *["descend"] * 100, "sleep_for")


def test_stuck_thread_says_since_when(threads: dict[str, Thread]) -> None:
    stuck, main = threads["stuck-reader"], threads["waiter"]
    assert main.begin_ns < stuck.blocked_since_ns == stuck.end_ns < main.end_ns
    assert stuck.site("stuck").calls == 0


def test_hold_and_delay_are_waits_of_the_main_thread(waiter: Path, tmp_path: Path) -> None:
    main = run(waiter, "--rounds", "1", "--delay", "0.1", "--hold", "0.2", cwd=tmp_path)["waiter"]
    assert main.site("start").min_ns >= 120 * MS
    assert main.site("hold").min_ns >= 200 * MS


@pytest.mark.parametrize("arguments", [("--rounds", "0"), ("--rounds", "x"), ("--hold", "-1"), ("--nonsense",)])
def test_nonsense_is_refused(waiter: Path, arguments: tuple[str, ...]) -> None:
    done = subprocess.run([waiter, *arguments], timeout=10, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == "" and "waiter" in done.stderr
