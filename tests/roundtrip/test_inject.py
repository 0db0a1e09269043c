# SPDX-License-Identifier: Apache-2.0
"""What inject writes reads back as the same Recording, in every form of input and output."""

from pathlib import Path

import numpy as np
import pytest
from builders.compare import assert_same, assert_same_but_retyped
from builders.converted import inject
from builders.foreign import big_endian

from perf_offcpu.abi.records import RecordType
from perf_offcpu.decode.load import load_recording
from perf_offcpu.perfdata.events import record_times
from perf_offcpu.perfdata.reader import PerfDataReader

DATA = Path(__file__).parent.parent / "data" / "perf-7.2"
NAMES = ["direct", "atend", "hybrid", "deferred", "compressed", "pipe", "sched"]
FORMS = {"file": {}, "pipe": {"pipe": True}, "compressed": {"compress": True}}
USUAL = ("hybrid", "sched")  # recordings that are written in each form in a run without arguments, others as a file
all_forms = pytest.mark.parametrize(("name", "form"), [
    pytest.param(name, form, marks=() if form == "file" or name in USUAL else pytest.mark.long)
    for name in NAMES for form in FORMS
])  # fmt: skip


@all_forms
def test_retyped(name: str, form: str, perf_data: Path) -> None:
    inject(DATA / f"{name}.data", perf_data, **FORMS[form])
    after = load_recording(perf_data)
    after.check()
    assert_same_but_retyped(load_recording(DATA / f"{name}.data"), after)


@all_forms
def test_as_it_was(name: str, form: str, perf_data: Path) -> None:
    """With --no-retype --no-merge-callchains, nothing is lost."""
    done = inject(DATA / f"{name}.data", perf_data, retype=False, merge=False, **FORMS[form])
    assert done.retyped == done.completed == 0
    assert_same(load_recording(DATA / f"{name}.data"), load_recording(perf_data))
    assert_same(load_recording(DATA / f"{name}.data", merge=False), load_recording(perf_data, merge=False))


@pytest.mark.parametrize("name", ["direct", "atend", "hybrid", "deferred", "compressed", "sched"])
def test_the_other_byte_order(name: str, perf_data: Path, tmp_path: Path) -> None:
    big = tmp_path / "big.data"
    big.write_bytes(big_endian(DATA / f"{name}.data"))
    before = load_recording(big)
    assert_same(load_recording(DATA / f"{name}.data"), before)
    inject(big, perf_data)
    assert_same_but_retyped(before, load_recording(perf_data))


@pytest.mark.parametrize("name", NAMES)
def test_a_second_time_nothing_changes(name: str, perf_data: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.data"
    inject(DATA / f"{name}.data", perf_data)
    done = inject(perf_data, again)
    assert done.retyped == done.completed == 0
    assert not done.losses
    assert again.read_bytes() == perf_data.read_bytes()


@pytest.mark.parametrize("name", ["atend", "hybrid", "direct", "pipe"])
def test_nothing_comes_after_perf_has_passed_its_time(name: str, perf_data: Path) -> None:
    """Sums without a time get one in the past, and perf sorts from one FINISHED_ROUND to the next."""
    inject(DATA / f"{name}.data", perf_data)
    assert late_records(perf_data) == 0


def late_records(path: Path) -> int:
    """How many records perf would call out of order (tools/perf/util/ordered-events.c)."""
    late = passed = limit = highest = 0
    rounds = 0
    with PerfDataReader.open(path) as reader:
        for chunk in reader.chunks():
            for kind, time in zip(chunk.types.tolist(), record_times(chunk, reader.events).tolist(), strict=True):
                late += 0 < time < passed
                highest = max(highest, time)
                if kind == RecordType.FINISHED_ROUND:
                    passed, limit = limit, highest
                    rounds += 1
    assert rounds
    return late


@pytest.mark.parametrize("name", ["direct", "atend", "deferred", "pipe", "compressed"])
def test_of_a_cut_recording_what_is_left(name: str, perf_data: Path, tmp_path: Path) -> None:
    """The recorder was killed, or the disk was full."""
    whole, cut = (DATA / f"{name}.data").read_bytes(), tmp_path / "cut.data"
    for size in np.linspace(1000, len(whole) - 1, 6).astype(int).tolist():
        cut.write_bytes(whole[:size])
        inject(cut, perf_data)
        assert_same_but_retyped(load_recording(cut), load_recording(perf_data))
