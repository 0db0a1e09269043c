# SPDX-License-Identifier: Apache-2.0
"""Any table of wait objects, and any waits for them: names are made, and every view takes them."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from builders.converted import converted
from builders.recording import BASE, S, comm, event, write
from builders.wait_objects import COUNTERS, WAITS, described, thing, wait
from hypothesis import given, settings
from hypothesis import strategies as st

from perf_offcpu.abi.wait_objects import TEXTS
from perf_offcpu.decode.load import load_recording
from perf_offcpu.report import lock_report
from perf_offcpu.report.document import document
from perf_offcpu.report.style import Style
from perf_offcpu.report.summary import summarize
from perf_offcpu.report.terminal import render
from perf_offcpu.symbolize.symbolizer import symbolize

CLOCK = event("cpu-clock", (1,), BASE | S.CALLCHAIN)
PIDS = st.sampled_from([0, 10, 20, 2**31 - 1, 2**32 - 1])
TEXT = st.sampled_from(
    ["", "/a", "heap", "stack", "read end", "unix", "tcp", "10.0.0.1:80", "10.0.0.7:40000",
     "[::ffff:10.0.0.1]:80", "[eventpoll]", "+0x0", "/q+0x40", "a:b:c", "\x1b[31m", "x" * 300,
     "[::ffff:", "/dev/zero (deleted)+0x1"]
)  # fmt: skip
NUMBER = st.sampled_from([0, 1, 5, 0x1000, 2**63, 2**64 - 1])


@st.composite
def objects(draw: st.DrawFn, id_: int) -> dict[str, Any]:
    fields: dict[str, Any] = {name: draw(TEXT) for name in TEXTS}
    fields |= {name: draw(NUMBER) for name in ("inode", "address", "peer_inode")}
    fields |= {"pid": draw(PIDS), "peer_pid": draw(PIDS), "device": draw(st.sampled_from([0, 1, 2**32 - 1]))}
    fields["number"] = draw(st.sampled_from([-(2**31), -1, 0, 3, 2**31 - 1]))
    kind = draw(st.sampled_from([*range(14), 99, 2**16 - 1]))
    return thing(id_, 0, **fields) | {"kind": kind}  # type: ignore[arg-type]


@st.composite
def waits(draw: st.DrawFn) -> list[dict[str, Any]]:
    return draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "object_id": st.integers(0, 5), "pid": st.sampled_from([10, 20]),
                    "tid": st.sampled_from([10, 11, 20, 21]), "time": st.integers(1000, 2000),
                    "ns": st.integers(0, 900), "kind": st.integers(1, 4),
                    "syscall": st.sampled_from([0, 1, 7, 35, 45, 202, -1]),
                    "asked_ns": st.sampled_from([0, 5, 2**63 - 1, 2**64 - 1]),
                    "holder_tid": st.sampled_from([0, 10, 11, 21, 2**31, 2**32 - 1]),
                    "waker_pid": st.sampled_from([0, 10, 20, 2**32 - 1]),
                    "waker_tid": st.sampled_from([0, 10, 21, 2**32 - 1]),
                    "object_lost": st.integers(0, 2**32 - 1),
                }
            ),
            max_size=12,
        )
    )  # fmt: skip


@settings(max_examples=60)
@given(st.data())
def test_every_view_takes_any_objects(data: st.DataObject) -> None:
    table = [data.draw(objects(id_)) for id_ in range(1, data.draw(st.integers(1, 5)))]
    some = data.draw(waits())
    names = [comm(CLOCK, 10, 10, "a"), comm(CLOCK, 10, 11, "b"), comm(CLOCK, 20, 20, "c")]
    records = [*names, described(*table), *(wait(**one) for one in sorted(some, key=lambda one: one["time"]))]
    with TemporaryDirectory() as directory:
        recording = load_recording(write(Path(directory) / "x.data", [CLOCK, WAITS, COUNTERS], records))
    profile = symbolize(recording)
    profile.check()
    summary = summarize(profile)
    total = sum(row.total.weight for row in summary.objects.rows) + summary.objects.without
    assert total == int(profile.samples.period.sum())
    text = "\n".join([*render(summary, Style()), *lock_report.render(report := _locks(profile), Style())])
    assert "\x1b" not in text
    json.dumps([document(summary), lock_report.document(report)])
    edges = json.loads(converted("callgraph", profile, objects=True, form="json", min_share=0))["edges"]
    waited = sum(edge["weight"] for edge in edges if edge["what"] == "waited")
    assert waited == int(profile.samples.period[(profile.samples.object >= 0) & profile.is_offcpu()].sum())


def _locks(profile: Any) -> lock_report.LockReport:
    return lock_report.report_of(profile, None)
