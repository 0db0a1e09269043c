# SPDX-License-Identifier: Apache-2.0
"""What epoll instances, poll(), select(), futex(2) and io_uring of this process wait for, read as of another; an epoll
instance of a sleeping thread stands for its only descriptor or for itself; names from the text of /proc/PID/maps."""

import ctypes
import mmap
import os
import platform
import select
import socket
import struct
from pathlib import Path

import pytest
from builders.examples import examples

from perf_offcpu.abi.syscalls import syscall_number
from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.collect.unprivileged.objects import CallObjects
from perf_offcpu.collect.wait_objects import names
from perf_offcpu.collect.wait_objects.names import place_of
from perf_offcpu.collect.wait_objects.owners import only_descriptor, owner_in, timeout_in
from perf_offcpu.collect.wait_objects.sockets import listening_ports, requested_of, watched_by

PID = os.getpid()


def address(one: socket.socket) -> str:
    return "{}:{}".format(*one.getsockname())


def test_connections_made_from_here_come_before_listening_sockets() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as front,
        socket.create_server(("127.0.0.1", 0)) as slow,
        socket.create_connection(slow.getsockname()) as upstream,
        socket.create_connection(front.getsockname()),
        front.accept()[0] as client,
        select.epoll() as epoll,
    ):
        epoll.register(front, select.EPOLLIN)
        assert watched_by(PID, epoll.fileno()).decode() == f"[eventpoll] of tcp listen {address(front)}"
        epoll.register(client, select.EPOLLIN)
        epoll.register(upstream, select.EPOLLIN)
        named = f"tcp {address(slow)}, tcp listen {address(front)} and 1 more"
        assert watched_by(PID, epoll.fileno()).decode() == f"[eventpoll] of {named}"
        assert {front.getsockname()[1], slow.getsockname()[1]} <= listening_ports(PID)
        assert upstream.getsockname()[1] not in listening_ports(PID)


def test_sets_without_sockets_and_sets_that_are_gone() -> None:
    there, to = os.pipe()
    with select.epoll() as epoll:
        number = epoll.fileno()
        assert watched_by(PID, number) == b""
        epoll.register(there, select.EPOLLIN)
        epoll.register(to, select.EPOLLOUT)
        assert watched_by(PID, number) == b"[eventpoll] of 2 descriptors"
    os.close(there), os.close(to)
    assert watched_by(PID, number) == b"" and not listening_ports(2**31 - 2)


def test_the_only_descriptor_of_poll() -> None:
    entry = ctypes.create_string_buffer((7).to_bytes(4, "little") + bytes(12), 16)
    at = ctypes.addressof(entry)
    assert only_descriptor(PID, (at, 1), is_select=False) == 7
    assert only_descriptor(PID, (at, 2), is_select=False) == -1
    assert only_descriptor(PID, (8, 1), is_select=False) == -1, "memory that cannot be read"


@pytest.mark.parametrize(("sets", "number", "expected"), examples("unit/collect/examples.txt", "select"))
def test_the_only_descriptor_of_select(sets: str, number: str, expected: str) -> None:
    bits = [0 if fd == "none" else 1 << int(fd) for fd in sets.split("; ")]
    words = [ctypes.create_string_buffer(one.to_bytes(128, "little")) for one in bits]
    addresses = [ctypes.addressof(word) if one else 0 for word, one in zip(words, bits, strict=True)]
    assert only_descriptor(PID, (int(number), *addresses), is_select=True) == int(expected)


WAIT, WAIT_BITSET, LONGEST = 0, 9, 2**63 - 1


@pytest.mark.parametrize(("operation", "seconds", "asked_ns"), [
    (WAIT, 2, 2_000_000_000), (WAIT_BITSET, 7, 2_000_000_000), (WAIT_BITSET, 3, 0), (WAIT, LONGEST, LONGEST),
    (WAIT_BITSET, LONGEST, LONGEST), (WAIT, -LONGEST, 0),
])  # fmt: skip
def test_timeouts_are_times_whatever_the_memory_holds(operation: int, seconds: int, asked_ns: int) -> None:
    assert timeout_in(operation, struct.pack("=2q", seconds, 0), since_ns=5_000_000_000) == asked_ns


@pytest.mark.parametrize(("kind", "owner"), [(0, 77), (1, 77), (128, 77), (512, 77), (512 | 128, 77), (1024, 0)])
def test_the_owner_of_a_mutex_is_believed_where_the_kind_is_one_of_glibc(kind: int, owner: int) -> None:
    """512 is PTHREAD_MUTEX_NORMAL, asked for by pthread_mutexattr_settype()."""
    assert owner_in((2, 0, 77, 1, kind), 0, 2) == owner


READ, SEND, RECV, TIMEOUT, ACCEPT, FIXED = 22, 26, 27, 11, 13, 1


@pytest.mark.parametrize(("requests", "expected"), [
    ([(READ, 0, "a")], b"[io_uring] of {}/a"), ([(READ, 0, "a"), (READ, 0, "a"), (0, 0, "b")], b"[io_uring] of {}/a"),
    ([(READ, 0, "a"), (READ, 0, "b")], b"[io_uring] of 2 files"), ([(READ, 0, "a"), (SEND, 0, "b")], b""),
    ([(READ, 0, "a"), (TIMEOUT, 0, "b")], b""), ([(READ, FIXED, "a")], b""), ([(READ, 0, "pipe")], b""),
    ([(READ, 0, "gone")], b""), ([], b""), ([(TIMEOUT, 0, "a"), (TIMEOUT, 0, "b")], b"[io_uring] of time"),
    ([(RECV, 0, "out")], b"[io_uring] of tcp {peer}"), ([(RECV, 0, "out"), (RECV, 0, "in")], b""),
    ([(SEND, 0, "out"), (READ, 0, "out")], b"[io_uring] of tcp {peer}"), ([(RECV, 0, "in")], b""),
    ([(ACCEPT, 0, "front")], b""),
])  # fmt: skip
def test_requests_of_a_ring_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requests: list[tuple[int, int, str]], expected: bytes
) -> None:
    monkeypatch.setattr(names, "_SQES", 0)  # any file of a page stands for the queue
    queue = os.open(tmp_path / "queue", os.O_RDWR | os.O_CREAT)
    fds = {name: os.open(tmp_path / name, os.O_CREAT) for name in "ab"} | {"pipe": os.pipe()[0], "gone": 1 << 20}
    with (
        socket.create_server(("127.0.0.1", 0)) as front,
        socket.create_connection(front.getsockname()) as out,
        front.accept()[0] as inside,
    ):
        fds |= {"out": out.fileno(), "in": inside.fileno(), "front": front.fileno()}
        os.write(queue, b"".join(struct.pack("=BBHi56x", code, flags, 0, fds[name]) for code, flags, name in requests))
        os.truncate(queue, mmap.PAGESIZE)
        expected = expected.replace(b"{}", bytes(tmp_path)).replace(b"{peer}", address(front).encode())
        with mmap.mmap(queue, mmap.PAGESIZE):
            assert requested_of(os.getpid(), queue) == expected


EPOLL_PWAIT = syscall_number("epoll_pwait", platform.machine())
FOREVER, A_SECOND = 0xFFFFFFFF, 1000


def kind_of_wait(epoll: select.epoll, limit: int) -> ObjectKind:
    objects = CallObjects(wanted=True)
    own = os.getpid()
    assert objects.find(own, own, 0, EPOLL_PWAIT, [epoll.fileno(), 0, 1, limit, 0, 0], 0).object_id
    return ObjectKind(int(objects.take_objects()["kind"][0]))


@pytest.fixture
def epoll() -> select.epoll:
    return select.epoll()


def test_the_only_descriptor_is_what_is_waited_for(epoll: select.epoll) -> None:
    reader, _writer = os.pipe()
    epoll.register(reader)
    assert kind_of_wait(epoll, FOREVER) == ObjectKind.PIPE


def test_time_or_another_descriptor_may_end_the_wait(epoll: select.epoll) -> None:
    first, second = os.pipe()
    epoll.register(first)
    assert kind_of_wait(epoll, A_SECOND) == ObjectKind.ANONYMOUS
    epoll.register(second)
    assert kind_of_wait(epoll, FOREVER) == ObjectKind.ANONYMOUS


def test_a_descriptor_with_another_file_by_now_is_not_it(epoll: select.epoll) -> None:
    (reader, _writer), (other, _) = os.pipe(), os.pipe()
    kept = os.dup(reader)
    epoll.register(reader)
    os.dup2(other, reader)
    assert kind_of_wait(epoll, FOREVER) == ObjectKind.ANONYMOUS
    os.close(kept)


def test_an_instance_that_watches_its_own_number_ends(epoll: select.epoll) -> None:
    reader, _writer = os.pipe()
    kept = os.dup(reader)
    epoll.register(reader)
    os.dup2(epoll.fileno(), reader)
    assert kind_of_wait(select.epoll.fromfd(reader), FOREVER) == ObjectKind.ANONYMOUS
    os.close(kept)


MAPS = b"""7f42c7fff000-7f42c8000000 rw-p 000cf000 fe:00 32 /lib/libjsvml.so
7f42c8000000-7f42c8200000 rw-p 00000000 00:00 0
7f42d0000000-7f42d0001000 rw-p 00001000 fe:00 33 /lib/libpool.so
7f42d0001000-7f42d0002000 rw-p 00000000 00:00 0
"""


@pytest.mark.parametrize(
    ("address", "place"),
    [(0x7F42C7FFF008, b"/lib/libjsvml.so"), (0x7F42D0001008, b"/lib/libpool.so"), (0x7F42C8134C9C, b"heap"), (8, b"")],
)
def test_memory_after_a_library_is_its_own_unless_malloc_begins_there(address: int, place: bytes) -> None:
    assert place_of(MAPS, address, 0) == place
