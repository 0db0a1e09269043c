# SPDX-License-Identifier: Apache-2.0
"""The Python API: the documented example, both kinds of data frames, a cheap import."""

import importlib.util
import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders.profile import Code, ProfileBuilder, kernel

import perf_offcpu
from perf_offcpu.convert.dataframe import COLUMNS, to_dataframe
from perf_offcpu.errors import UsageError
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"


def demo() -> perf_offcpu.Profile:
    return perf_offcpu.load(DATA / "demo.data", symfs=str(DATA / "demo.symfs"), kallsyms=str(DATA / "demo.kallsyms"))


def test_the_documented_example_and_columns(tmp_path: Path) -> None:
    text = (ROOT / "Documentation" / "python-api.md").read_text()
    code = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    shutil.copy(DATA / "demo.data", tmp_path / "perf.data")
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    # futex() waits for locks: no symbols are needed to know.
    assert done.stdout.splitlines()[:2] == ["wait_class", "lock     805857539"], done.stdout
    assert "".join(f"- `{name}`: {meaning}\n" for name, meaning in COLUMNS.items()) in text


def test_the_import_costs_nothing() -> None:
    costly = "any(name.startswith(('numpy', 'perf_offcpu.')) for name in sys.modules)"
    command = [sys.executable, "-c", f"import sys, perf_offcpu\nsys.exit({costly})"]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = perf_offcpu.nothing


def hand_made() -> Profile:
    builder = ProfileBuilder(
        meta={"arch": "x86_64"}, cgroups={5: "/user.slice"}, tasks=[(9, 100, 0, -1)], comms=[(9, 8, 0, "waker")]
    )
    builder.sample(
        "a", ["main", Code("f;g"), kernel("futex_wait")], 2**60 + 1, tid=1, cpu=2, state=1, syscall=202, waker_tid=9,
        waker_pid=8, wakeup_ns=50, runq_ns=0, cgroup=5, object=builder.thing("m in a"), holder_tid=9, switch_out_ns=40,
    )  # fmt: skip
    sums = SampleFlag.AGGREGATED | SampleFlag.UNTIMED
    builder.sample("b\n", [], 7, flags=sums, time_ns=-1, count=3, longest_ns=4, cgroup=6)
    return builder.sample("a", ["main"], 3, event="cpu-clock", time_ns=99).build()


def rows(profile: Profile, library: str) -> list[dict[str, Any]]:
    frame = to_dataframe(profile, library)
    assert list(frame.columns) == list(COLUMNS)
    if library == "polars":
        return list(frame.to_dicts())
    records = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(key): value for key, value in record.items()} for record in records]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_rows(library: str) -> None:
    wait, summed, cpu = rows(hand_made(), library)
    assert wait == {
        **{"time_ns": 0, "event": "offcpu-time", "period": 2**60 + 1, "comm": "a", "pid": 100, "tid": 1},
        **{"cpu": 2, "offcpu": True, "sum": False, "count": 1, "longest_ns": None, "switch_out_ns": 40},
        **{"wakeup_ns": 50, "runq_ns": 0, "state": "S", "wait_class": "lock", "syscall": "futex"},
        **{"waker_pid": 8, "waker_tid": 9, "waker_comm": "waker", "cgroup": "/user.slice"},
        **{"object": "m in a", "object_kind": "futex", "network": None, "holder_tid": 9, "asked_ns": None},
        "stack": "main;f:g;futex_wait",
    }
    unknown = {"time_ns", "cpu", "switch_out_ns", "wakeup_ns", "runq_ns", "state", "syscall"}
    unknown |= {"waker_pid", "waker_tid", "waker_comm", "object", "object_kind", "network", "holder_tid", "asked_ns"}
    assert {name for name, value in summed.items() if value is None} == unknown
    assert (summed["sum"], summed["count"], summed["comm"], summed["cgroup"]) == (True, 3, "b\\n", "6")
    assert (cpu["offcpu"], cpu["wait_class"], cpu["cgroup"], cpu["period"]) == (False, None, None, 3)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_recording(library: str) -> None:
    profile = demo()
    found = rows(profile, library)
    assert len(found) == len(profile.samples)
    assert sum(row["period"] for row in found) == int(profile.samples.period.sum())
    pipes = [row for row in found if row["wait_class"] == "pipe" and row["comm"] == "pipe-reader"]
    assert [row["syscall"] for row in pipes] == ["read"] * 10
    assert all("receive_letter" in row["stack"].split(";") for row in pipes)


def test_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for library, sentence in ((), "needs pandas or polars: install it"), (("dask",), "needs dask"):
        with pytest.raises(UsageError, match=sentence):
            to_dataframe(hand_made(), *library)


def test_formats_can_be_written() -> None:
    profile = demo()
    waits = profile.select(profile.is_offcpu())
    out = io.StringIO()
    waits.write("folded", out, unit="us", tid=True)
    assert "pipe-reader-" in out.getvalue()
    with pytest.raises(UsageError, match="no format 'gif'"):
        waits.write("gif", out)
    with pytest.raises(UsageError, match="--title means nothing to --folded"):
        waits.write("folded", out, title="x")


def test_events() -> None:
    assert perf_offcpu.load(DATA / "demo.data", events=()).is_offcpu().all()
    assert not perf_offcpu.load(DATA / "demo.data", events=["cpu-clock"]).is_offcpu().any()
