# SPDX-License-Identifier: Apache-2.0
"""inject --switches: what comes out is what the reader finds by itself."""

from pathlib import Path

import pytest
from builders.compare import sample_rows
from builders.foreign import big_endian
from builders.injected import inject
from builders.program import run as perf_offcpu
from builders.switching import SwitchTable, write_switches

from perf_offcpu import losses
from perf_offcpu.binary.fields import Order
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.callchains import Ragged

FIXTURE = Path(__file__).parents[2] / "data" / "perf-7.2" / "sched.data"
MS = 1_000_000


@pytest.fixture
def injected(tmp_path: Path) -> Path:
    done = inject(FIXTURE, tmp_path / "out.data", switches=True)
    assert done.waits == 145
    assert done.losses[losses.BEGIN_UNKNOWN] == load_recording(FIXTURE).losses[losses.BEGIN_UNKNOWN]
    return tmp_path / "out.data"


def test_the_output_says_what_the_reader_finds(injected: Path) -> None:
    found, written = load_recording(FIXTURE), load_recording(injected)
    written.check()
    assert [evsel.name for evsel in written.evsels] == [evsel.name for evsel in found.evsels]
    assert sample_rows(written) == sample_rows(found)
    samples = found.samples
    assert (samples.waker_callchain >= 0).any() and (samples.waker_tid == 0).any()


def test_once_is_enough_and_only_if_asked_for(injected: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.data"
    assert inject(injected, again, switches=True).waits == 0
    assert sample_rows(load_recording(again)) == sample_rows(load_recording(injected))
    assert inject(FIXTURE, again).waits == 0
    assert "offcpu-time" not in [evsel.name for evsel in load_recording(again, switches=False).evsels]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("chains", [True, False])
def test_both_byte_orders(order: Order, chains: bool, tmp_path: Path) -> None:
    rows = [(10 * MS, 0, 7, 0, 1), (12 * MS, 0, 0, 7, 0), (13 * MS, 0, 7, 0, 2), (17 * MS, 0, 0, 7, 0)]
    stacks = Ragged.from_lists([[2**64 - 128, 2**63 + row] for row in range(4)]) if chains else Ragged()
    write_switches(tmp_path / "perf.data", SwitchTable.of(zip(*rows, strict=True), stacks), order=order)
    assert inject(tmp_path / "perf.data", tmp_path / "out.data", switches=True).waits == 2
    found, written = load_recording(tmp_path / "perf.data"), load_recording(tmp_path / "out.data")
    assert found.samples.period.tolist()[-3:] == written.samples.period.tolist()[-3:]
    assert sample_rows(found) == sample_rows(written)


def test_a_copy_of_the_other_byte_order(injected: Path, tmp_path: Path) -> None:
    """Raw data of tracepoints is turned field by field."""
    big = tmp_path / "big.data"
    big.write_bytes(big_endian(FIXTURE))
    assert inject(big, tmp_path / "big.out.data", switches=True).waits == 145
    assert sample_rows(load_recording(tmp_path / "big.out.data")) == sample_rows(load_recording(injected))


def test_the_option(tmp_path: Path) -> None:
    done = perf_offcpu("inject", "-v", "-f", "--switches", "-i", FIXTURE, "-o", tmp_path / "out.data")
    assert "145 waits between context switches added" in done.stderr
