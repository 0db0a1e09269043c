# SPDX-License-Identifier: Apache-2.0
"""An event loop that logs what ended each of its waits: sockets, a pipe, an eventfd, a timeout, a signal. Usage:
loop.py ROUNDS; begins when it reads a line. Children answer, ask and write, each after a while. Prints `upstream PORT`
and `front PORT`, then for each wait: what ended it, begin and end (CLOCK_MONOTONIC, ns), and local port, remote port
and inode of what the kernel lists first. Ends at the end of its standard input."""

import os
import select
import signal
import socket
import sys
import time
from functools import partial

PAUSE_S = 0.008


def forked(comm: str) -> bool:
    """Fork; return True in the child, which gets a name."""
    if os.fork():
        return False
    with open("/proc/self/comm", "w") as file:
        file.write(comm)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    return True


def answer(listener: socket.socket) -> None:
    """Be the upstream: think before each answer."""
    connection, _ = listener.accept()
    while connection.recv(1):
        time.sleep(PAUSE_S)
        connection.send(b"x")


def ask(address: tuple[str, int], go: int) -> None:
    """Be a client: wait for a word, then ask."""
    connection = socket.create_connection(address)
    while os.read(go, 1):
        time.sleep(PAUSE_S)
        connection.send(b"x")


def write(to: int, go: int) -> None:
    while os.read(go, 1):
        time.sleep(PAUSE_S)
        os.write(to, (1).to_bytes(8, sys.byteorder))


def main(rounds: int) -> None:
    slow, front = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    pipe, to_pipe = os.pipe()
    event = os.eventfd(0)
    if forked("upstream"):
        os.close(to_pipe)
        answer(slow)
        os._exit(0)
    words: dict[str, int] = {}
    for name, work in (
        ("client", partial(ask, front.getsockname())),
        ("pipe", partial(write, to_pipe)),
        ("eventfd", partial(write, event)),
    ):
        go, words[name] = os.pipe()
        if forked(f"to_{name}"):
            for end in (*words.values(), *([to_pipe] if name != "pipe" else [])):
                os.close(end)
            work(go)
            os._exit(0)
        os.close(go)
    upstream = socket.create_connection(slow.getsockname())
    client, _ = front.accept()
    ports = {one.fileno(): (one.getsockname()[1], one.getpeername()[1]) for one in (upstream, client)}
    names = {upstream.fileno(): "upstream", client.fileno(): "client", pipe: "pipe", event: "eventfd"}
    epoll = select.epoll()
    for fd in (*names, front.fileno()):
        epoll.register(fd, select.EPOLLIN)
    print("upstream", slow.getsockname()[1], flush=True)
    print("front", front.getsockname()[1], flush=True)
    signal.signal(signal.SIGALRM, lambda *_: None)
    sys.stdin.readline()
    for one in (*(["upstream", "client", "pipe", "eventfd", "timeout"] * rounds), "signal"):
        timeout = PAUSE_S if one == "timeout" else None
        if one == "upstream":
            upstream.send(b"x")
        elif one in words:
            os.write(words[one], b"x")
        elif one == "signal":
            signal.setitimer(signal.ITIMER_REAL, PAUSE_S)
            timeout = 3 * PAUSE_S
        begin = time.monotonic_ns()
        ready = epoll.poll(timeout)
        end = time.monotonic_ns()
        fd = ready[0][0] if ready else epoll.fileno()
        assert names.get(fd, one) == one
        print(one, begin, end, *ports.get(fd, (0, 0)), os.fstat(fd).st_ino, flush=True)
        if ready:
            os.read(fd, 8)
    print("done", flush=True)
    sys.stdin.read()


main(int(sys.argv[1]))
