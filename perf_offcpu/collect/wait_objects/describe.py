# SPDX-License-Identifier: Apache-2.0
"""Describe wait objects for the file: numbers from the BPF program, names from /proc."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.wait_objects import MAGIC, OBJECTS, TEXTS, VERSION, ObjectKind
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.system.helper import Avoided, Helper, ask_each
from perf_offcpu.collect.wait_objects.epoll import EPOLL
from perf_offcpu.collect.wait_objects.mounts import Mounts
from perf_offcpu.collect.wait_objects.names import PIDFD, Texts, comm_of, socket_texts
from perf_offcpu.collect.wait_objects.naming import FILES, SIDES, Naming
from perf_offcpu.collect.wait_objects.peers import FIRST, Ends, holders_in
from perf_offcpu.collect.wait_objects.sockets import ListeningPorts
from perf_offcpu.losses import Losses

Described = dict[str, Any]
"""Fields of `abi.wait_objects.OBJECT`, and the texts by name as bytes."""

_MOST_TEXT: Final = 24 << 10
"""Bytes of text in a record, which has 64 KB."""
_MOST_OBJECTS: Final = 128
PORTS_S: Final = 2.0
"""Time after which listening ports are read again."""
_MODES: Final = {text: mode for mode, text in SIDES.items()}
_SCAN_S: Final = 1.0
_PATIENCE_S: Final = 0.5
_BY_PORT: Final = (b"tcp", b"mptcp")


class Describer:
    """Describes objects; names come from a helper.

    Args:
        lost: counts objects whose names could not be read in time.
        ports_s: time for which listening ports are known.
    """

    def __init__(self, lost: Losses, ports_s: float = PORTS_S) -> None:
        self._lost, self._avoided, self._ports = lost, Avoided(), ListeningPorts(ports_s)
        self._naming: Naming | None = None
        self._helper = Helper(self._work, _PATIENCE_S)

    def _work(self, item: tuple[Any, ...]) -> Any:
        """Look into one process: this is the helper."""
        assert self._naming is not None
        return self._naming.names(*item) if len(item) == 2 else holders_in(*item)

    def finish_until(self, time_s: float) -> None:
        """Leave out names that are not known at a time (`time.monotonic`)."""
        self._helper.until = time_s

    def close(self) -> None:
        """End the helper."""
        self._helper.close()

    def describe(self, rows: NDArray[Any], *, names: bool = True) -> list[Described]:
        """Describe objects.

        Args:
            rows: of `struct offcpu_object`.
            names: look up names; else only numbers and addresses are described.
        """
        texts = [_own_texts(row) for row in rows]
        if names:
            self._add_names(rows, texts)
        objects = [_numbers(row) | dict.fromkeys(TEXTS, b"") | one for row, one in zip(rows, texts, strict=True)]
        if names:
            self._add_peers(objects)
        return objects

    def described_again(self, rows: NDArray[Any]) -> list[Described]:
        """Describe epoll instances that processes still have: they may watch others than before."""
        return [one for one in self.describe(rows) if one["name"] != EPOLL]

    def _add_names(self, rows: NDArray[Any], texts: list[Texts]) -> None:
        """Add the texts that /proc has."""
        self._naming = self._naming or Naming(rows.dtype, self._ports)
        rows_of: dict[int, list[int]] = {}
        for at, (row, known) in enumerate(zip(rows, texts, strict=True)):
            if _is_in_proc(row, known):
                rows_of.setdefault(int(row["pid"]), []).append(at)
        mounts = Mounts()
        items = [(pid, rows[places].tobytes()) for pid, places in rows_of.items()]
        for (pid, _), answer in ask_each(self._helper, items, self._avoided):
            places = rows_of[pid]
            if answer.value is None:
                self._lost.add(losses.OBJECTS_UNNAMED, len(places))
            for at, found in zip(places, answer.value or [{}] * len(places), strict=True):
                texts[at] |= found
                if not found and rows[at]["kind"] in FILES:
                    texts[at]["name"] = mounts.path(bytes(rows[at]["name"]), int(rows[at]["device"]))

    def _add_peers(self, objects: list[Described]) -> None:
        """Add the processes at the other ends of pipes and Unix sockets."""
        pipes = [one for one in objects if one["kind"] == ObjectKind.PIPE]
        sockets = [one for one in objects if one["peer_inode"]]
        if not pipes and not sockets:
            return
        inodes = {*(one["inode"] for one in pipes), *(one["peer_inode"] for one in sockets)}
        ends = self._find_ends(frozenset(map(str, inodes)))
        peers = [(one, ends.of_pipe(one["inode"], one["pid"], _MODES.get(one["place"]))) for one in pipes]
        peers += [(one, ends.of_socket(one["peer_inode"])) for one in sockets]
        for one, pids in peers:
            if pids:
                one["peer_pid"], one["peer_comm"] = pids[0], comm_of(pids[0])

    def _find_ends(self, inodes: frozenset[str]) -> Ends:
        """Look for pipes and sockets in all processes."""
        ends, until_s = Ends(), time.monotonic() + _SCAN_S
        rest = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        for places in ((0, FIRST), (FIRST, sys.maxsize)):
            items, rest = [(pid, inodes, *places) for pid in rest], []
            for (pid, *_), answer in ask_each(self._helper, items, self._avoided):
                holders, has_more = answer.value or ((), False)
                ends.add(holders)
                rest += [pid] if has_more else []
                if time.monotonic() > until_s:
                    return ends
        return ends


def needs_scan(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Return bool[n]: True for objects whose other ends are looked for in all processes."""
    found: NDArray[np.bool_] = (rows["kind"] == ObjectKind.PIPE) | (rows["peer_inode"] != 0)
    return found


def is_epoll(row: Any) -> bool:
    """Return True for an epoll instance, a row of `struct offcpu_object`."""
    return _own_texts(row).get("name") == EPOLL and int(row["kind"]) == ObjectKind.ANONYMOUS


def _own_texts(row: Any) -> Texts:
    """Return the texts that the BPF program has read."""
    kind = int(row["kind"])
    if kind == ObjectKind.SOCKET:
        texts = socket_texts(row)
        is_unix_server = texts["protocol"] == b"unix" and row["own_name"] and row["peer_inode"]
        return texts | ({"place": b"accepted"} if is_unix_server else {})
    if kind in (ObjectKind.PATH, ObjectKind.ANONYMOUS):
        name = bytes(row["name"]).split(b"\0")[0]
        return {"name": PIDFD if name == b"/" else name}
    return {}


def _is_in_proc(row: Any, texts: Texts) -> bool:
    """Return True for an object of which /proc knows more."""
    kind = int(row["kind"])
    if kind == ObjectKind.SOCKET:
        return texts["protocol"] in _BY_PORT and bool(texts["remote"])
    return texts.get("name") in (EPOLL, PIDFD) or kind in (ObjectKind.FUTEX, ObjectKind.PIPE, *FILES)


def _numbers(row: Any) -> Described:
    is_futex = row["kind"] == ObjectKind.FUTEX
    return {
        "id": int(row["id"]),
        "kind": int(row["kind"]),
        "operation": int(row["protocol"]) if is_futex else 0,
        "pid": int(row["pid"]),
        "device": int(row["device"]),
        "number": int(row["number"]),
        "inode": int(row["inode"]),
        "address": int(row["address"]),
        "peer_inode": int(row["peer_inode"]),
        "peer_pid": 0,
        "reserved2": 0,
    }


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
