# SPDX-License-Identifier: Apache-2.0
"""Part of python_truth.py: a program that waits as one of DESIGNS says, and prints of its waits where it believes to
be, as tests/kernel/python/waits.py does. Usage: python_waits.py SECONDS DESIGN

In "libraries" and "gunicorn" a profile function notes each call of a function in C that takes 0.9 ms or more: waits of
threading, queue, asyncio, socket, gunicorn and SQLAlchemy in their own functions.
"""

import asyncio
import ctypes
import os
import re
import signal
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from kernel.python import waits
from kernel.python.waits import SECONDS, run

LEAST_NS = 900_000


def noting_calls() -> None:
    """Note calls of functions in C, in threads that are started from now on, too."""
    last = threading.local()

    def profiled(frame: FrameType, event: str, _: object) -> None:
        now = time.monotonic_ns()
        if event in ("c_return", "c_exception") and now - getattr(last, "call", now) >= LEAST_NS:
            waits.note(last.call, None, now, frame)
        last.__dict__.pop("call", None)
        if event == "c_call":
            last.call = time.monotonic_ns()

    threading.setprofile(profiled)
    sys.setprofile(profiled)


def repeat(*parts: Callable[[], object]) -> None:
    """Call functions in turn."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for part in parts:
            part()


def exchange() -> None:
    """Wait for a byte from another thread."""
    one, other = socket.socketpair()
    threading.Timer(0.003, other.send, (b"a",)).start()
    one.recv(1)
    one.close()
    other.close()


def extensions() -> None:
    """Wait in functions that functions in C call."""
    waits.through_c(3)
    sorted([waits.Thing(), waits.Thing()])
    re.sub("a", waits.replacement, "a")
    ctypes.CDLL(None).qsort((ctypes.c_int * 2)(2, 1), 2, 4, waits.compare)


def threads() -> None:
    """Take items of a queue next to all kinds of functions."""
    items = waits.Items()
    run((waits.work, ()), (waits.take, (items,)), (waits.put, (items,)))


def libraries() -> None:
    """Wait for locks, queues, sockets and the events of a loop in the standard library's functions."""
    noting_calls()
    items, lock = waits.Items(4), threading.Lock()

    def hold() -> None:
        with lock:
            time.sleep(0.003)

    run(*[(repeat, (hold,))] * 4, (repeat, (exchange,)), (waits.take, (items,)), (waits.put, (items,)), (loop, ()))


def loop() -> None:
    """Run tasks of asyncio."""
    asyncio.run(waits.workers())


def gunicorn() -> None:
    """Serve requests that wait for a connection of a pool, in two processes of eight threads."""
    import sqlalchemy
    from gunicorn.app.base import BaseApplication  # type: ignore[import-untyped,import-not-found,unused-ignore]

    options = {"connect_args": {"check_same_thread": False}, "pool_size": 2, "max_overflow": 0}
    engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.pool.QueuePool, **options)

    def application(_: object, start_response: Callable[..., object]) -> list[bytes]:
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text("select 1"))
            time.sleep(0.003)
        start_response("200 OK", [("Content-Length", "1")])
        return [b"a"]

    class Application(BaseApplication):  # type: ignore[misc,unused-ignore]
        """The server with its settings."""

        def load_config(self) -> None:
            settings = {"bind": "127.0.0.1:0", "workers": 2, "worker_class": "gthread", "threads": 8}
            hooks = {"post_fork": lambda _, __: noting_calls(), "when_ready": start_clients}
            for name, value in (settings | hooks).items():
                self.cfg.set(name, value)

        def load(self) -> Callable[..., list[bytes]]:
            return application

    def start_clients(server: Any) -> None:
        host, port = server.LISTENERS[0].sock.getsockname()

        def ask() -> None:
            with suppress(OSError):
                urllib.request.urlopen(f"http://{host}:{port}").read()

        if os.fork() == 0:
            run(*[(repeat, (ask,))] * 16)
            os.kill(os.getppid(), signal.SIGTERM)
            os._exit(0)

    Application().run()


DESIGNS: dict[str, Callable[[], None]] = {
    "threads": threads,
    "24 threads": lambda: run(*[(repeat, (waits.nap, waits.outer, extensions))] * 24),
    "asyncio": loop,
    "recursion": lambda: repeat(lambda: waits.recurse(60), lambda: waits.recurse(500)),
    "generators": lambda: repeat(waits.outer),
    "C between": lambda: repeat(extensions),
    "made again": lambda: repeat(waits.made_again),
    "libraries": libraries,
    "gunicorn": gunicorn,
}

if __name__ == "__main__":
    time.sleep(0.4)  # until the recorder knows this process
    DESIGNS[sys.argv[2]]()
