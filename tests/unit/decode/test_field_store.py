# SPDX-License-Identifier: Apache-2.0
"""Every field that a sample can have comes out as it went in, for those who ask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from builders import zoo
from builders.recording import BASE, USER, S, event, sample, write

from perf_offcpu.decode.field_store import ALL_FIELDS
from perf_offcpu.decode.load import load_recording


def test_all_fields_in_both_byte_orders(tmp_path: Path) -> None:
    path = tmp_path / "x.data"
    for data in (zoo.everything(), zoo.recordings()["everything-big"]):
        path.write_bytes(data)
        recording = load_recording(path, fields=ALL_FIELDS)
        recording.check()
        one = recording.fields.events[0]
        scalars = {name: values.tolist() for name, values in one.scalars.items()}
        assert {name: scalars[name] for name in (
            "addr", "stream_id", "read_time_enabled", "branch_hw_idx", "weight", "data_src", "transaction",
            "phys_addr", "data_page_size", "code_page_size", "stack_user_dyn_size", "regs_user_abi",
        )} == {
            "addr": [0x7000], "stream_id": [9], "read_time_enabled": [100], "branch_hw_idx": [3],
            "weight": [77], "data_src": [88], "transaction": [99], "phys_addr": [0x1234],
            "data_page_size": [4096], "code_page_size": [4096], "stack_user_dyn_size": [48],
            "regs_user_abi": [2],
        }  # fmt: skip
        arrays = {name: items.row(0).tolist() for name, items in one.arrays.items()}
        assert arrays == {
            "read_group": [5, 1, 0, 6, 2, 1],
            "raw": list(b"raw bytes123"),
            "branch_stack": [0x401010, 0x401020, 1] * 2,
            "branch_counters": [1, 2],
            "regs_user": [1, 2, 3],
            "regs_intr": [4, 5],
            "stack_user": list(range(64)),
            "aux": list(b"trace!!!"),
        }


def test_the_three_parts_of_a_structured_weight(tmp_path: Path) -> None:
    spec = event("cpu-clock", (1,), BASE | S.WEIGHT_STRUCT)
    records = [sample(spec, time=5, weight=7 << 48 | 6 << 32 | 5)]
    recording = load_recording(
        write(tmp_path / "x.data", [spec], records), fields=("var1_dw", "var2_w", "var3_w")
    )
    one = recording.fields.events[0].scalars
    assert [one[name].tolist() for name in ("var1_dw", "var2_w", "var3_w")] == [[5], [6], [7]]


def test_samples_find_their_fields_whatever_their_order_and_event(tmp_path: Path) -> None:
    """Samples are sorted by time, damaged ones are dropped, and not every event has the field."""
    first = event("cpu-clock", (1,), BASE | S.ADDR)
    second = event("page-faults", (2,), BASE | S.CALLCHAIN)
    records = [
        sample(first, time=30, addr=3),
        sample(second, time=20, callchain=[USER, 7]),
        sample(first, time=25, addr=9, period=2**63),
        sample(first, time=10, addr=1),
    ]
    recording = load_recording(write(tmp_path / "x.data", [first, second], records), fields=("addr",))
    samples = recording.samples
    addresses, known = recording.fields.scalar("addr", samples.evsel, samples.field_row)
    assert samples.time_ns.tolist() == [10, 20, 30]
    assert addresses.tolist() == [1, 0, 3]
    assert known.tolist() == [True, False, True]
    assert recording.fields.names() == {"addr"}
    assert recording.fields.array("regs_user", 0, 0) is None
    none, unknown = recording.fields.scalar("weight", samples.evsel, samples.field_row)
    assert not none.any() and not unknown.any() and none.dtype == np.uint64
