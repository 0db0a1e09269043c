# SPDX-License-Identifier: Apache-2.0
"""Groups of counters of which one samples: perf's `{a,b}:S`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builders.recording import BASE, S, event, sample, write

from perf_offcpu import losses
from perf_offcpu.abi.attr import AttrFlag, ReadFormat
from perf_offcpu.decode.load import load_recording

GROUP = ReadFormat.ID | ReadFormat.GROUP
LEADER = event("cpu-clock", (1, 2), BASE | S.READ | S.ADDR, read_format=GROUP)
MEMBER = event("page-faults", (3, 4), BASE | S.READ | S.ADDR, read_format=GROUP)


def read(path: Path, *samples: tuple[int, list[tuple[int, int]]]) -> list[tuple[int, str, int]]:
    """(time, event, period) of what comes of (time, counts by id)."""
    records = [
        sample(
            LEADER, time=time, period=99, addr=7, read_group=[{"id": one, "value": n} for one, n in counts]
        )
        for time, counts in samples
    ]
    recording = load_recording(write(path / "x.data", [LEADER, MEMBER], records))
    recording.check()
    table = recording.samples
    names = [recording.evsels[row].name for row in table.evsel.tolist()]
    return list(zip(table.time_ns.tolist(), names, table.period.tolist(), strict=True))


def test_each_counter_that_moved_gets_a_sample(tmp_path: Path) -> None:
    found = read(tmp_path, (10, [(1, 100), (3, 0)]), (20, [(1, 150), (3, 4)]), (30, [(1, 150), (3, 9)]))
    assert found == [
        (10, "cpu-clock", 100), (20, "cpu-clock", 50), (20, "page-faults", 4), (30, "page-faults", 5),
    ]  # fmt: skip


def test_differences_follow_time_and_not_the_file_and_each_cpu_counts_for_itself(tmp_path: Path) -> None:
    found = read(tmp_path, (30, [(1, 70)]), (10, [(1, 40)]), (20, [(2, 5), (4, 1)]))
    assert found == [
        (10, "cpu-clock", 40), (20, "cpu-clock", 5), (20, "page-faults", 1), (30, "cpu-clock", 30),
    ]  # fmt: skip


@pytest.mark.parametrize("inherit, periods", [(True, [40, 5, 30, 2]), (False, [40, 65])])
def test_threads_that_inherit_a_counter_count_for_themselves(
    inherit: bool, periods: list[int], tmp_path: Path
) -> None:
    flags = LEADER.attr.flags | (AttrFlag.INHERIT if inherit else AttrFlag(0))
    leader = replace(LEADER, attr=LEADER.attr._replace(flags=flags))
    counts = ((1, 8, 40), (2, 9, 5), (3, 8, 70), (4, 9, 7))
    records = [
        sample(leader, time=time, pid=8, tid=tid, read_group=[{"id": 1, "value": value}])
        for time, tid, value in counts
    ]
    recording = load_recording(write(tmp_path / "x.data", [leader, MEMBER], records))
    assert recording.samples.period.tolist() == periods
    assert recording.losses.get(losses.BACKWARDS, 0) == (0 if inherit else 2)


def test_counts_that_cannot_be_are_left_out_and_counted(tmp_path: Path) -> None:
    records = [
        sample(LEADER, time=time, read_group=[{"id": one, "value": value}])
        for time, one, value in ((1, 1, 50), (2, 1, 20), (3, 99, 5), (4, 3, 2**63))
    ]
    recording = load_recording(write(tmp_path / "x.data", [LEADER, MEMBER], records))
    assert recording.samples.period.tolist() == [50]
    assert recording.losses == {losses.BACKWARDS: 2, losses.UNKNOWN_ID: 1}


@pytest.mark.parametrize("extra", [ReadFormat(0), ReadFormat.LOST | ReadFormat.TOTAL_TIME_ENABLED])
def test_counters_without_a_group(extra: ReadFormat, tmp_path: Path) -> None:
    spec = event("cpu-clock", (1, 2), BASE | S.READ, read_format=ReadFormat.ID | extra)
    records = [
        sample(spec, time=time, read_value=value, read_id=1) for time, value in ((1, 5), (2, 5), (3, 9))
    ]
    recording = load_recording(write(tmp_path / "x.data", [spec], records))
    assert recording.samples.period.tolist() == [5, 4]
