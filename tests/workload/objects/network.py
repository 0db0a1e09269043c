# SPDX-License-Identifier: Apache-2.0
"""A slow server, or one that loses packets, and its client: network.py server|client ADDRESS SCENE ROUNDS.

The kernel drops packets by a classic BPF filter of the server's sockets, before TCP sees them, as if they had been lost
on the way: packets with data for some time after each answer (scenes loss, both), all packets until a line comes on
standard input (handshake). The server answers after SLOW_S (slow, both), or reads little (full). In scene turns it
sleeps, waits for a lock, and writes to disk, in turn.

The server writes when it received each request (turns: how long each took it), the client the begin and end of each of
its waits, and how often it has retransmitted and its smoothed round trip, as TCP_INFO has them; times in ns of
CLOCK_MONOTONIC, round trips in us."""

import ctypes
import fcntl
import itertools
import os
import socket
import struct
import sys
import tempfile
import threading
import time

PORT = 7070
SLOW_S, BLOCK = 0.15, bytes(1 << 20)
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
PASS = 0xFFFFFFFF
LOSSES_S = (0.25, 0.05, 0)  # after three answers; TCP repeats a packet after some 200 ms, then after twice that
WITH_DATA = 40  # bytes; a segment without data has 20 to 32
RTT, TOTAL_RETRANS = 68, 100  # offsets in struct tcp_info


def drop(sock: socket.socket, above: int) -> None:
    """Drop the packets from `above` bytes on that the socket, or one that it accepts, receives."""
    code = [
        (0x80, 0, 0, 0),  # A = length of the packet
        (0x35, 0, 1, above),  # if less, pass
        (0x06, 0, 0, 0),
        (0x06, 0, 0, PASS),
    ]
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in code))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", len(code), ctypes.addressof(text)))


def pass_all(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


def take_turns(turn: int) -> None:
    """Wait for about SLOW_S, each time for something else."""
    begin = time.monotonic()
    if turn % 3 == 0:
        time.sleep(SLOW_S)
        return
    with tempfile.NamedTemporaryFile(dir=".") as file, open(file.name) as again:
        if turn % 3 == 1:
            fcntl.flock(file, fcntl.LOCK_EX)
            threading.Timer(SLOW_S, fcntl.flock, (file, fcntl.LOCK_UN)).start()
            fcntl.flock(again, fcntl.LOCK_EX)
        while turn % 3 == 2 and time.monotonic() < begin + SLOW_S:
            file.write(BLOCK[:4096])
            file.flush()
            os.fsync(file.fileno())


def serve(connection: socket.socket, scene: str) -> None:
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        turn, losses_s = 0, itertools.cycle(LOSSES_S if scene in ("loss", "both") else (0,))
        while connection.recv(1 << 16):
            begin = time.monotonic_ns()
            if scene == "turns":
                take_turns(turn)
                begin, turn = time.monotonic_ns() - begin, turn + 1
            print(begin, flush=True)
            if scene == "full":
                time.sleep(0.02)
                continue
            if scene in ("slow", "both"):
                time.sleep(SLOW_S)
            if loss_s := next(losses_s):
                drop(connection, WITH_DATA)
                threading.Timer(loss_s, pass_all, [connection]).start()
            connection.sendall(b"answer" * 12)


def server(address: str, scene: str) -> None:
    """Serve one connection; a line on standard output says that the server is ready."""
    with socket.create_server((address, PORT)) as listener:
        if scene == "full":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        if scene == "handshake":
            drop(listener, 0)
        print("ready", flush=True)
        if scene == "handshake":
            sys.stdin.readline()
            pass_all(listener)
        serve(listener.accept()[0], scene)


def client(address: str, scene: str, rounds: int) -> None:
    """Connect, and wait for the server."""

    def note(begin: int) -> None:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        facts = (struct.unpack_from("I", info, offset)[0] for offset in (TOTAL_RETRANS, RTT))
        print(begin, time.monotonic_ns(), *facts, flush=True)

    print("connecting", flush=True)
    begin = time.monotonic_ns()
    with socket.create_connection((address, PORT)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        note(begin)
        for _ in range(rounds):
            begin = time.monotonic_ns()
            if scene == "full":
                sock.sendall(BLOCK)
            else:
                sock.sendall(b"request" * 10)
                sock.recv(100)
            note(begin)


if __name__ == "__main__":
    role, address, scene, rounds = sys.argv[1:]
    server(address, scene) if role == "server" else client(address, scene, int(rounds))
