# SPDX-License-Identifier: Apache-2.0
"""Goroutines, read from made-up memory of this process: what is read, and that nothing a program does there ends more
than its own reading; payloads; sums and stacks."""

import contextlib
import ctypes
import os
import platform
import random
import struct
from dataclasses import replace

import numpy as np
import pytest
from builders.profile import ProfileBuilder

from perf_offcpu.abi.counters import GOROUTINES
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.analysis.goroutines import goroutine_rows, goroutine_sentences
from perf_offcpu.analysis.selection.select import select_events
from perf_offcpu.analysis.task_times import tasks_profile, with_tasks
from perf_offcpu.collect.counters import task_event, task_sample
from perf_offcpu.collect.events.evsels import Support
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.go import goroutines
from perf_offcpu.collect.go.goroutines import GoroutineReader, Reader
from perf_offcpu.collect.python.memory import UnreadableError
from perf_offcpu.convert.folded import folded_totals
from perf_offcpu.convert.registry import Options
from perf_offcpu.decode.account import CollectorAccount
from perf_offcpu.losses import GO_UNKNOWN, GOROUTINES_UNREAD, Losses
from perf_offcpu.model.recording import EventLoop, LoopTask

SIZE, TABLE, LIST, G, STACK, TEXTS = 1 << 16, 0, 256, 1024, 8192, 4096
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="offsets are those of x86-64")


class Image:
    """A program of Go 1.27 with three goroutines in memory of this process; its functions have no names."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(SIZE)
        self.base = ctypes.addressof(self.memory)
        self.put(TABLE, 0, 0, 0, 0, 200, 200, 200, 200, 128)  # no functions
        self.put(LIST, self.base + LIST + 64, 3, 3)
        for number in range(3):
            self.put(LIST + 64 + 8 * number, self.base + G + 256 * number)
            low = self.base + STACK + 1024 * number
            self.goroutine(number, low=low, sp=low + 512, bp=low + 520, status=4)
            self.put(STACK + 1024 * number + 520, low + 600, 0x1000 + number)
            self.put(STACK + 1024 * number + 600, 0, 0x2000)
        self.put(TEXTS + 16 * 7, self.base + TEXTS + 2048, 6)
        struct.pack_into("6s", self.memory, TEXTS + 2048, b"select")
        self.program = {"minor": 27, "allgs": self.base + LIST, "reasons": self.base + TEXTS, "table": self.base}
        self.program |= {"text": 0, "data": 0}

    def put(self, offset: int, *words: int) -> None:
        struct.pack_into(f"<{len(words)}Q", self.memory, offset, *words)

    def goroutine(self, number: int, *, low: int, sp: int, bp: int, status: int) -> None:
        place = G + 256 * number
        self.put(place, low, low + 1024)
        self.put(place + 56, sp, 0xABC)
        self.put(place + 96, bp)
        self.put(place + 144, status, number, 0, 0, 7)

    def read(self) -> tuple[int, int, dict[tuple[str, tuple[str, ...]], int]]:
        moved, unread, stacks = Reader(os.getpid(), self.program).read()
        return moved, unread, {stack: number for stack, (number, _) in stacks.items()}


@needs_x86
def test_goroutines_of_made_up_memory() -> None:
    image = Image()
    three = ("", "", "", "[truncated]")
    assert image.read() == (0, 0, {("select", three): 3})
    for status, reason in {1: "runnable", 9: "preempted", 0x1004: "select"}.items():
        image.goroutine(0, low=image.base + STACK, sp=image.base + STACK + 512, bp=0, status=status)
        assert image.read()[2] == {("select", three): 2, (reason, ("", "[truncated]")): 1}
    for status in (0, 2, 3, 6, 8):  # it has a thread, or is none
        image.goroutine(0, low=image.base + STACK, sp=image.base + STACK + 512, bp=0, status=status)
        assert image.read() == (0, 0, {("select", three): 2})


@needs_x86
def test_hostile_memory_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image()
    low = image.base + STACK
    image.goroutine(0, low=low, sp=low + 512, bp=low + 520, status=4)
    image.put(STACK + 520, low + 520, 1)  # a circle
    image.put(LIST + 64 + 8, 8)  # unmapped
    image.goroutine(2, low=0, sp=2**63, bp=2**64 - 8, status=4)
    assert image.read() == (0, 2, {("select", ("", "", "[truncated]")): 1})
    image.put(LIST + 8, 2**60)
    with contextlib.suppress(UnreadableError):  # where no memory follows; else its words are no goroutines
        assert image.read()[1] > 2**31
    monkeypatch.setattr(goroutines, "_MOST_GOROUTINES", 3)
    assert image.read()[1] == 2**31 + 2
    for _ in range(300):
        for _ in range(20):
            image.put(
                random.randrange(SIZE // 8) * 8, random.choice((0, 1, 8, 2**31, 2**60, 2**64 - 1, low, image.base))
            )
        try:
            moved, unread, stacks = image.read()
            assert moved == 0 and len(stacks) <= 3 and all(len(names) <= 66 for _, names in stacks)
        except UnreadableError:
            pass


def test_sums_payloads_and_what_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goroutines, "_MOST_STACKS", 2)
    lost, loops = Losses(), CollectorAccount()
    reader = GoroutineReader(lost)
    reader.add(8, (1, 2), None)
    places = (0xABC0, 2**64 - 128, 0xABC8)  # the second is PERF_CONTEXT_KERNEL
    stacks = {("sleep", ("a", "m")): (1, places), ("select", ("b" * 9999, "m")): (1, ()), ("select", ("c",)): (5, ())}
    for begin in (10, 20, 30):
        reader.add(7, (begin, begin + 10), (0, 1, stacks))
    payloads, addresses = zip(*(readings := reader.take()), strict=True)
    assert addresses == (places, ())
    words = np.frombuffer(task_sample(task_event(Support()), readings[0]), np.uint64).tolist()
    begin = words.index(CallchainContext.USER)
    assert words[begin - 2 : begin + 3] == [30, 3, CallchainContext.USER, *places[::2]]  # period, length
    loops.take(payloads, NATIVE, lost)
    (loop,) = loops.event_loops()  # what weighs the same is one reading
    assert loop[:5] == (7, 7, 10, 40, 30) and reader.take() == []
    assert [(task.name, task.awaits) for task in loop.tasks] == [("goroutines", "sleep"), ("goroutines", "select")]
    assert loop.tasks[0].frames == (("a", "", 0), ("m", "", 0)) and len({task.address for task in loop.tasks}) == 2
    assert lost == {GO_UNKNOWN: 1, GOROUTINES_UNREAD: 3 * 6}


ROOT = "main.main.func1"
MUTEX = ("runtime.gopark", "sync.runtime_SemacquireMutex", "sync.(*Mutex).lockSlow", "sync.(*Mutex).Lock", "main.save")
PARKED = (
    (7, 3000, "chan receive", ("runtime.chanrecv1", "example.com/a.worker", ROOT)),
    (7, 1000, "semacquire", (*MUTEX, ROOT)),
    (7, 6000, "IO wait", ("internal/poll.(*FD).Read", "net.(*netFD).Read", "net/http.(*conn).serve")),
    (7, 9000, "finalizer wait", ("runtime.gopark", "runtime.runfinq")),
    (9, 9, "sleep", ("time.Sleep", ROOT)),
)


def test_goroutines_are_shown_next_to_threads_and_never_added() -> None:
    profile = ProfileBuilder(meta={"arch": "x86_64"}).sample("app", ["main"], 50, tid=7, pid=7).build()
    assert goroutine_rows(profile) == []
    loops = []
    for number, (pid, ns, waits_for, names) in enumerate(PARKED):
        frames = tuple((name, "", 0) for name in names)
        task = LoopTask(1 + number, GOROUTINES, waits_for, 0, frozenset(), frozenset(), frames)
        loops.append(EventLoop(pid, pid, 5000, 6000 + 1000 * (number % 2), ns, (task,)))
    profile = replace(profile, loops=tuple(loops))
    rows = goroutine_rows(profile)
    assert [row[2:] for row in rows] == [
        ("IO wait", "net/http.(*conn).serve", 6000, 2, 60),
        ("chan receive", "example.com/a.worker", 3000, 1, 30),
        ("sync.Mutex.Lock", "main.save", 1000, 1 / 3, 10),
    ]
    assert goroutine_sentences(rows) == [
        "goroutines of app 7 that wait: 2 in IO wait in net/http.(*conn).serve (60 %), 1 in chan receive in "
        "example.com/a.worker (30 %), 0.333 in sync.Mutex.Lock in main.save (10 %)"
    ]
    assert sum(folded_totals(profile, Options()).values()) == 50
    totals = folded_totals(tasks_profile(profile), Options())
    assert [ns for stack, ns in totals.items() if stack.endswith("runtime.gopark;[sync.Mutex.Lock]")] == [1000]
    assert totals["runtime.runfinq;runtime.runfinq;runtime.gopark;[finalizer wait]"] == 9000
    assert sum(totals.values()) == sum(ns for _, ns, *_ in PARKED)

    both = with_tasks(profile)
    both.check()
    ns_of_events = np.bincount(both.samples.evsel, both.samples.period).tolist()
    assert dict(zip([event.name for event in both.evsels], ns_of_events, strict=True)) == {
        "offcpu-time": 50, "cpu-clock": 0, "offcpu-task": sum(totals.values()),
    }  # fmt: skip
    assert folded_totals(select_events(both, ["offcpu-task"]), Options()) == totals
