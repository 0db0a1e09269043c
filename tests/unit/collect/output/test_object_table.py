# SPDX-License-Identifier: Apache-2.0
"""Descriptions of objects at the end of a file, while a scan of all processes is going on."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.kernel_totals.memory import Unread
from perf_offcpu.collect.output import object_table
from perf_offcpu.collect.output.object_table import KnownObjects, ObjectTable
from perf_offcpu.resources import bpf_dir

ROW = read_header(bpf_dir() / "off_cpu.h").structs["object"]


def pipe(number: int) -> Any:
    row = np.zeros(1, ROW)
    row["id"], row["kind"] = number, ObjectKind.PIPE
    return row


def test_end_of_file_waits_for_objects_that_wait_for_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    new, named, go_on = [pipe(1)], list[int](), threading.Event()
    maps = SimpleNamespace(take_objects=lambda: new.pop() if new else np.zeros(0, ROW))
    options = SimpleNamespace(object_names=True, is_steady=True)
    collector: Any = SimpleNamespace(
        options=options, program=SimpleNamespace(maps=maps), counters_event=None, unread=Unread()
    )

    def describe(rows: Any, **_: object) -> list[Any]:
        assert go_on.wait(10)
        return [{"id": int(row["id"])} for row in rows]

    def write(objects: list[Any], _: object) -> None:
        named.extend(one["id"] for one in objects)

    # So long that nothing is scanned again before the test ends.
    monkeypatch.setattr(object_table, "STEADY_SCAN_SHARE", 1e-12)
    objects = ObjectTable(collector)
    monkeypatch.setattr(objects._describer, "describe", describe)
    monkeypatch.setattr(objects, "_write", write)
    objects.follow([])
    new.append(pipe(2))
    objects.finish([], go_on.set)
    assert named == [1, 2]


def test_descriptions_are_used_for_some_time_and_then_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now, described = [1000.0], list[int]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    known = KnownObjects(300.0)

    def describe(rows: Any) -> list[Any]:
        described.extend(rows["id"].tolist())
        return [{"id": number} for number in rows["id"].tolist()]

    for second in range(0, 3000, 10):
        now[0] = 1000.0 + second
        rows = np.concatenate([pipe(7), pipe(1000 + second)])
        assert [one["id"] for one in known.described(rows, describe)] == [7, 1000 + second]
    assert described.count(7) == pytest.approx(3000 / 300, abs=1)
    assert len(known._known) <= 2 * 300 / 10 + 2, "those of processes that have ended do not stay"
