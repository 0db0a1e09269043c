# SPDX-License-Identifier: Apache-2.0
"""Threads that merely wait for work; what tasks of event loops wait for, and which loops are idle."""

from dataclasses import replace

import pytest
from builders.examples import examples
from builders.profile import ProfileBuilder, Stack, kernel, stack

from perf_offcpu import losses
from perf_offcpu.analysis.classes.classify import classify, of_idle_threads
from perf_offcpu.analysis.event_loops import in_unread_loops, loop_rows, loop_time_rows, sentences_of
from perf_offcpu.analysis.selection.select import Selection, select_samples
from perf_offcpu.analysis.task_times import tasks_profile
from perf_offcpu.analysis.times.wall_clock import wall_clock
from perf_offcpu.callpaths.weights import title_of
from perf_offcpu.convert.folded import folded_totals
from perf_offcpu.convert.registry import Options
from perf_offcpu.errors import UsageError
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import EventLoop, LoopTask, SampleFlag
from perf_offcpu.report.summary import summarize

S, D, IDLE = 1, 2, 0x402
EPOLL = ["main", kernel("__x64_sys_epoll_wait"), kernel("ep_poll")]
STATES = {"R": 0, "S": S, "D": D, "I": IDLE}


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


STACKS = [(kind, *row) for kind in ("work", "under way") for row in examples("unit/analysis/stacks.txt", kind)]


@pytest.mark.parametrize(("kind", "state", "frames"), STACKS)
def test_waits_for_work_are_idle_and_those_for_something_under_way_are_not(kind: str, state: str, frames: str) -> None:
    assert is_idle((stack(frames), 1000, STATES[state])) == (kind == "work")


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


ASYNCIO = "/usr/lib/python3.14/asyncio/"
LOCK, SLEEP, GET = ("Lock.acquire", "locks"), ("sleep", "tasks"), ("Queue.get", "queues")
IN_EPOLL = ["main", kernel("__x64_sys_epoll_wait"), kernel("ep_poll")]


def task(
    name: str, leaf: tuple[str, str], awaited: int = 0, inside: tuple[int, ...] = (), awaits: str = "x"
) -> LoopTask:
    """Return a task of `app.py` that is in a function of asyncio."""
    frames = ((leaf[0], f"{ASYNCIO}{leaf[1]}.py", 7), (f"do_{name}", "/app.py", 9))
    return LoopTask(hash(name), name, awaits, awaited, frozenset(), frozenset(inside), frames)


def profile_of(*tasks: LoopTask, since_ns: int = 5, pid: int = 7) -> Profile:
    flags = SampleFlag.STILL_BLOCKED
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    builder.sample("app\n", IN_EPOLL, 1000, tid=7, pid=7, switch_out_ns=5, flags=flags, state=1)
    return replace(builder.build(), loops=(EventLoop(pid, 7, since_ns, 0, 0, tasks),))


def is_thread_idle(profile: Profile) -> bool:
    return bool(of_idle_threads(profile, classify(profile).for_work).all())


def test_loop_whose_tasks_wait_for_a_lock_is_not_idle() -> None:
    waits = [task("a", LOCK, 3), task("b", GET)]
    assert not is_thread_idle(profile_of(*waits))
    assert is_thread_idle(profile_of(task("b", GET), task("c", SLEEP)))
    assert is_thread_idle(profile_of(*waits, since_ns=4))  # of another wait
    assert is_thread_idle(profile_of(*waits, pid=8))


def test_holder_is_in_the_lock_and_does_not_wait_for_it() -> None:
    tasks = [task("a", LOCK, 3, (3,)), task("b", LOCK, 3, (3, 4)), task("c", SLEEP, 9, (3,)), task("d", LOCK, 4)]
    (row,) = loop_rows(profile_of(*tasks))
    assert [(group.names, group.holders) for group in row.groups if group.is_held_up] == [
        (["a"], ["c (sleep in do_c)"]), (["b"], ["c (sleep in do_c)"]), (["d"], ["b (Lock.acquire in do_b)"]),
    ]  # fmt: skip
    (sentence,) = sentences_of([row])
    assert sentence.startswith(
        r"event loop of app\n 7: 1 task waits for asyncio.Lock in do_a, held by c (sleep in do_c);"
    )
    (row,) = loop_rows(profile_of(tasks[3]))
    assert sentences_of([row]) == [r"event loop of app\n 7: 1 task waits for asyncio.Lock in do_d, holder not known"]
    assert sentences_of(loop_rows(profile_of(task("b", GET)))) == []


def test_running_task_comes_first() -> None:
    ready = task("r", SLEEP, awaits="")
    (row,) = loop_rows(profile_of(task("a", LOCK, 3), ready, task("z", ("f", "tasks"), awaits="running")))
    assert [group.waits_for for group in row.groups] == ["running", "asyncio.Lock", "ready to run"]
    assert sentences_of([row])[0].startswith(
        r"event loop of app\n 7: z blocks it in do_z, 1 ready task waits for it; 1 task waits for asyncio.Lock"
    )


def test_time_of_tasks_by_function_and_by_what_they_wait_for() -> None:
    main = task("main", ("TaskGroup._aexit", "taskgroups"))
    by_main = frozenset([main.address])
    waits = [task("a", LOCK, 3)._replace(awaited_by=by_main), task("b", SLEEP, inside=(3,)), main]
    blocked = [task("a", SLEEP, awaits=""), task("z", GET, awaits="running"), main._replace(awaited_by=by_main)]
    times = ((100, 50, waits), (200, 70, waits), (300, 9, blocked), (400, 5, ()), (500, 0, waits))
    loops = tuple(EventLoop(7, 8, 0, read_ns, weight_ns, tuple(tasks)) for read_ns, weight_ns, tasks in times)
    profile = tasks_profile(replace(profile_of(), loops=loops))
    profile.check()
    top = "do_main (app.py);TaskGroup._aexit (taskgroups.py);"
    assert folded_totals(profile, Options()) == {
        f"do_a;{top}do_a (app.py);Lock.acquire (locks.py);[asyncio.Lock]": 120,
        "do_a;do_a (app.py);sleep (tasks.py);[ready to run]": 9,
        "do_b;do_b (app.py);sleep (tasks.py);[a timer (asyncio.sleep)]": 120,
        f"do_main;{top}[tasks of its group]": 129,
        "do_z;do_z (app.py);Queue.get (queues.py);[blocks the loop]": 9,
    }
    names = {profile.strings[name] for name in profile.objects.name.tolist()}
    assert {"asyncio.Lock, held by sleep in do_b", "ready to run, held by Queue.get in do_z"} < names
    assert profile.losses == {losses.EVENT_LOOP_UNREAD: 1} and profile.samples.time_ns.max() == 300
    assert title_of(profile).startswith("Time of tasks (offcpu-task)"), "and not that of CPU samples"
    with pytest.raises(UsageError, match="no times of tasks"):
        tasks_profile(profile_of(main))


def test_what_held_up_tasks_over_time_is_told_of_loops_that_say_nothing_at_the_end() -> None:
    waits = [task("a", LOCK, 3), task("b", SLEEP, inside=(3,)), task("c", LOCK, 3)]
    blocked = [task("r", SLEEP, awaits=""), task("s", SLEEP, awaits=""), task("z", GET, awaits="running")]
    times = ((100, 50, waits), (200, 30, blocked), (400, 20, ()), (500, 20, waits[1:2]))
    loops = tuple(EventLoop(7, 7, 0, read_ns, weight_ns, tuple(tasks)) for read_ns, weight_ns, tasks in times)
    rows = loop_time_rows(replace(profile_of(), loops=loops))
    assert [(row.waits_for, row.function, row.held_by, row.tasks, round(row.percent), row.ready) for row in rows] == [
        ("asyncio.Lock", "do_a", "sleep in do_b", 0.5, 19, 0), ("asyncio.Lock", "do_c", "sleep in do_b", 0.5, 19, 0),
        ("running", "do_z", "", 0.3, 30, 2),
    ]  # fmt: skip
    assert sentences_of([], rows[::2]) == [
        r"event loop of app\n 7, over time: 0.5 tasks on average wait for asyncio.Lock in do_a (19 % of their time), "
        "held by sleep in do_b; a task blocks it in do_z (30 % of the time), 2 ready tasks on average wait for it"
    ]
    at_end = loop_rows(profile_of(*waits))
    assert sentences_of(at_end, rows) == sentences_of(at_end), "once for each loop"


def test_wall_clock_of_a_loop_ends_in_what_its_tasks_wait_for() -> None:
    waits = [task("a", SLEEP), task("b", SLEEP), task("c", LOCK, 3), task("r", SLEEP, awaits="")]
    blocked = [task("r", SLEEP, awaits=""), task("z", GET, awaits="running")]
    times = ((100, 50, waits), (200, 70, waits[:2]), (300, 60, waits[:0]), (400, 90, blocked))
    loops = [EventLoop(7, 8, 0, read_ns, weight_ns, tuple(tasks)) for read_ns, weight_ns, tasks in times]
    builder, select = ProfileBuilder(meta={"arch": "x86_64"}), ["main", "EpollSelector.select (selectors.py)", *EPOLL]
    for bit, time_ns in enumerate((50, 51, 100, 130, 131, 200, 250, 400, 401, -1)):
        builder.sample("app", select, 1 << bit, tid=8, pid=7, time_ns=time_ns)
    builder.sample("app", ["poll"], 1 << 10, tid=8, pid=7, time_ns=99)
    profile = wall_clock(replace(builder.build(), loops=tuple(loops)))
    profile.check()
    totals = {tuple(stack.split(";")[-2:]): ns for stack, ns in folded_totals(profile, Options()).items()}
    assert {leaf: ns for (caller, leaf), ns in totals.items() if caller.startswith("ep_poll")} == {
        "[tasks: asyncio.Lock in do_c]": 0b110, "[tasks: a timer (asyncio.sleep) in do_a]": 0b110000,
    }  # fmt: skip
    assert sum(totals.values()) == 2**11 - 1


def test_event_loops_of_other_versions_are_noted() -> None:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    for pid, function in enumerate(("BaseEventLoop.run_forever", "run_forever", "Runner.run", "run_forever")):
        for _ in range(pid + 1):
            builder.sample("app", ["main", f"{function} (base_events.py)", *EPOLL], 1000, tid=pid, pid=pid, state=1)
    profile = builder.build()
    assert in_unread_loops(profile) == 1 + 2 + 4
    read = replace(profile, loops=(EventLoop(3, 3, 0, 0, 5, ()),))
    assert in_unread_loops(read) == 1 + 2
    assert summarize(read).notes[losses.TASKS_UNREAD] == 3
