# SPDX-License-Identifier: Apache-2.0
"""Decode the tables of wait objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perf_offcpu.abi.wait_objects import OBJECTS, TEXTS
from perf_offcpu.binary.fields import Order
from perf_offcpu.errors import LayoutError
from perf_offcpu.model.recording import WaitObjects
from perf_offcpu.model.strings import Strings

ObjectRow = dict[str, Any]
"""Fields of an object by name, with texts as bytes."""

_MOST_PID = 2**31 - 1


def read_objects(payload: bytes, order: Order) -> dict[int, ObjectRow]:
    """Return id → object of a payload; none if it is damaged."""
    try:
        values = OBJECTS.unpack(payload, order)
    except LayoutError:
        return {}
    rows, texts = values["objects"], values["text"].split(b"\0")
    if len(texts) != len(TEXTS) * len(rows) + 1:
        return {}
    found = {}
    for at, row in enumerate(rows):
        words = texts[len(TEXTS) * at :][: len(TEXTS)]
        found[row["id"]] = row | dict(zip(TEXTS, words, strict=True))
    return found


def object_table(objects: Mapping[int, ObjectRow], strings: Strings) -> WaitObjects:
    """Return the table of all objects, sorted by id."""
    rows = [objects[id_] for id_ in sorted(objects)]
    columns: dict[str, Any] = {name: strings.intern_all(row[name] for row in rows) for name in TEXTS}
    for name in ("id", "kind", "device", "inode", "number", "address", "peer_inode"):
        columns[name] = [row[name] for row in rows]
    for name in ("pid", "peer_pid"):  # 0 is no process of a user
        columns[name] = [row[name] if 0 < row[name] <= _MOST_PID else -1 for row in rows]
    return WaitObjects.filled(len(rows), **columns)
