# SPDX-License-Identifier: Apache-2.0
"""A Python program that waits in threads, locks, queues, sockets, polls and for children, for a second. usage: waits.py
[SECONDS]"""

import queue
import select
import socket
import subprocess
import sys
import threading
import time

END = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else 1)
items: "queue.Queue[int | None]" = queue.Queue()
near, far = socket.socketpair()


def send() -> None:
    while time.monotonic() < END:
        time.sleep(0.005)
        far.send(b"x")
        items.put(1)
    far.close()
    items.put(None)


def receive() -> None:
    while near.recv(1):
        pass


def get() -> None:
    while items.get() is not None:
        pass


def poll() -> None:
    poller = select.poll()
    poller.register(near.fileno(), select.POLLPRI)
    while time.monotonic() < END:
        poller.poll(4)


# From 3.14 on threads tell the kernel their names; here all shall be called as the process is.
threads = [threading.Thread(target=target, name="python3") for target in (send, receive, get, poll)]
for thread in threads:
    thread.start()
for _ in range(5):
    subprocess.run(["sleep", "0.02"], check=True)
for thread in threads:
    thread.join()
