# SPDX-License-Identifier: Apache-2.0
"""Designs of waits as exam.cpp has them, in Python: threads and processes named by design and part."""

import asyncio
import concurrent.futures
import multiprocessing
import queue
import select
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

HOLD_S, ROUNDS = 0.04, 4


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
        time.sleep(0.001)


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


fork = multiprocessing.get_context("fork")
shared = fork.Lock()
processes = [fork.Process(target=hold_in_process, args=["py-mp-lock", shared]) for _ in range(3)]
for process in processes:
    process.start()
event = threading.Event()
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
    part("py-subprocess", subprocess.run, ["sleep", "0.2"]),
    part("py-asyncio", asyncio.run, asyncio.sleep(0.2)),
]
named("py-join")
time.sleep(HOLD_S)
event.set()
for thread in threads:
    thread.join()
for process in processes:
    process.join()
