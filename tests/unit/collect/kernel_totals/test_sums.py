# SPDX-License-Identifier: Apache-2.0
"""Sums as samples: read back by the layouts of one record at a time."""

from typing import Any

import numpy as np
import pytest

from perf_offcpu.abi.attr import Attr, SampleType
from perf_offcpu.abi.offcpu import BLANK_EXTENSION, EXTENSION, EXTENSION_SIZE, PAYLOAD, Kind
from perf_offcpu.abi.records import RECORD_HEADER, RecordType
from perf_offcpu.abi.sample import SAMPLE
from perf_offcpu.collect.events.evsels import SAMPLE_TYPE
from perf_offcpu.collect.kernel_totals.waits import first_addresses, sum_samples, with_user_marker
from perf_offcpu.perfdata.events import EventSpec

USER = 2**64 - 512
EVENT = EventSpec(Attr(sample_type=SAMPLE_TYPE | SampleType.RAW), "offcpu-time", (77, 78))
ROW = np.dtype(
    [
        ("pid", "u4"), ("tid", "u4"), ("state", "u4"), ("syscall", "i4"), ("flags", "u4"), ("cgroup", "u8"),
        ("stack", "u8"), ("total_ns", "u8"), ("count", "u8"), ("longest_ns", "u8"),
        ("first_switch_out_ns", "u8"), ("last_switch_in_ns", "u8"), ("runq_ns", "u8"), ("woken", "u4"),
        ("lost", "u4"), ("caller", "u8"),
    ]
)  # fmt: skip


def stacks(*each: list[int]) -> tuple[Any, Any]:
    offsets = np.cumsum([0, *map(len, each)])
    return offsets.astype(np.int64), np.array([ip for stack in each for ip in stack], np.uint64)


def unpacked(data: bytes) -> list[dict[str, Any]]:
    """The samples in `data`, each with its payload and extension."""
    found, at = [], 0
    while at < len(data):
        header = RECORD_HEADER.unpack(data, start=at)
        assert header["type"] == RecordType.SAMPLE and header["size"] % 8 == 0
        values = SAMPLE.unpack(data, shape=EVENT.shape, start=at + 8, end=at + header["size"])
        payload, end = PAYLOAD.unpack_from(values["raw"], "<", None, 0, len(values["raw"]))
        extension = EXTENSION.unpack(values["raw"], start=end)
        assert values["raw"][end + EXTENSION_SIZE :] == bytes(4)
        found.append({"header": values, "payload": payload, "extension": extension})
        at += header["size"]
    return found


def test_every_field_arrives() -> None:
    sums = np.zeros(2, ROW)
    sums[0] = (10, 11, 0x2001, 202, 0, 4096, 5, 3_000_000, 7, 900_000, 1000, 2000, 55_000, 6, 0, 7)
    sums[1] = (10, 12, 0, -1, 5, 0, 0, 2**40, 2**33, 2**39, 1, 2**62, 0, 0, 1, 0)
    (data,) = sum_samples(EVENT, sums, stacks([0x400, 2**47 - 1, 0x500], []))
    first, second = unpacked(data)
    header = {
        "identifier": 77, "ip": 0x400, "pid": 10, "tid": 11, "time": 2000, "cpu": 0, "period": 3_000_000,
    }  # fmt: skip
    assert {name: first["header"][name] for name in header} == header
    assert first["payload"] == {
        "pid": 10, "tid": 11, "offcpu_ns": 3_000_000, "nr": 4, "callchain": [USER, 0x400, 2**47 - 1, 0x500],
        "cgroup": 4096,
    }  # fmt: skip
    assert first["extension"] == BLANK_EXTENSION | {
        "kind": Kind.SUM, "state": 0x2001, "syscall": 202, "count": 7, "switch_out_ns": 1000,
        "longest_ns": 900_000, "runq_ns": 55_000, "caller": 7,
    }  # fmt: skip
    assert (second["header"]["ip"], second["header"]["time"]) == (0, 2**62)
    assert second["payload"]["callchain"] == []
    assert (second["extension"]["count"], second["extension"]["lost"]) == (2**33, 1)
    assert (second["extension"]["syscall"], second["extension"]["flags"]) == (-1, 5)
    assert second["extension"]["runq_ns"] == 2**64 - 1


def test_many_sums_come_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf_offcpu.collect.kernel_totals.waits.BATCH", 100)
    sums = np.zeros(250, ROW)
    sums["tid"], sums["total_ns"] = np.arange(250), np.arange(250) * 1000
    given = [list(range(tid, tid + tid % 7)) for tid in range(250)]
    pieces = list(sum_samples(EVENT, sums, stacks(*given)))
    found = [one for piece in pieces for one in unpacked(piece)]
    assert len(pieces) == 3
    assert [one["payload"]["tid"] for one in found] == list(range(250))
    assert [one["payload"]["callchain"][1:] for one in found] == given
    assert sum(one["header"]["period"] for one in found) == 1000 * 250 * 249 // 2


def test_no_sums_no_records() -> None:
    assert list(sum_samples(EVENT, np.zeros(0, ROW), stacks())) == []


def test_marker_stands_before_frames_only() -> None:
    offsets, words = with_user_marker(stacks([], [1, 2], [], [3]))
    assert (offsets.tolist(), words.tolist()) == ([0, 0, 3, 3, 5], [USER, 1, 2, USER, 3])
    assert first_addresses((offsets, words)).tolist() == [0, 1, 0, 3]
    assert first_addresses(stacks([])).tolist() == [0]
