# SPDX-License-Identifier: Apache-2.0
"""Describe wait objects for the file: numbers from the BPF program, names from /proc."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.wait_objects import MAGIC, OBJECTS, TEXTS, VERSION, ObjectKind
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.wait_objects.epoll import EPOLL, watched_by
from perf_offcpu.collect.wait_objects.mounts import Mounts
from perf_offcpu.collect.wait_objects.names import (
    Texts,
    access_mode,
    comm_of,
    descriptor_path,
    mappings_of,
    place_of,
    socket_texts,
)
from perf_offcpu.collect.wait_objects.peers import Ends
from perf_offcpu.collect.wait_objects.sockets import ListeningPorts

Described = dict[str, Any]
"""Fields of `abi.wait_objects.OBJECT`, and the texts by name as bytes."""

_MOST_TEXT: Final = 24 << 10
"""Bytes of text in a record, which has 64 KB."""
_MOST_OBJECTS: Final = 128
PORTS_S: Final = 2.0
"""Time after which listening ports are read again."""
_FILES = (ObjectKind.FILE, ObjectKind.DIRECTORY, ObjectKind.CHARACTER, ObjectKind.BLOCK)
_SIDES = {os.O_RDONLY: b"read end", os.O_WRONLY: b"write end"}


def describe(rows: NDArray[Any], *, names: bool, ports: ListeningPorts | None = None) -> list[Described]:
    """Describe objects.

    Args:
        rows: of `struct offcpu_object`.
        names: look up names; else only numbers and addresses are described.
        ports: finds listening ports; None: nothing is known of them yet.
    """
    mounts = Mounts()
    maps_of, ports_of = functools.cache(mappings_of), (ports or ListeningPorts(PORTS_S)).of
    found = []
    for row in rows:
        kind, pid = int(row["kind"]), int(row["pid"])
        texts: Texts = {}
        if kind == ObjectKind.SOCKET:
            texts = socket_texts(row)
            if names and _is_accepted(row, texts, ports_of):
                texts["place"] = b"accepted"
        elif kind == ObjectKind.FUTEX and names:
            texts["place"] = place_of(maps_of(pid), int(row["address"]), int(row["sp"]))
        elif kind in (ObjectKind.PATH, ObjectKind.ANONYMOUS):
            texts["name"] = bytes(row["name"]).split(b"\0")[0]
            if is_epoll(row) and names:
                texts["name"] = watched_by(pid, int(row["fd"])) or EPOLL
        elif kind == ObjectKind.PIPE or kind in _FILES:
            texts = _file_texts(row, pid, mounts) if names else {}
        found.append(_numbers(row) | dict.fromkeys(TEXTS, b"") | texts)
    if names:
        _add_peers(found)
    return found


def needs_scan(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Return bool[n]: True for objects whose other ends are looked for in all processes."""
    found: NDArray[np.bool_] = (rows["kind"] == ObjectKind.PIPE) | (rows["peer_inode"] != 0)
    return found


def is_epoll(row: Any) -> bool:
    """Return True for an epoll instance, a row of `struct offcpu_object`."""
    return int(row["kind"]) == ObjectKind.ANONYMOUS and bytes(row["name"]).split(b"\0")[0] == EPOLL


def described_again(rows: NDArray[Any]) -> list[Described]:
    """Describe epoll instances that processes still have: they may watch others than before."""
    return [one for one in describe(rows, names=True) if one["name"] != EPOLL]


def _numbers(row: Any) -> Described:
    return {
        "id": int(row["id"]),
        "kind": int(row["kind"]),
        "reserved": 0,
        "pid": int(row["pid"]),
        "device": int(row["device"]),
        "number": int(row["number"]),
        "inode": int(row["inode"]),
        "address": int(row["address"]),
        "peer_inode": int(row["peer_inode"]),
        "peer_pid": 0,
        "reserved2": 0,
    }


def _is_accepted(row: Any, texts: Texts, ports_of: Callable[[int], frozenset[int]]) -> bool:
    """Return True for a connection that came to a port or path at which the process's side listens."""
    if texts["protocol"] == b"unix":
        return bool(row["own_name"] and row["peer_inode"])
    if texts["protocol"] not in (b"tcp", b"mptcp") or not texts["remote"]:
        return False
    return int(row["local_port"]) in ports_of(int(row["pid"]))


def _file_texts(row: Any, pid: int, mounts: Mounts) -> Texts:
    """Return the path of a file and the end of a pipe that is waited for."""
    fd = int(row["fd"])
    path = descriptor_path(pid, fd, int(row["inode"]))
    if row["kind"] != ObjectKind.PIPE:
        return {"name": path or mounts.path(bytes(row["name"]), int(row["device"]))}
    is_named = path and not path.startswith(b"pipe:[")
    mode = access_mode(pid, fd) if path else None
    return {"name": path if is_named else b"", "place": _SIDES.get(mode if mode is not None else -1, b"")}


def _add_peers(found: list[Described]) -> None:
    """Add the processes at the other ends of pipes and Unix sockets."""
    pipes = [one["inode"] for one in found if one["kind"] == ObjectKind.PIPE]
    inodes = {*pipes, *(one["peer_inode"] for one in found if one["peer_inode"])}
    if not inodes:
        return
    ends = Ends(inodes)
    modes = {text: mode for mode, text in _SIDES.items()}
    for one in found:
        pids: list[int] = []
        if one["kind"] == ObjectKind.PIPE:
            pids = ends.of_pipe(one["inode"], one["pid"], modes.get(one["place"]))
        elif one["peer_inode"]:
            pids = ends.of_socket(one["peer_inode"])
        if pids:
            one["peer_pid"], one["peer_comm"] = pids[0], comm_of(pids[0])


def object_payloads(objects: list[Described]) -> list[bytes]:
    """Return the payloads of samples that describe objects, each small enough for a record."""
    payloads, at = [], 0
    while at < len(objects):
        text, end = b"", at
        while end < len(objects) and end - at < _MOST_OBJECTS and len(text) < _MOST_TEXT:
            text += b"".join(objects[end][name].replace(b"\0", b"") + b"\0" for name in TEXTS)
            end += 1
        values = {"magic": MAGIC, "version": VERSION, "nr": end - at, "size": len(text), "reserved": 0}
        payloads.append(OBJECTS.pack(values | {"objects": objects[at:end], "text": text}, NATIVE))
        at = end
    return payloads
