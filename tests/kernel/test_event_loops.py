# SPDX-License-Identifier: Apache-2.0
"""Tasks of asyncio's event loops: all that the program itself says of its tasks is in the recording."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from builders import program
from kernel.recorder import run, until

from perf_offcpu import losses
from perf_offcpu.model.recording import EventLoop, SampleFlag

PYENV = map(str, Path.home().glob(".pyenv/versions/3.1[23].*/bin/python3.1[23]"))
PYTHONS = ["/usr/bin/python3", *PYENV, *filter(shutil.which, ["python3.14"])]
"""Debian's own, 3.11 or 3.13, those of pyenv, and 3.14 (Debian sid: apt install python3.14)."""
pytestmark = [pytest.mark.beside, pytest.mark.long, pytest.mark.parametrize("python", PYTHONS)]

TASKS = """
import asyncio, json, random, sys, time
lock, other, slots, blocks = asyncio.Lock(), asyncio.Lock(), asyncio.Semaphore(2), asyncio.Event()

async def save():
    async with lock: raise AssertionError
async def slot():
    async with slots: await asyncio.Event().wait()
async def deep(depth, last):
    await (deep(depth - 1, last) if depth else last)
async def holder():
    async with lock:
        await asyncio.sleep(1000)
async def takes():
    await other.acquire()
    await asyncio.gather(save(), asyncio.Queue().get())
async def passes(function, thing, value):
    function(thing, await value)
async def items(queue):
    while True: yield await queue.get()
async def consumer(queue):
    async for item in items(queue): pass
async def blocker():
    await blocks.wait()
    time.sleep(1000)

def chain(task):
    coroutine, frames = task.get_coro(), []
    while hasattr(coroutine, "cr_frame"):
        frames.append((coroutine.cr_code.co_qualname, coroutine.cr_code.co_filename, coroutine.cr_frame.f_lineno))
        coroutine = coroutine.cr_await
    return frames[::-1]
def log():
    print(json.dumps({task.get_name(): chain(task) for task in asyncio.all_tasks()}), flush=True)
    if sys.argv[1:] == ["block"]: asyncio.get_running_loop().call_later(0.05, blocks.set)

async def main():
    asyncio.create_task(holder(), name="Holder")
    await asyncio.sleep(0.01)
    async with asyncio.TaskGroup() as group:
        for number in range(9): group.create_task(save(), name=f"save-{number}")
        for _ in range(5): group.create_task(slot())
        for number in range(30):
            group.create_task(deep(random.randrange(20), asyncio.Event().wait()), name=f"\u0394-{number}")
        group.create_task(takes(), name="takes")
        group.create_task(passes(print, lock, asyncio.Event().wait()), name="passes")
        group.create_task(consumer(asyncio.Queue()), name="consumer")
        group.create_task(blocker(), name="blocker")
        asyncio.get_running_loop().call_later(0.1, log)
asyncio.run(main())
"""
BLOCKS = """
import asyncio, time
async def waits(event): await event.wait()
async def main():
    event = asyncio.Event()
    tasks = [asyncio.create_task(waits(event)) for _ in range(7)]
    await asyncio.sleep(0.01)
    event.set()
    print(1, flush=True)
    time.sleep(1000)
asyncio.run(main())
"""
BUSY = "import asyncio\nasync def f():\n print(1, flush=True)\n while 1: await asyncio.sleep(1e-5)\nasyncio.run(f())"


CONVOY = """
import asyncio, json, random, time
lock, since, waited = asyncio.Lock(), {}, 0

async def save(number):
    global waited
    while True:
        since[number] = time.monotonic_ns()
        async with lock:
            waited += time.monotonic_ns() - since.pop(number)
            await asyncio.sleep(random.uniform(0.01, 0.1))
        await asyncio.sleep(random.uniform(0, 0.2))
async def main():
    async with asyncio.TaskGroup() as group:
        for number in range(6): group.create_task(save(number))
        while True:
            now = time.monotonic_ns()
            print(json.dumps([now, waited + sum(now - begin for begin in since.values())]), flush=True)
            await asyncio.sleep(0.02)
asyncio.run(main())
"""


def loop_of(pid: int, cwd: Path) -> EventLoop:
    (loop,) = run("-p", str(pid), "--duration", "0.5", "--task-rate", "0", cwd=cwd).recording.loops
    assert (loop.pid, loop.tid) == (pid, pid)
    return loop


def test_tasks_are_those_of_the_program_and_the_report_names_lock_and_holder(tmp_path: Path, python: str) -> None:
    with program.started(python, "-c", TASKS) as (child, line):
        loop = loop_of(child.pid, tmp_path)
    log = {name: tuple(map(tuple, frames)) for name, frames in json.loads(line).items()}
    tasks = {task.name: task for task in loop.tasks}
    assert len(tasks) == len(loop.tasks) == len(log) == 52 and loop.switch_out_ns > 0
    asynchronous = tasks.pop("consumer")  # the program cannot see through its generator
    assert [frame[0] for frame in asynchronous.frames] == ["Queue.get", "items", "consumer"]
    assert log.pop("consumer") and {name: task.frames for name, task in tasks.items()} == log
    main = tasks["Task-1"]
    awaited = {name for name, task in tasks.items() if main.address in task.awaited_by}
    assert awaited >= {"save-0", "takes", "blocker"}
    assert sum(tasks["takes"].address in task.awaited_by for task in tasks.values()) == 2  # by gather()
    assert main.address not in tasks["Holder"].awaited_by

    shown = program.run("report", "-i", "perf.data", cwd=tmp_path).stdout
    text = " ".join(shown.replace("\n#", "").split())
    # Neither the task that has it on its stack nor the one with another lock holds it.
    assert "10 tasks wait for asyncio.Lock in save, held by Holder (sleep in holder);" in text
    assert "; 3 tasks wait for asyncio.Semaphore in slot, held by Task-" in text
    assert "Idle besides" not in text and " 30 " in text
    (row,) = json.loads(program.run("report", "-i", "perf.data", "--json", cwd=tmp_path).stdout)["event_loops"]
    assert sum(group["tasks"] for group in row["waits"]) == 52
    (names,) = [group["names"] for group in row["waits"] if group["function"] == "items"]
    assert names == ["consumer"]


def test_task_that_blocks_the_loop_is_named(tmp_path: Path, python: str) -> None:
    with program.started(python, "-c", TASKS, "block") as (child, _):
        until(lambda: "nanosleep" in Path(f"/proc/{child.pid}/stack").read_text())
        loop = loop_of(child.pid, tmp_path)
    (task,) = [task for task in loop.tasks if task.awaits == "running"]
    assert task.name == "blocker" and task.frames[0][0] == "blocker"
    text = " ".join(program.run("report", "-i", "perf.data", "--summary", cwd=tmp_path).stdout.split())
    assert f"event loop of {os.path.basename(python)} {child.pid}: " in text and "blocker blocks it in blocker" in text


def test_tasks_that_a_coroutine_keeps_from_running_and_their_time(tmp_path: Path, python: str) -> None:
    with program.started(python, "-c", BLOCKS) as (child, _):
        loops = run("-p", str(child.pid), "--duration", "3", cwd=tmp_path).recording.loops
    text = program.run("report", "--summary", cwd=tmp_path).stdout.replace("\n#", "")
    assert "Task-1 blocks it in main, 7 ready tasks wait for it" in " ".join(text.split())
    document = json.loads(program.run("report", "--by", "task", "--json", cwd=tmp_path).stdout)
    groups = {tuple(row["values"]): row["weight"] for row in document["groups"]["rows"]}
    blocked = sum(loop.weight_ns for loop in loops if loop.tasks)
    assert groups == {("waits", "ready to run, held by main"): 7 * blocked, ("main", "blocks the loop"): blocked}
    assert blocked > 0


def test_loop_that_runs_all_the_time_is_read_or_counted(tmp_path: Path, python: str) -> None:
    with program.started(python, "-c", BUSY) as (child, _):
        recording = run("-p", str(child.pid), "--duration", "0.5", "--task-rate=0", cwd=tmp_path).recording
    tasks = [task.frames[-1][0] for loop in recording.loops for task in loop.tasks]
    is_blocked = recording.samples.has(SampleFlag.STILL_BLOCKED).any()
    assert tasks == ["f"] or not is_blocked or recording.losses[losses.EVENT_LOOP_UNREAD] == 1
    assert losses.BAD_SAMPLE not in recording.losses


def test_time_that_tasks_wait_for_a_lock_is_that_of_the_program(tmp_path: Path, python: str) -> None:
    with (tmp_path / "log").open("w") as log, subprocess.Popen([python, "-c", CONVOY], stdout=log) as child:
        until(lambda: (tmp_path / "log").stat().st_size > 0)
        loops = run("-p", str(child.pid), "--duration", "20", cwd=tmp_path).recording.loops
        child.kill()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()[:-1]]
    moments, waited = np.array(lines).T
    readings = [loop for loop in loops if loop.weight_ns and loop.tasks]
    assert len(readings) > 10
    ends = np.array([loop.read_ns for loop in readings])
    weights = np.array([loop.weight_ns for loop in readings])
    number = np.array([sum(task.frames[0][0] == "Lock.acquire" for task in loop.tasks) for loop in readings])
    truth = np.interp(ends, moments, waited) - np.interp(ends - weights, moments, waited)
    errors = number * weights - truth
    print(f"{len(readings)} readings, {errors.sum() / truth.sum():+.3f} of {truth.sum() / 1e9:.1f} s")
    assert abs(errors.sum()) < 3 * np.sqrt((errors**2).sum()) and abs(errors.sum()) < truth.sum() / 2

    document = json.loads(program.run("report", "--by", "task", "--json", cwd=tmp_path).stdout)
    groups = {tuple(row["values"]): row["weight"] for row in document["groups"]["rows"]}
    assert 0 < groups["save", "asyncio.Lock, held by sleep in save"] <= (number * weights).sum()
    lines = program.run("convert", "--by", "task", "--folded", "-o", "-", cwd=tmp_path).stdout.splitlines()
    folded = {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}
    assert sum(folded.values()) == sum(groups.values())
    acquired = [weight for stack, weight in folded.items() if "Lock.acquire" in stack]
    assert sum(acquired) == (number * weights).sum()
