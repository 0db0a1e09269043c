# SPDX-License-Identifier: Apache-2.0
"""Describe wait objects for the file: numbers from the BPF program, names from /proc."""

import contextlib
import functools
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.wait_objects import MAGIC, OBJECTS, TEXTS, VERSION, LockRole, ObjectKind
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.existing.maps import read_maps
from perf_offcpu.collect.system.btf import KALLSYMS, symbol_at
from perf_offcpu.collect.system.helper import Avoided, Helper, ask_each
from perf_offcpu.collect.system.hotspot import AwaitedLock
from perf_offcpu.collect.wait_objects import names as proc
from perf_offcpu.collect.wait_objects.names import PIDFD, RING, Mounts, Texts, comm_of
from perf_offcpu.collect.wait_objects.sockets import EPOLL, ListeningPorts, requested_of, watched_by
from perf_offcpu.files import read_kernel_if_any
from perf_offcpu.losses import Losses

Described = dict[str, Any]  # fields of `abi.wait_objects.OBJECT`, and the texts by name as bytes

_MOST_TEXT: Final = 24 << 10  # bytes of text in a record, which has 64 KB
_MOST_OBJECTS: Final = 128
PORTS_S: Final = 2.0  # time after which listening ports are read again
_FILES: Final = (ObjectKind.FILE, ObjectKind.DIRECTORY, ObjectKind.CHARACTER, ObjectKind.BLOCK)
_SIDES: Final = {os.O_RDONLY: b"read end", os.O_WRONLY: b"write end"}
_MODES: Final = {text: mode for mode, text in _SIDES.items()}
_SCAN_S: Final = 1.0
_PATIENCE_S: Final = 0.5
_ASKED: Final = {EPOLL: watched_by, RING: requested_of, PIDFD: proc.process_of}
_BY_PORT: Final = (b"tcp", b"mptcp")
_NUMBERS: Final = ("id", "kind", "pid", "device", "number", "inode", "address", "peer_inode")
_SYNC: Final = re.compile(r"\$\w*Sync$")  # ReentrantLock$NonfairSync, of ReentrantLock

Holder = tuple[int, int, int | None]
"""A descriptor of a pipe or socket: pid, inode, access mode (os.O_*) of a pipe; None for a socket or if gone."""
_FIRST: Final = 4096  # descriptors of each process that are looked at first; the others follow if there is time
_LINK: Final = re.compile(r"(pipe|socket):\[(\d+)\]")


class Describer:
    """Describe wait objects, with names that a helper process reads. `lost`: counts objects whose names could not be
    read in time. `ports_s`: time after which listening ports are read again."""

    def __init__(self, lost: Losses, ports_s: float = PORTS_S) -> None:
        self._lost, self._avoided, self._ports = lost, Avoided(), ListeningPorts(ports_s)
        self._dtype: np.dtype[Any] | None = None  # of `struct offcpu_object`
        self._helper = Helper(self._work, _PATIENCE_S)

    def _work(self, item: tuple[Any, ...]) -> Any:
        """Read data of one process, in the helper process, as it can lock its list of mappings and its epoll instances
        for any time. `item`: arguments of `_names` or `holders_in`; return its result."""
        return self._names(*item) if len(item) == 2 else holders_in(*item)

    def _names(self, pid: int, raw: bytes) -> list[Texts]:
        """Return the texts on each object of a process from /proc. `raw`: bytes of rows of `struct offcpu_object`."""
        rows = np.frombuffer(raw, self._dtype)
        maps, mounts = b"", Mounts()
        if (rows["kind"] == ObjectKind.FUTEX).any():
            with contextlib.suppress(OSError):  # it is gone
                maps = read_maps(pid)
        return [self._texts(row, pid, maps, mounts) for row in rows]

    def _texts(self, row: NDArray[Any], pid: int, maps: bytes, mounts: Mounts) -> Texts:
        kind, fd = int(row["kind"]), int(row["fd"])
        if kind == ObjectKind.FUTEX:
            return {"place": proc.place_of(maps, int(row["address"]), int(row["sp"]))}
        if kind == ObjectKind.ANONYMOUS:
            name = next((name for name in _ASKED if bytes(row["name"]).startswith(name)), PIDFD)
            return {"name": _ASKED[name](pid, fd) or name}
        if kind == ObjectKind.SOCKET:
            is_accepted = int(row["local_port"]) in self._ports.of(pid)
            return {"place": b"accepted"} if is_accepted else {}
        path = proc.descriptor_path(pid, fd, int(row["inode"]))
        if kind != ObjectKind.PIPE:
            return {"name": path or mounts.path(bytes(row["name"]), int(row["device"]))}
        mode = proc.access_mode(pid, fd) if path else None
        is_named = not path.startswith(b"pipe:[")
        return {"name": path if is_named else b"", "place": b"" if mode is None else _SIDES.get(mode, b"")}

    def finish_until(self, time_s: float) -> None:
        """Set the time (`time.monotonic`) after which names are no longer looked up."""
        self._helper.until = time_s

    def close(self) -> None:
        """End the helper's process."""
        self._helper.close()

    def describe(self, rows: NDArray[Any], *, names: bool = True) -> list[Described]:
        """Return a description of each object. `rows`: of `struct offcpu_object`. `names`: look up names; else only
        numbers, addresses and texts that BPF has read are described."""
        texts = [_own_texts(row) for row in rows]
        if names:
            _add_kernel_locks(rows, texts)
            self._add_names(rows, texts)
        objects = [_numbers(row) | dict.fromkeys(TEXTS, b"") | own for row, own in zip(rows, texts, strict=True)]
        if names:
            self._add_peers(objects)
        return objects

    def described_again(self, rows: NDArray[Any]) -> list[Described]:
        """Describe epoll instances again, as they may watch other descriptors now; leave out those that watch none.
        `rows`: of `struct offcpu_object`."""
        return [described for described in self.describe(rows) if described["name"] != EPOLL]

    def _add_names(self, rows: NDArray[Any], texts: list[Texts]) -> None:
        """Add texts from /proc to `texts`, a dict for each row; count objects that are not read in time."""
        self._dtype = rows.dtype
        rows_of: dict[int, list[int]] = {}
        for place, (row, texts_of_row) in enumerate(zip(rows, texts, strict=True)):
            if _is_in_proc(row, texts_of_row):
                rows_of.setdefault(int(row["pid"]), []).append(place)
        mounts = Mounts()
        items = [(pid, rows[places].tobytes()) for pid, places in rows_of.items()]
        for (pid, _), answer in ask_each(self._helper, items, self._avoided):
            places = rows_of[pid]
            if answer.value is None:
                self._lost.add(losses.OBJECTS_UNNAMED, len(places))
            for place, names in zip(places, answer.value or [{}] * len(places), strict=True):
                texts[place] |= names
                if not names and rows[place]["kind"] in _FILES:
                    texts[place]["name"] = mounts.path(bytes(rows[place]["name"]), int(rows[place]["device"]))

    def _add_peers(self, objects: list[Described]) -> None:
        """Set peer_pid and peer_comm of pipes and Unix sockets: the first process at the other end."""
        pipes = [pipe for pipe in objects if pipe["kind"] == ObjectKind.PIPE]
        sockets = [unix for unix in objects if unix["peer_inode"]]
        if not pipes and not sockets:
            return
        inodes = {*(pipe["inode"] for pipe in pipes), *(unix["peer_inode"] for unix in sockets)}
        ends = self._find_ends(frozenset(map(str, inodes)))
        peers = [(pipe, _other_end(ends[pipe["inode"]], pipe["pid"], _MODES.get(pipe["place"]))) for pipe in pipes]
        peers += [(unix, sorted({pid for pid, *_ in ends[unix["peer_inode"]]})) for unix in sockets]
        for described, pids in peers:
            if pids:
                described["peer_pid"], described["peer_comm"] = pids[0], comm_of(pids[0])

    def _find_ends(self, inodes: frozenset[str]) -> dict[int, list[Holder]]:
        """Return inode → descriptors of this pipe or socket in all processes. `inodes`: to look for, decimal text."""
        ends, until_s = defaultdict[int, list[Holder]](list), time.monotonic() + _SCAN_S
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        for places in ((0, _FIRST), (_FIRST, sys.maxsize)):
            items, pids = [(pid, inodes, *places) for pid in pids], []
            for (pid, *_), answer in ask_each(self._helper, items, self._avoided):
                holders, has_more = answer.value or ((), False)
                for holder in holders:
                    ends[holder[1]].append(holder)
                pids += [pid] if has_more else []
                if time.monotonic() > until_s:
                    return ends
        return ends


def needs_scan(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Return bool[n]: True for rows of pipes and Unix sockets, whose other ends are searched in all processes."""
    needed: NDArray[np.bool_] = (rows["kind"] == ObjectKind.PIPE) | (rows["peer_inode"] != 0)
    return needed


def is_epoll(row: Any) -> bool:
    """Return True if a row of `struct offcpu_object` is an epoll instance."""
    return _own_texts(row).get("name") == EPOLL and int(row["kind"]) == ObjectKind.ANONYMOUS


def _add_kernel_locks(rows: NDArray[Any], texts: list[Texts]) -> None:
    """Add the names of kernel locks to `texts`, a dict for each row: the lock's variable, or its file or process."""
    mounts, symbols = Mounts(), functools.cache(lambda: read_kernel_if_any(str(KALLSYMS)))
    for row, text in zip(rows, texts, strict=True):
        if row["kind"] != ObjectKind.KERNEL_LOCK:
            continue
        if row["protocol"] == LockRole.MMAP:
            text["name"] = comm_of(int(row["pid"]))
        elif row["protocol"] != LockRole.UNKNOWN:
            text["name"] = mounts.path(bytes(row["name"]), int(row["device"]))
        else:
            text["place"] = symbol_at(symbols(), int(row["address"]))


def _own_texts(row: Any) -> Texts:
    """Return name → text of what the BPF program has read of an object. `row`: of `struct offcpu_object`."""
    kind = int(row["kind"])
    if kind == ObjectKind.SOCKET:
        texts = proc.socket_texts(row)
        is_unix_server = texts["protocol"] == b"unix" and row["own_name"] and row["peer_inode"]
        return texts | ({"place": b"accepted"} if is_unix_server else {})
    if kind in (ObjectKind.PATH, ObjectKind.ANONYMOUS):
        name = bytes(row["name"]).split(b"\0")[0]
        return {"name": PIDFD if name == b"/" else name}
    return {}


def _is_in_proc(row: Any, texts: Texts) -> bool:
    """Return True if texts on the object `row` must be read from /proc. `texts`: result of `_own_texts`."""
    kind = int(row["kind"])
    if kind == ObjectKind.SOCKET:
        return texts["protocol"] in _BY_PORT and bool(texts["remote"])
    return texts.get("name") in (EPOLL, PIDFD, RING) or kind in (ObjectKind.FUTEX, ObjectKind.PIPE, *_FILES)


def _numbers(row: Any) -> Described:
    has_operation = row["kind"] in (ObjectKind.FUTEX, ObjectKind.KERNEL_LOCK)
    operation = int(row["protocol"]) if has_operation else 0
    return {"operation": operation, "peer_pid": 0, "reserved2": 0, **{name: int(row[name]) for name in _NUMBERS}}


def describe_java_lock(pid: int, lock: AwaitedLock, *, named: bool) -> Described:
    """Return the description of a JVM's lock: one object for all threads of process `pid` that wait for it. `named`:
    with the class of its object (`--object-names`)."""
    kind, type_ = "monitor" if lock.is_monitor else "", _SYNC.sub("", lock.type)
    name = " of ".join(filter(None, (kind, type_))) or "a lock of java.util.concurrent"
    texts = dict.fromkeys(TEXTS, b"") | {"name": name.encode() if named else b"", "place": b"heap"}
    identity = f"{pid} {lock.address}".encode()
    numbers = dict.fromkeys((*_NUMBERS, "operation", "peer_pid", "reserved2"), 0)
    own = {
        "id": int.from_bytes(blake2b(identity, digest_size=8).digest(), "little") or 1,
        "kind": int(ObjectKind.FUTEX),
    }
    return numbers | own | {"pid": pid, "number": -1, "address": lock.address} | texts


def object_payloads(objects: list[Described]) -> list[bytes]:
    """Return payloads (`abi.wait_objects.OBJECTS`) that describe the objects, each small enough for a record."""
    payloads, row = [], 0
    while row < len(objects):
        text, end = b"", row
        while end < len(objects) and end - row < _MOST_OBJECTS and len(text) < _MOST_TEXT:
            text += b"".join(objects[end][name].replace(b"\0", b"") + b"\0" for name in TEXTS)
            end += 1
        values = {"magic": MAGIC, "version": VERSION, "nr": end - row, "size": len(text), "reserved": 0}
        payloads.append(OBJECTS.pack(values | {"objects": objects[row:end], "text": text}, NATIVE))
        row = end
    return payloads


def holders_in(pid: int, inodes: Collection[str], first: int, end: int) -> tuple[list[Holder], bool]:
    """Return (pipes and sockets with these `inodes` among items `first` to `end` - 1 of the list /proc/PID/fd, True if
    the list is longer than `end`). `inodes`: decimal text. May block while the process is within execve(2)."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")  # direct: of the kernel
    except OSError:  # gone, or of another user
        return [], False
    holders: list[Holder] = []
    for fd in descriptors[first:end]:
        try:
            link = _LINK.fullmatch(os.readlink(f"/proc/{pid}/fd/{fd}"))  # direct: not followed
        except OSError:
            continue
        if link and link[2] in inodes:
            holders.append((pid, int(link[2]), proc.access_mode(pid, int(fd)) if link[1] == "pipe" else None))
    return holders, len(descriptors) > end


def _other_end(holders: Iterable[Holder], pid: int, mode: int | None) -> list[int]:
    """Return the ascending pids of the other processes that hold the other end of a pipe: its writers if process `pid`
    reads from it, and vice versa. `holders`: descriptors of the pipe. `mode`: access mode of `pid`; for None, []."""
    end = {os.O_RDONLY: os.O_WRONLY, os.O_WRONLY: os.O_RDONLY}.get(-1 if mode is None else mode)
    return sorted({peer for peer, _, its in holders if peer != pid and end is not None and its in (end, os.O_RDWR)})
