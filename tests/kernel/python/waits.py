# SPDX-License-Identifier: Apache-2.0
"""Wait in Python functions of all kinds, and print of each wait where this program itself believes to be: a line of
JSON with thread, begin, end and [function, file, line], leaf first. Usage: waits.py SECONDS"""

import asyncio
import ctypes
import functools
import json
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

Items = queue.Queue[int | None]
SECONDS = float(sys.argv[1])
MOST = 128


def note(begin: int, _: None, end: int, frame: FrameType | None = None) -> None:
    stack = list[tuple[str, str, int]]()
    frame = frame or sys._getframe(1)
    while frame is not None and len(stack) < MOST:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        stack.append((name, os.path.basename(code.co_filename), frame.f_lineno))
        frame = frame.f_back
    os.write(1, json.dumps([threading.get_native_id(), begin, end, stack]).encode() + b"\n")


def nap(seconds: float = 0.003) -> None:
    note(time.monotonic_ns(), time.sleep(seconds), time.monotonic_ns())  # in one line, whose number is noted


class Thing:
    def __init__(self) -> None:
        nap()

    @property
    def value(self) -> int:
        nap()
        return 1

    def __lt__(self, other: object) -> bool:
        nap()
        return True


def generator() -> Iterator[int]:
    for number in range(2):
        nap()
        yield number


def replacement(_: re.Match[str]) -> str:
    nap()
    return "b"


def outer() -> list[None]:
    def inner(_: int) -> None:
        nap()

    return list(map(inner, generator()))


def recurse(depth: int) -> None:
    return recurse(depth - 1) if depth else nap()


def through_c(depth: int) -> None:
    if not depth:
        return nap()
    return functools.reduce(lambda left, right: through_c(depth - 1), [None, None])


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)  # type: ignore[untyped-decorator]
def compare(left: int, right: int) -> int:
    nap()
    return 0


def made_of(kind: str, number: int, lines: int) -> tuple[str, str]:
    """Return source and file name of code that is freed when it has run, so that the next number's objects and texts
    have the same addresses. Sizes and lines are equal, too; only one word tells numbers apart: in the name of a
    function, whose hash Python has computed, in the name of a nested function, whose hash it has not, or in the middle
    of the file's name. `lines`: more of them give a table of lines of a size that nothing else has."""
    name, body = f"made_{number}_under_a_long_name", "    x = 1\n" * lines + "    nap()\n"
    if kind == "function":
        return f"def {name}():\n{body}{name}()\ndel {name}", f"<made of {lines}>"
    if kind == "nested":
        return f"def {name}():\n  def inner():\n{body}  inner()\n{name}()\ndel {name}", f"<nested of {lines}>"
    return f"def made():\n{body}made()\ndel made", f"<{lines} {'again ' * 8}again {number} and again{' again' * 6}>"


def made_again() -> None:
    for kind in ("function", "nested", "file"):
        for number in range(10):
            exec(compile(*made_of(kind, number % 5, lines=number // 5 * 20), "exec"), {"nap": nap})


def work() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        nap()
        assert Thing().value
        outer()
        recurse(60)
        recurse(500)
        through_c(3)
        sorted([Thing(), Thing()])
        re.sub("a", replacement, "a")
        ctypes.CDLL(None).qsort((ctypes.c_int * 2)(2, 1), 2, 4, compare)
        made_again()


def take(items: Items) -> None:
    while items.get() is not None:
        nap(0.002)


def put(items: Items) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        nap()
        items.put(1)
    items.put(None)


async def worker() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        await asyncio.sleep(0.005)
        nap(0.002)


async def workers() -> None:
    await asyncio.gather(*(worker() for _ in range(5)))


def run(*works: tuple[Callable[..., None], tuple[Any, ...]]) -> None:
    threads = [threading.Thread(target=target, args=args) for target, args in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    time.sleep(0.4)  # until the recorder knows this process
    if os.fork() == 0:  # it runs no other program: its memory is that of its parent
        time.sleep(0.4)
        SECONDS /= 2
        recurse(3)
        work()
        os._exit(0)
    items = Items()
    run((work, ()), (take, (items,)), (put, (items,)), (lambda: asyncio.run(workers()), ()))
    os.wait()
