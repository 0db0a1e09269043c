# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu script` on recordings of perf 7.2."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import program
from builders.foreign import big_endian
from builders.perf_text import DEFERRED, Printed, parse
from builders.refused import output, refused

from perf_offcpu.cli import EXIT_BROKEN_PIPE, main

DATA = Path(__file__).resolve().parents[2] / "data" / "perf-7.2"
PROGRAM = Path(sys.executable).with_name("perf-offcpu")
Script = Callable[..., str]


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> Script:
    def run(name: str, *options: str) -> str:
        return output(capsys, "script", "-i", str(DATA / f"{name}.data"), *options)

    return run


def heads(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("\t")]


def test_all_events_by_time(script: Script) -> None:
    samples = parse(script("direct"))
    assert {sample.event for sample in samples} == {"cpu-clock", "offcpu-time"} and len(samples) == 509
    assert sorted(samples, key=lambda sample: float(sample.time)) == samples
    lines = script("direct", "-G").splitlines()
    assert len(lines) == 509
    assert all(line.count(" (") == 1 for line in lines), "one line a sample without a call graph"


def test_selections(script: Script) -> None:
    def chosen(*options: str) -> list[Printed]:
        return parse(script("direct", *options))

    assert {one.comm for one in chosen("--comm", "reader,writer")} == {"reader", "writer"}
    assert {one.event for one in chosen("--event", "offcpu-time")} == {"offcpu-time"}
    assert {one.tid for one in chosen("--tid", "132,133")} == {132, 133}
    assert len(chosen("--pid", "126")) == 509 and chosen("--pid", "1") == []


def test_fields_are_given_as_to_perf(script: Script) -> None:
    """Also `-F -sym`, which argparse alone takes for two options."""
    assert "(/root/blocker)" in script("direct") and "(/root/blocker)" not in script("direct", "-F", "-dso")
    assert script("direct", "-F", "-sym,-symoff") == script("direct", "--fields", "-sym,-symoff")
    assert script("direct", "-F", "+state") == script("direct", "--fields=+state")
    assert heads(script("atend", "-F", "comm,period,flags"))[0].split() == (
        "reader 181547739 flags=aggregated|untimed".split()
    )
    assert heads(script("direct", "--ns", "-F", "time"))[0] == "   13.865517009: "


def test_fields_of_events_of_a_type(script: Script) -> None:
    assert script("sched", "-F", "trace:time,event") == script("sched", "-F", "time,event")
    assert script("sched", "-F", "trace:") == ""
    both = script("sched", "--event", "offcpu-time,sched:sched_wakeup", "-F", "trace:event", "-F", "sw:comm")
    assert "sched:sched_wakeup: \n" in both and "offcpu-time" not in both


def test_tracepoints_of_both_byte_orders(script: Script, tmp_path: Path) -> None:
    (tmp_path / "big.data").write_bytes(big_endian(DATA / "sched.data"))
    assert script(str(tmp_path / "big")) == script("sched")


def test_unmerged_callchains(script: Script) -> None:
    merged, apart = parse(script("deferred")), parse(script("deferred", "--no-merge-callchains"))
    assert [one.event for one in merged].count(DEFERRED) == 0
    assert [one.event for one in apart].count(DEFERRED) == 506 and len(apart) == len(merged) + 506


def test_waits_between_switches_show_when_asked_for(script: Script) -> None:
    """Waits derived from context switches are no recorded samples; by default only these are printed."""
    assert {one.event for one in parse(script("sched"))} == {"sched:sched_switch", "sched:sched_wakeup"}
    assert {one.event for one in parse(script("sched", "--event", "offcpu-time"))} == {"offcpu-time"}


def test_standard_input_gives_the_same(script: Script) -> None:
    assert program.run("script", "-i", "-", stdin=DATA / "pipe.data").stdout == script("pipe")


def test_damage_is_reported_on_standard_error(perf_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    perf_data.write_bytes((DATA / "direct.data").read_bytes()[:60_004])
    assert main(["script", "-i", str(perf_data)]) == 2
    out, err = capsys.readouterr()
    assert 100 < len(parse(out)) < 509 and err.count("bytes missing") == 1
    lines = [line for line in err.splitlines() if "no name" in line]  # other causes show in the frames
    assert all(line.endswith("has another build-id than the recorded one") for line in lines)
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize("words", [
    "script", "report --json", pytest.param("dump", marks=pytest.mark.long),
    pytest.param("convert --chrome-trace -o -", marks=pytest.mark.long),
])  # fmt: skip
def test_a_reader_that_goes_away_ends_it_quietly(words: str) -> None:
    command: list[str | Path] = [PROGRAM, *words.split(), "-f", "-i", DATA / "direct.data"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=4096) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait(timeout=60) == EXIT_BROKEN_PIPE


def test_a_dump_and_the_list_of_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "-i", str(DATA / "atend.data")]) == 0
    out, err = capsys.readouterr()
    assert (out.splitlines()[-1], err) == ("  PERF_RECORD_TIME_CONV: 1", "")
    refused(capsys, "dump", "-i", str(DATA / "blocker"), status=1)
    assert "\n  waker        pid/tid of the waker\n" in output(capsys, "script", "--help")


def test_the_header(script: Script) -> None:
    header = script("direct", "--header-only")
    lines = header.splitlines()
    assert lines[0] == lines[-2] == "# ========" and lines[-1] == "#"
    assert "# arch : x86_64" in lines and "# nrcpus online : 2" in lines
    assert "# event : name = offcpu-time, unit = ns" in lines
    assert script("direct", "--header") == header + script("direct")
    assert all(line.startswith("#") for line in lines)
