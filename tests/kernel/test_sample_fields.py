# SPDX-License-Identifier: Apache-2.0
"""Fields of samples beyond thread, time and callchain, against what perf prints of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording

pytestmark = pytest.mark.beside

WORK = ["sh", "-c", "ls -R /etc > /dev/null; head -c 100M /dev/zero | cksum > /dev/null"]


def recorded(path: Path, options: str, fields: tuple[str, ...]) -> Recording:
    command = ["perf", "record", "-q", "-B", "-o", path, *options.split(), "--", *WORK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    recording = load_recording(path, fields=fields)
    recording.check()
    assert len(recording.samples) > 3
    return recording


def perf_rows(path: Path, fields: str) -> list[list[str]]:
    command = ["perf", "script", "-i", path, "-F", fields]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [line.split() for line in text.splitlines()]


def values(recording: Recording, name: str) -> list[int]:
    samples = recording.samples
    found, known = recording.fields.scalar(name, samples.evsel, samples.field_row)
    assert known.all()
    return [int(value) for value in found.tolist()]


def test_addresses_and_weights(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    names = ("addr", "weight", "phys_addr", "data_page_size")
    # Of cpu-clock, for of page-faults perf also names what lies at the address.
    recording = recorded(path, "-e cpu-clock -F 4000 -d -W --phys-data --data-page-size", names)
    rows = perf_rows(path, "tid,addr,weight,phys_addr")
    assert [row[0] for row in rows] == [str(tid) for tid in recording.samples.tid.tolist()]
    assert [int(row[1], 16) for row in rows] == values(recording, "addr")
    assert [int(row[2]) for row in rows] == values(recording, "weight")
    assert [int(row[3], 16) for row in rows] == values(recording, "phys_addr")
    assert len(values(recording, "data_page_size")) == len(rows)


@pytest.mark.parametrize("which, field", [("--intr-regs", "iregs"), ("--user-regs", "uregs")])
def test_registers(which: str, field: str, tmp_path: Path) -> None:
    path, name = tmp_path / "perf.data", {"iregs": "regs_intr", "uregs": "regs_user"}[field]
    recording = recorded(path, f"-e cpu-clock -F 4000 {which}=ax,sp,ip", (name, f"{name}_abi"))
    rows = perf_rows(path, f"tid,{field}")
    samples = recording.samples
    with_registers = 0
    for row, tid, evsel, at in zip(
        rows, samples.tid.tolist(), samples.evsel.tolist(), samples.field_row.tolist(), strict=True
    ):
        found = recording.fields.array(name, evsel, at)
        assert found is not None
        shown = [int(value, 16) for value in re.findall(r"(?:AX|SP|IP):(0x[0-9a-f]+)", " ".join(row))]
        assert row[0] == str(tid)
        assert found.tolist() == shown
        with_registers += bool(shown)
    assert with_registers > 1


def test_counters_that_were_read_along(tmp_path: Path) -> None:
    """The leader's own count never falls, and its members' are there, too.

    perf opens the group once a CPU, so a thread that moves goes on in another count. Nothing is inherited,
    because the kernel swaps the counts of a parent and its child where one follows the other on a CPU.
    """
    recording = recorded(
        tmp_path / "perf.data", "-i --sample-cpu -e {cpu-clock,page-faults}:S -F 4000", ("read_group",)
    )
    samples = recording.samples.take(recording.samples.field_row >= 0)  # members' samples have no fields
    assert len(samples)
    last: dict[tuple[int, int], int] = {}
    own = zip(samples.tid.tolist(), samples.cpu.tolist(), strict=True)
    for thread, at in zip(own, samples.field_row.tolist(), strict=True):
        group = recording.fields.array("read_group", 0, at)
        assert group is not None and len(group) % 2 == 0 and len(group) >= 4
        assert int(group[0]) >= last.get(thread, 0)
        last[thread] = int(group[0])


def test_nothing_is_kept_that_nobody_asked_for(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "perf.data", "-e cpu-clock -F 4000 -d -W", ())
    assert recording.fields.names() == set()
    assert np.all(recording.samples.field_row == -1)
