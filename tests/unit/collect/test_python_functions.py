# SPDX-License-Identifier: Apache-2.0
"""Python functions from the memory of a real process, whole and damaged."""

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.program import started

from perf_offcpu.collect.existing.maps import parse_maps, read_maps
from perf_offcpu.collect.python import functions
from perf_offcpu.collect.python import offsets as python_offsets
from perf_offcpu.collect.python.functions import FunctionReader, Functions, read_functions
from perf_offcpu.collect.python.memory import Memory, UnreadableError
from perf_offcpu.collect.python.offsets import PYTHON, Section, read_runtime

PROGRAM = """
import time
def deep(number):
    return deep(number - 1) if number else sorted([number], key=lambda _: print(flush=True) or time.sleep(100))
deep(40)
"""


def offsets_of(pid: int) -> dict[str, int]:
    for mapping in parse_maps(read_maps(pid)):
        if PYTHON.search(mapping.name):
            with open(mapping.name, "rb") as file:
                runtime = read_runtime(file.fileno(), mapping.name)
            place = Section(*runtime["section"]).place_in(mapping.start, mapping.offset) if runtime else None
            if runtime and place is not None and runtime["offsets"]:
                offsets: dict[str, int] = runtime["offsets"]
                return offsets | {"interpreters": place + offsets["interpreters"]}
    raise AssertionError("no interpreter")


@pytest.fixture(scope="module")
def pid() -> Iterator[int]:
    """A process in forty functions of Python, and one more that C calls."""
    executable = str(Path(sys.executable).resolve())
    with started(executable, "-c", PROGRAM) as (process, _):
        time.sleep(0.2)
        yield process.pid


def test_functions_with_lines_and_calls_leaf_first(pid: int) -> None:
    count, found = read_functions(pid, FunctionReader(pid, offsets_of(pid)))
    assert count > 0
    expected = [("deep.<locals>.<lambda>", 4), *[("deep", 4)] * 41, ("<module>", 5)]
    assert [function[::2] for function in found] == expected
    assert [call for *_, call in found] == [2] + [1] * 42


@pytest.mark.parametrize(("thread_id", "is_read"), [(152, True), (248, True), (256, False)])
def test_the_state_of_a_thread_is_read_up_to_256_bytes(thread_id: int, is_read: bool) -> None:
    """A table of offsets of CPython 3.13, whose other offsets are those of its release."""
    head = bytearray(800)
    head[:8], head[10] = b"xdebugpy", 13
    offsets = {168: 8, 184: 72, 192: thread_id, 232: 8, 248: 56, 264: 70, 280: 112, 296: 128, 304: 136, 312: 68}
    for place, offset in offsets.items():
        head[place : place + 8] = offset.to_bytes(8, "little")
    assert bool(python_offsets.offsets_of(bytes(head), 13)) == is_read


def test_versions_whose_threads_tell_no_id_are_not_read(pid: int) -> None:
    with pytest.raises(UnreadableError):
        read_functions(pid, FunctionReader(pid, offsets_of(pid) | {"minor": 10}))


def test_damaged_memory_ends_the_reading_and_is_bounded(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of the pages that were needed are exchanged: zeros, all bits, addresses of other things, and their own."""
    monkeypatch.setattr(functions, "_MOST_FRAMES", 200)
    offsets, chance, results = offsets_of(pid), random.Random(7), set[int]()
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        sound = Memory(file.fileno(), float("inf"))
        expected: Functions = FunctionReader(pid, offsets).functions_in(sound, pid)
        pages = {number: os.pread(file.fileno(), 4096, number * 4096) for number in sound.pages}
    for _ in range(1500):
        number = chance.choice(sorted(pages))
        content, place = bytearray(pages[number]), 8 * chance.randrange(512)
        words = (0, 2**64 - 1, 2**63, number * 4096 + place, chance.choice(sorted(pages)) * 4096 + 8)
        content[place : place + 8] = chance.choice(words).to_bytes(8, "little")
        memory = Memory(-1, float("inf"))
        memory.pages = pages | {number: bytes(content)}
        try:
            found = FunctionReader(pid, offsets).functions_in(memory, pid)
        except UnreadableError:
            results.add(-1)
        else:
            results.add(len(found))
            assert len(found) <= 200 and all(len(name) <= 1000 for name, *_ in found)
    assert {-1, len(expected)} < results
