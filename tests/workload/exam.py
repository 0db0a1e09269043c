# SPDX-License-Identifier: Apache-2.0
"""Designs of waits as exam.cpp has them, in Python: threads and processes named by design and part."""

import asyncio
import concurrent.futures
import fcntl
import multiprocessing
import os
import queue
import select
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

# A slow machine needs longer times to do the same.
SLOWER = min(float(os.environ.get("PERF_OFFCPU_TEST_PATIENCE", "1")), 10)
HOLD_S, ROUNDS = 0.04 * SLOWER, 4


def named(comm: str) -> None:
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
        file.write(comm)


def part(comm: str, work: Callable[..., object], *rest: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: (named(comm), work(*rest)))
    thread.start()
    return thread


def hold(lock: AbstractContextManager[Any]) -> None:
    for _ in range(ROUNDS):
        with lock:
            time.sleep(HOLD_S)
        time.sleep(0.001 * SLOWER)


def contend(comm: str, lock: AbstractContextManager[Any]) -> list[threading.Thread]:
    return [part(comm, hold, lock) for _ in range(3)]


def hold_in_process(comm: str, lock: AbstractContextManager[Any]) -> None:
    named(comm)
    hold(lock)


def serve(comm: str, items: Any) -> list[threading.Thread]:
    def work() -> None:
        while items.get():
            pass

    workers = [part(comm, work) for _ in range(2)]

    def bring() -> None:
        for _ in range(2 * ROUNDS):
            time.sleep(HOLD_S)
            items.put(1)
        items.put(0)
        items.put(0)

    return [*workers, part("other", bring)]


def use_pool() -> None:
    with concurrent.futures.ThreadPoolExecutor(2, initializer=named, initargs=("py-pool",)) as pool:
        for _ in range(2 * ROUNDS):
            time.sleep(HOLD_S)
            pool.submit(int)


def lock_file(comm: str, path: str) -> None:
    named(comm)
    with open(path, "r+b") as file:
        for _ in range(ROUNDS):
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(HOLD_S)
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.001 * SLOWER)


def take_items(comm: str, items: Any) -> None:
    named(comm)
    while items.get():
        pass


def bring_items(items: Any) -> None:
    for number in (*range(ROUNDS, 0, -1), 0):
        time.sleep(HOLD_S)
        items.put(number)


async def contend_tasks() -> None:
    lock = asyncio.Lock()

    async def use() -> None:
        async with lock:
            await asyncio.sleep(HOLD_S)

    await asyncio.gather(*(use() for _ in range(ROUNDS)))


def wait_twice(meeting: threading.Barrier, late_s: float) -> None:
    for _ in range(ROUNDS):
        time.sleep(late_s)
        meeting.wait()


fork = multiprocessing.get_context("fork")
shared, semaphore, items = fork.Lock(), fork.Semaphore(), fork.Queue()
file = tempfile.NamedTemporaryFile(prefix="exam-")  # noqa: SIM115
processes = [
    *(fork.Process(target=hold_in_process, args=["py-mp-lock", shared]) for _ in range(3)),
    *(fork.Process(target=hold_in_process, args=["py-mp-semaphor", semaphore]) for _ in range(3)),
    *(fork.Process(target=lock_file, args=["py-flock", file.name]) for _ in range(3)),
    fork.Process(target=take_items, args=["py-mp-queue", items]),
]
for process in processes:
    process.start()
event, barrier = threading.Event(), threading.Barrier(2)
ours, other = socket.socketpair(socket.AF_UNIX)
server = socket.create_server(("127.0.0.1", 0))
threads = [
    *contend("py-lock", threading.Lock()),
    *contend("py-rlock", threading.RLock()),
    *contend("py-semaphore", threading.Semaphore()),
    *contend("py-condition", threading.Condition()),
    *serve("py-queue", queue.Queue()),
    *serve("py-simple-queue", queue.SimpleQueue()),
    part("other", use_pool),
    part("py-event", event.wait),
    part("py-sleep", time.sleep, 0.2),
    part("py-select", select.select, [], [], [], 0.2),
    part("py-subprocess", subprocess.run, ["sleep", str(0.2 * SLOWER)]),
    part("py-asyncio", asyncio.run, asyncio.sleep(5 * HOLD_S)),
    part("py-async-lock", asyncio.run, contend_tasks()),
    part("py-barrier", wait_twice, barrier, 0),
    part("other", wait_twice, barrier, HOLD_S),
    part("py-recv", ours.recv, 1),
    part("py-accept", server.accept),
    part("other", bring_items, items),
]
named("py-join")
time.sleep(2 * HOLD_S)
event.set()
other.send(b"x")
client = socket.create_connection(server.getsockname())
for thread in threads:
    thread.join()
for process in processes:
    process.join()
