# SPDX-License-Identifier: Apache-2.0
"""Tasks of event loops, read from a made-up memory; answers of JVMs: how much is kept, and how it is written."""

import itertools
import mmap
import os
import random
import re
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest.mock import Mock, patch

import pytest
from builders.program import started

from perf_offcpu.abi import jit_map
from perf_offcpu.abi.counters import JIT_MAP
from perf_offcpu.abi.jit_map import MOST_SPLITS, borders_of, lines_between, unsure_between
from perf_offcpu.abi.records import RecordType
from perf_offcpu.collect import jvms
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.jvms import Jvms, jit_payloads
from perf_offcpu.collect.python import event_loops, loop_tasks
from perf_offcpu.collect.python.event_loops import LoopReader, find_tables, read_loop, task_payloads
from perf_offcpu.collect.python.loop_tasks import Loop, Tables, Task
from perf_offcpu.collect.python.memory import UnreadableError
from perf_offcpu.collect.python.offsets import Section
from perf_offcpu.collect.python.older_loops import OlderLoop
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.task_readings import TaskReadings
from perf_offcpu.decode.account import read_loop_tasks
from perf_offcpu.errors import LayoutError
from perf_offcpu.losses import JVM_UNASKED, Losses
from perf_offcpu.objects.perf_map import parse_perf_map

SIZE = 16384
VICTIM = """
import ctypes, sys
memory = ctypes.create_string_buffer({size})
print(ctypes.addressof(memory), flush=True)
sys.stdin.read()
"""
INTERPRETER, THREAD, TASK, CORO, CODE, TYPES, NAME, LINES, NAMES, LOCK, FUNCTION, SET, DEBUG = range(1024, 14336, 1024)
TYPE_TEXTS = ("_asyncio.Task", "coroutine", "str", "int", "function", "_asyncio.FutureIter", "_asyncio.Future")


def image(base: int, pid: int) -> bytearray:
    """Return memory at `base` with a runtime, and an event loop of thread `pid` with a task in `Lock.acquire`."""
    memory = bytearray(SIZE)

    def put(offset: int, *words: int) -> None:
        struct.pack_into(f"<{len(words)}Q", memory, offset, *words)

    offsets = {
        "interpreters": 800, "next_interpreter": 0, "threads": 8, "next_thread": 8, "native_id": 16, "code": 0,
        "instruction": 56, "locals": 80, "stack_top": 64, "file": 112, "name": 136, "lines": 144, "first_line": 68,
        "local_names": 96, "instructions": 208, "type": 8, "type_name": 24, "type_flags": 32, "tuple_size": 16,
        "set_table": 40, "set_mask": 32, "bytes_size": 16, "bytes": 32, "frame": 72, "frame_state": 67, "next": 0,
    }  # fmt: skip
    for name, place in loop_tasks._OFFSETS.items():
        put(place, offsets[name])
    memory[:8], memory[8:12] = b"xdebugpy", bytes((0xF0, 10, 14, 3))
    put(800, base + INTERPRETER)
    put(INTERPRETER, 0, base + THREAD)
    put(DEBUG, 200, 32, 40, 48, 49, 56, 64, 0, 0, 0, 32, 40, 48)
    put(THREAD, 0, 0, pid, 0, base + LOCK, 0, base + TASK + 64)
    put(TASK, 1, base + TYPES, 0, 0, base + NAME, base + SET, 0x101, base + CORO, base + THREAD + 48)
    for number, text in enumerate(TYPE_TEXTS):
        put(TYPES + 64 * number, 0, 0, 0, base + TYPES + 512 + 32 * number, (text == "int") << 24)
        memory[TYPES + 512 + 32 * number : TYPES + 512 + 32 * number + len(text)] = text.encode()
    put(CORO, 1, base + TYPES + 64)
    memory[CORO + 67] = 255
    frame = CORO + 72
    put(frame, base + CODE)
    put(frame + 56, base + CODE + 208 + 4, base + frame + 80 + 32)
    put(frame + 80, base + LOCK, base + FUNCTION, base + LOCK, base + LOCK + 256)
    put(LOCK + 256, 1, base + TYPES + 320, base + LOCK + 512)
    put(LOCK + 512, 1, base + TYPES + 384)
    put(CODE + 112, base + NAME + 128, 0, 0, base + NAME + 256, base + LINES)
    put(CODE + 96, base + NAMES)
    struct.pack_into("<I", memory, CODE + 68, 40)
    put(NAMES, 1, 0, 1)
    put(LINES, 1, 0, 4)
    memory[LINES + 32 : LINES + 36] = bytes((0x80 | 10 << 3 | 1, 0, 0, 0x80 | 11 << 3))
    put(FUNCTION, 1, base + TYPES + 256, 0, 0, base + NAME + 384)
    put(SET, 0, 0, 0, 0, 1, base + SET + 64)
    put(SET + 64, 0, 0, base + TASK, 7)
    for number, content in enumerate((b"first", b"/lib/asyncio/locks.py", b"Lock.acquire", b"__aexit__")):
        put(NAME + 128 * number, 1, base + TYPES + 2 * 64, len(content), 0, 1 << 2 | 1 << 5 | 1 << 6)
        memory[NAME + 128 * number + 40 : NAME + 128 * number + 40 + len(content)] = content
    return memory


@contextmanager
def victim() -> Iterator[tuple[int, int]]:
    """Yield (pid, address of SIZE bytes of its memory) of a process that waits."""
    with started(sys.executable, "-S", "-c", VICTIM.format(size=SIZE)) as (child, line):
        yield child.pid, int(line)


OLDER = """
import asyncio
async def main():
    asyncio.get_running_loop().call_later(0.1, print, 1)
    await asyncio.gather(asyncio.sleep(1000), asyncio.sleep(1000))
asyncio.run(main())
"""


def outcomes_of_damage(reader: type[Loop], fd: int, tables: Tables) -> set[tuple[bool, int]]:
    """Return (whether all tasks could be read, number of tasks) of readings of a memory in which words are damaged."""
    outcomes, places, known, generator = set[tuple[bool, int]](), set[int](), list[int](), random.Random(7)

    class Traced(reader):  # type: ignore[misc,valid-type]
        def read(self, address: int, size: int) -> bytes:
            content = bytes(super().read(address, size))
            places.update(range(address & -8, address + size, 8))
            return content

    for number in range(500):
        known = known or sorted(places)
        damaged = generator.sample(known, generator.choice((1, 1, 1, 2, 5)) if number else 0)
        good = {place: os.pread(fd, 8, place) for place in damaged}
        for place in damaged:
            inside = generator.choice(known)
            words = (0, inside, inside + 64, 2**64 - 1, 2**63, 2**31, 8, generator.getrandbits(64))
            os.pwrite(fd, generator.choice(words).to_bytes(8, "little"), place)
        loop, tasks, is_whole = Traced(fd, time.process_time() + 1, ()), list[Task](), False
        with suppress(UnreadableError):
            for thread in loop.threads(tables).values():
                tasks.extend(loop.tasks(thread))
            is_whole = True
        outcomes.add((is_whole, len(tasks)))
        payloads = task_payloads((7, 8), (9, 10, 11), tasks)
        assert len(tasks) <= loop_tasks.MOST_TASKS and max(map(len, payloads)) < 65000
        assert sum(len(read_loop_tasks(payload, NATIVE, {})[1]) for payload in payloads) == len(tasks)
        for place, content in good.items():
            os.pwrite(fd, content, place)
    return outcomes


def test_memory_that_is_damaged() -> None:
    fd, base = os.memfd_create("memory"), 1 << 20
    os.pwrite(fd, image(base, 7), base)
    tables, loop = Tables(14, base, base + DEBUG), Loop(fd, time.process_time() + 1, ())
    (task,) = loop.tasks(loop.threads(tables)[7])
    lock, frames = base + LOCK, [("Lock.acquire", "/lib/asyncio/locks.py", 41)]
    assert task == (base + TASK, "first", "_asyncio.Future", lock, [base + TASK], [lock], frames)
    assert outcomes_of_damage(Loop, fd, tables) >= {(True, 0), (False, 0), (True, 1)}


@pytest.mark.kernel
@pytest.mark.beside
def test_memory_of_an_older_version_that_is_damaged() -> None:
    """The mapped files of a process are for root."""
    pages, fd = set[int](), os.memfd_create("memory")
    with started("/usr/bin/python3", "-uc", OLDER) as (child, _):
        tables = find_tables(child.pid)
        assert tables is not None and read_loop(child.pid, child.pid, tables, pages)
        with open(f"/proc/{child.pid}/mem", "rb", buffering=0) as file:
            for number in pages:
                os.pwrite(fd, os.pread(file.fileno(), 4096, number * 4096), number * 4096)
    outcomes = outcomes_of_damage(OlderLoop if tables.minor < 14 else Loop, fd, tables)
    assert outcomes >= {(True, 0), (False, 0), (True, 3), (False, 1)}


def test_long_tables_of_tasks() -> None:
    frames = [("\u0394" * 250, "\U0001f600" * 250, 10**9 - 1)] * 64
    task: Task = (2**64 - 1, "\0\n" * 125, "x", 0, [2**64 - 1] * 64, [2**64 - 1] * 64, frames)
    payloads = task_payloads((7, 8), (9, 10, 11), [task] * 50)
    assert max(map(len, payloads)) < 65000
    tasks = [row for payload in payloads for row in read_loop_tasks(payload, NATIVE, {})[1]]
    assert len(tasks) == 50 and tasks[0].name == r"\x00\n" * 125 and 5 < len(tasks[0].frames) < 64
    (*_, weight_ns), _ = read_loop_tasks(payloads[0], NATIVE, {})
    assert weight_ns == 11 and {len(read_loop_tasks(payload, NATIVE, {})[0]) for payload in payloads} == {5}
    cut = payloads[0][:-40]
    for damaged in (cut, cut[:20]):
        with pytest.raises(LayoutError):
            read_loop_tasks(damaged, NATIVE, {})


def test_a_reading_stands_for_the_time_since_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks_of, readings = dict[int, int](), list[tuple[int, ...]]()
    with victim() as (pid, base):
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), image(base, pid), base)
        monkeypatch.setattr(event_loops, "find_tables", {pid: Tables(14, base, base + DEBUG)}.get)
        reader = TaskReadings(LoopReader, 5, lambda: {pid, os.getpid()}, Losses())
        reader.start()
        while len(readings) < 5:
            for payload, _ in reader.take():
                ids, tasks = read_loop_tasks(payload, NATIVE, {})
                readings.append(ids)
                tasks_of[ids[3]] = len(tasks)
                if len(readings) == 3:
                    reader.stop()  # which reads once more
                    stopped_ns = now_ns()
                    reader.start()
                    started_ns = now_ns()
            time.sleep(0.01)
        reader.stop()
    pids, tids, _, times, weights = zip(*readings, strict=True)
    assert {*pids, *tids} == {pid} and 1 in tasks_of.values() and {*tasks_of.values()} <= {0, 1}
    steps = [after - before for before, after in itertools.pairwise(times)]
    assert weights[1:4] == (*steps[:3],)
    assert times[4] - started_ns <= weights[4] <= times[4] - stopped_ns < steps[3]


def test_section_of_a_file_whose_segments_share_a_page() -> None:
    section = Section(0x5300, 0, [(0, 0x1234, 0x1000), (0x1234, 0x2000, 0x3234)])
    places = [section.place_in(start, offset) for start, offset in ((0x71000, 0), (0x73000, 0x1000), (0x74000, 0x2000))]
    assert places == [0x75300] * 3 and section.place_in(0x74000, 0x4000) is None


def test_section_of_a_file_on_a_kernel_with_larger_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linked for pages of 64 KB; mapped in pages of 16 KB, each segment begins with an end of the one before."""
    monkeypatch.setattr(mmap, "PAGESIZE", 16384)
    section = Section(0x25300, 0, [(0, 0x12340, 0), (0x12340, 0x2000, 0x22340)])
    assert [section.place_in(start, offset) for start, offset in ((0x700000, 0), (0x720000, 0x10000))] == [0x725300] * 2


@pytest.mark.kernel
@pytest.mark.beside
def test_process_without_event_loops() -> None:
    with victim() as (pid, _):
        assert find_tables(pid) is None
    with pytest.raises(OSError, match="No such"):
        find_tables(2**22 + 1)


def asked(monkeypatch: pytest.MonkeyPatch, answers: dict[int, bytes], said: list[str], lost: Losses) -> Jvms:
    """Return what asking processes with these answers gives; all of them exist."""
    monkeypatch.setattr(jvms, "_ask_one", answers.__getitem__)
    monkeypatch.setattr(jvms, "by_turns", list)
    follower = Jvms(said.append, lost, lambda: set(answers), Mock(), asks=True, says_ended=True)
    follower._due = dict.fromkeys(answers, (0.0, 2.0))
    follower.ask_all()
    return follower


def test_maps_are_written_in_whole_lines() -> None:
    text = b"".join(b"%x 10 void a.B.method%d(int)\n" % (4096 + 16 * number, number) for number in range(5000))
    parts = [bytes(JIT_MAP.unpack(part, NATIVE)["text"]).rstrip(b"\0") for part in jit_payloads(7, text)]
    assert b"".join(parts) == text and all(part.endswith(b"\n") for part in parts) and len(parts) > 2


def names_in(text: bytes) -> dict[int, str]:
    table = parse_perf_map(text)
    return {int(table.start[row]): table.name(row) for row in range(len(table))}


def test_code_of_a_jvm_has_the_names_of_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as nobody knows which function was there, it has no name."""
    pid, first = os.getpid(), b"1000 10 a\n0x2000 0x10 b\n4000 10 e\n:frame 2000 20 4\n:frame 4000 20 4\n7000 8 g\n"

    def at(unloaded: int) -> bytes:
        return b":at %d %d\n" % (now_ns() + 10**6, unloaded)

    answers = {pid: at(3) + first}
    follower = asked(monkeypatch, answers, [], Losses())
    answers[pid] = at(3) + first + b"5000 10 f\n:method 70 10 m\n"
    follower.ask_all()
    assert not borders_of(follower.maps[pid]), "lines that are added hold for all times"
    begin_ns = now_ns()
    second = (
        b"1000 10 a\n2008 10 c\n4000 10 e\n:frame 2008 40 4\n:frame 4000 30 4\n5000 10 f\n:method 70 10 m\n8000 8 h\n"
    )
    answers[pid] = at(3) + second + b":frame 8000 50 4\n"
    follower.ask_all()
    answers[pid] = at(4) + second + b"9000 8 i\n"
    follower.ask_all()
    text = follower.maps[pid]
    borders = borders_of(text)
    assert borders[0] < begin_ns < borders[1] == borders[2] < borders[3] and text.count(b":apart") == 1
    parts = [lines_between(text, number) for number in range(5)]
    always = {0x1000: "a", 0x4000: "e", 0x5000: "f"}
    later = always | {0x2008: "c", 0x8000: "h"}
    assert [names_in(part) for part in parts] == [
        always | {0x2000: "b", 0x7000: "g"},
        always | {0x7000: "g", 0x8000: "h"},
        *(later, later, later | {0x9000: "i"}),
    ]
    unsure = [names_in(unsure_between(text, number)) for number in range(5)]
    assert unsure == [{}, {0x7000: "g", 0x8000: "h"}, {}, {}, {}], "nothing is guessed where classes were unloaded"
    frames = [{int(start, 16) for start in re.findall(rb"(?m)^:frame (\w+)", part)} for part in parts]
    assert frames == [{0x2000, 0x4000}, {0x8000}, {0x2008, 0x4000, 0x8000}, {0x2008, 0x4000}, {0x2008, 0x4000}]
    assert all(b":method 70" in part for part in parts)
    for number in range(MOST_SPLITS):
        answers[pid] = b"1000 10 a\n%x 10 g%d\n" % (0x2001 + number % 8, number)
        follower.ask_all()
    assert len(borders_of(follower.maps[pid])) == 4 and names_in(lines_between(follower.maps[pid], 0)) == {}
    assert names_in(lines_between(follower.maps[pid], 4))[0x2008] == f"g{number}"
    monkeypatch.setattr(jit_map, "_MOST_WORK", 5 * len(follower.maps[pid]))
    answers[pid] = b"1000 10 a\n2000 10 j\n"
    follower.ask_all()
    assert len(borders_of(follower.maps[pid])) == 2 and names_in(lines_between(follower.maps[pid], 0)) == {}
    monkeypatch.setattr(jvms, "_MOST_KEPT", 3 * len(answers[pid]))
    answers[pid] = b"6000 10 f\n" * 5
    follower.ask_all()
    assert b" a\n" not in follower.maps[pid]


def test_a_jvm_is_asked_first_when_it_is_a_second_old() -> None:
    with subprocess.Popen(["sleep", "9"]) as young, patch.object(Jvms, "is_of_needle", return_value=True):
        follower = Jvms(Mock(), Losses(), set, Mock(), asks=True, says_ended=True)
        for pid in (os.getpid(), young.pid):
            follower.see_mapping(memoryview(struct.pack("=8xII", pid, pid)))
        young.kill()
    first, second = (when - time.monotonic() for when, _ in follower._due.values())
    assert first <= 0 and 0.3 < second <= 1


@pytest.mark.parametrize(("family", "said"), [((), 2), ((100,), 1)], ids=["all", "of a command"])
def test_jvms_of_others_that_end_soon_are_not_mentioned(family: tuple[int, ...], said: int) -> None:
    say = Mock()
    follower = Jvms(say, Losses(), set, Mock(), asks=True, says_ended=True)
    follower.family.update(family)
    follower.see_task(RecordType.FORK, memoryview(struct.pack("=8xIIII", 101, 100, 101, 100)))
    for pid in (101, 200):
        follower._due[pid] = time.monotonic() + 1, 1
        follower.see_task(RecordType.EXIT, memoryview(struct.pack("=8xIIII", pid, 1, pid, 1)))
    follower.ask_all()
    assert f"asked for names: {said} " in say.call_args.args[0]


def test_jvms_that_compile_are_asked_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.getpid()
    answers = {pid: b":at 0 3\n" + b"".join(b"%x 10 a\n" % (16 * number) for number in range(100))}
    follower, pauses = asked(monkeypatch, answers, [], Losses()), list[float]()
    for more in (50, 1, 50, 0, 0):
        pauses.append(follower._due[pid][1])
        answers[pid] += b"".join(b"%x 10 b\n" % (len(answers[pid]) * 16 + number) for number in range(more))
        follower.ask_all()
    first = pauses[0]
    assert [*pauses, follower._due[pid][1]] == [first, first, 2 * first, 2 * first, 4 * first, 8 * first]


def test_all_maps_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many processes a user starts that answer like JVMs."""
    monkeypatch.setattr(jvms, "_MOST_KEPT", 1000)
    said, lost = list[str](), Losses()
    pid = os.getpid()
    lines = b"".join(b"%x 10 a\n" % (0x1000 + 16 * number) for number in range(60))
    follower = asked(monkeypatch, {pid: lines, pid + 1: lines, pid + 2: b"!why"}, said, lost)
    assert follower.maps.keys() == {pid}
    assert lost == {JVM_UNASKED: 2}
    assert [text.rpartition(": ")[2] for text in said] == ["the maps of others take all room", "why"]
