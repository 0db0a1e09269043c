# SPDX-License-Identifier: Apache-2.0
"""The report as a JSON document; of large recordings."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from builders.large_recording import write_large_recording
from builders.profile import Code, ProfileBuilder, kernel

from perf_offcpu.model.recording import SampleFlag, Samples
from perf_offcpu.report.document import document
from perf_offcpu.report.summary import Limits, summarize


def test_document() -> None:
    meta = {"hostname": "box", "source": "p.data", "cmdline": ("a", "b")}
    builder = ProfileBuilder(losses={"records lost": 3}, meta=meta)
    builder.sample("sh", [Code("main", "/bin/sh"), kernel("schedule")], 2**60 + 1, tid=7, state=1)
    builder.sample("old", [], 5, flags=SampleFlag.AGGREGATED | SampleFlag.UNTIMED)
    builder.sample("sh", ["main"], 4, event="cpu-clock", tid=7)
    made = document(summarize(builder.build(), limits=Limits(stacks=1)))
    assert json.loads(json.dumps(made)) == made
    assert made["subject"] == {
        "events": ["offcpu-time"], "offcpu": True, "unit": "ns", "weight": 2**60 + 6, "count": 2,
        "count_is_exact": False, "average": None, "longest": 2**60 + 1,
    }  # fmt: skip
    assert made["stacks"] == [
        {
            "comm": "sh", "weight": 2**60 + 1, "count": 1, "count_is_exact": True, "average": 2**60 + 1,
            "longest": 2**60 + 1, "states": {"S": 2**60 + 1}, "classes": {"other": 2**60 + 1}, "syscalls": {},
            "still_blocked": 0, "error_ns": 0,
            "frames": [
                {"name": "main", "dso": "sh", "kind": "user"},
                {"name": "schedule", "dso": "[kernel.kallsyms]", "kind": "kernel"},
            ],
        }
    ]  # fmt: skip
    assert made["more_stacks"] == {"rows": 1, "weight": 5}
    threads = [(row["comm"], row["tid"], row["weight"]) for row in made["threads"]]
    assert threads == [("sh", 7, 2**60 + 1), ("old", 100, 5)]
    assert made["threads"][0]["beside"] == {"event": "cpu-clock", "weight": 4, "count": 1}
    assert [event["name"] for event in made["events"]] == ["offcpu-time", "cpu-clock"]
    assert (made["losses"], made["recording"]["command"]) == ({"records lost": 3}, ["a", "b"])


def test_names_are_printable() -> None:
    builder = ProfileBuilder(losses={"\x1b": 1}, meta={"hostname": "\udcff"}).sample("\n", ["\u2028"], 5)
    made = document(summarize(builder.build()))
    assert json.dumps(made, ensure_ascii=False).isprintable()
    assert made["threads"][0]["beside"] is None
    assert made["threads"][0]["comm"] == "\\n" and made["recording"]["hostname"] == "\\xff"


BYTES_PER_SAMPLE = 235
"""That of all columns is 149, and steps need more; 267 before columns of one value took none."""


REPORT = """
import contextlib, os, re, sys
from perf_offcpu.cli import main
with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
    status = main(["report", "-i", sys.argv[1]])
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
sys.exit(status)
"""


def memory_of_report(path: Path) -> int:
    """Return the largest number of resident bytes of `report`, in a process of its own. The kernel's figure for a child
    that has ended (ru_maxrss) begins with that of its parent."""
    done = subprocess.run([sys.executable, "-c", REPORT, str(path)], capture_output=True, text=True, check=True)
    return int(done.stdout) << 10


@pytest.mark.long
def test_memory_grows_with_the_samples(tmp_path: Path) -> None:
    counts, memory = (150_000, 450_000), []
    for count in counts:
        path = tmp_path / "x.data"
        write_large_recording(path, count, processes=8, deferred=0, storm=0, stacks=500, depth=30)
        memory.append(memory_of_report(path))
    assert 50 < (memory[1] - memory[0]) / (counts[1] - counts[0]) < BYTES_PER_SAMPLE
    assert sum(one.dtype.itemsize for one in Samples.columns.values()) < BYTES_PER_SAMPLE
