# SPDX-License-Identifier: Apache-2.0
"""inject of recordings made here and now: by stock perf in each of its forms, and by this project."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from builders.compare import assert_same, assert_same_but_retyped
from builders.program import run as perf_offcpu
from builders.stock_perf import REPORT, complaints, with_names

from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.decode.load import load_recording
from perf_offcpu.perfdata.reader import PerfDataReader

pytestmark = pytest.mark.beside

WORK = "for i in 1 2 3; do ls /usr/lib; sleep 0.01; done > /dev/null; head -c 20M /dev/zero | cksum > /dev/null"
SHELL = ["--", "sh", "-c", WORK]

FORMS = {
    "one event": "-g -e cpu-clock -F 997", "no ids in samples": "-e cpu-clock -F 4000",
    "two events": "-g -e cpu-clock -e page-faults",
    "different fields": "-e cpu-clock/call-graph=fp/ -e page-faults/call-graph=no/ -d --weight",
    "group read": "-e {cpu-clock,page-faults}:S -g", "compressed": "-z -g -e cpu-clock -F 4000",
    "switches": "--switch-events -e cpu-clock -g", "clock": "-k mono -e cpu-clock -g",
    "user stacks": "--call-graph dwarf,4096 -e cpu-clock",
    "registers": "--intr-regs=ip,sp --user-regs=ip,sp -e cpu-clock",
    "tracepoints": "-e sched:sched_switch -e sched:sched_wakeup -a -g",
    "system": "-a -e cpu-clock -g --all-cgroups", "directory": "--threads -a -e cpu-clock -g",
}  # fmt: skip


def record(path: Path, options: str) -> None:
    # -B: no build-ids, for when perf 6.1 looks for them it falls over leaked flags (perfdata.leaked_flag).
    command: list[str | Path] = ["perf", "record", "-q", "-B", "-o", path, *options.split(), *SHELL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def perf(verb: str, path: Path) -> str:
    command: list[str | Path] = ["perf", *verb.split(), "-i", path]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    # perf reports what the ring lost; inject passes that on.
    lost = r"Warning:\n(Processed|Check IO)[^\n]*\n+|Check IO/CPU overload!\n+"
    assert re.sub(lost, "", complaints(done.stderr)) == ""
    assert done.returncode == 0
    return done.stdout


MORE = ("one event", "two events", "clock", "no ids in samples", "compressed", "switches")
"""Forms whose parts others have, too, or files of perf 7.2 (tests/roundtrip)."""
SCRIPT = "script --ns -F comm,pid,tid,time,period,event,ip,sym,dso"
OF_OTHERS = "script --ns -F comm,pid,tid,time,period,event,ip,dso"
"""Of processes in other mount namespaces, perf finds symbols for as long as they run: not always twice."""


@pytest.mark.parametrize("form", [pytest.param(name, marks=[pytest.mark.long] * (name in MORE)) for name in FORMS])
def test_what_perf_recorded_is_what_perf_reads(form: str, tmp_path: Path) -> None:
    """perf prints the same of our copy as of its own file; so does our reader."""
    recorded, injected = tmp_path / "perf.data", tmp_path / "out.data"
    record(recorded, FORMS[form])
    keep = ["--keep-stack-bytes"] if "dwarf" in FORMS[form] else []
    assert perf_offcpu("inject", "-f", *keep, "-i", recorded, "-o", injected).stderr == ""
    script = OF_OTHERS if "-a" in FORMS[form].split() else SCRIPT
    text = perf(script, injected)
    assert len(text.splitlines()) > 10
    if not has_leaked_flags(recorded):
        assert text == perf(script, recorded)
    perf(f"{' '.join(REPORT)} --no-children", injected)
    perf("report --header-only", injected)
    assert_same(load_recording(recorded), load_recording(injected))


def has_leaked_flags(path: Path) -> bool:
    """Whether stock perf 6.1 may fall over the recording itself: another recorder ran at the same time."""
    with PerfDataReader.open(path) as reader:
        for chunk in reader.chunks():
            maps = chunk.types == RecordType.MMAP2
            written = chunk.data[chunk.starts[maps] + 5].astype(int) << 8 | chunk.data[chunk.starts[maps] + 4]
            if (written != chunk.miscs[maps]).any():
                return True
    return False


def test_pipes(tmp_path: Path) -> None:
    """perf | inject | perf, with a copy of what went in on the way."""
    program = subprocess.run(["which", "perf"], capture_output=True, text=True, check=True).stdout.strip()
    recorded, passed = tmp_path / "perf.pipe", tmp_path / "out.pipe"
    ours = Path(sys.executable).with_name("perf-offcpu")
    line = (
        f"{program} record -q -B -g -e cpu-clock -F 997 -o - -- sh -c '{WORK}' | tee {recorded} | "
        f"{ours} inject -i - -o - | tee {passed} | {program} report --stdio --no-children -g none -i -"
    )
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert complaints(done.stderr) == ""
    assert "cksum" in done.stdout
    assert_same(load_recording(recorded), load_recording(passed))


@pytest.mark.parametrize("options", ["", "-z"])
def test_what_we_recorded(options: str, recorded_waiter: Path, tmp_path: Path) -> None:
    injected = tmp_path / "out.data"
    done = perf_offcpu("inject", "-v", *options.split(), "-i", recorded_waiter, "-o", injected)
    assert re.match(r"^\d+ off-cpu samples re-typed, 0 deferred callchains merged, \d+ records", done.stderr)
    before = load_recording(recorded_waiter)
    assert_same_but_retyped(before, load_recording(injected))
    found: Counter[str] = Counter()
    for line in perf("script -G -F comm,event,period", injected).splitlines():
        comm, period, event = line.rsplit(maxsplit=2)
        if event == "offcpu-time:":
            found[comm.strip()] += int(period)
    expected: Counter[str] = Counter()
    samples = before.samples
    for evsel, comm, period in zip(samples.evsel.tolist(), samples.comm.tolist(), samples.period.tolist(), strict=True):
        if before.evsels[evsel].name == "offcpu-time":
            expected[before.strings[comm]] += period
    named = with_names(Counter({(name,): period for name, period in found.items()}), before, 0)
    assert named == Counter({(name,): period for name, period in expected.items()})
    assert expected.total() > 10**9


def test_cgroups_stay_with_re_typed_samples(recorded_waiter: Path, tmp_path: Path) -> None:
    injected = tmp_path / "out.data"
    perf_offcpu("inject", "-i", recorded_waiter, "-o", injected)
    shown = perf("report --stdio --no-children -g none -s cgroup -F period,cgroup", injected)
    assert Path("/proc/self/cgroup").read_text().splitlines()[-1].split(":")[2] in shown


def test_same_file_is_refused(recorded_waiter: Path) -> None:
    before = recorded_waiter.read_bytes()
    assert "same file" in perf_offcpu("inject", "-i", recorded_waiter, "-o", recorded_waiter, status=129).stderr
    assert recorded_waiter.read_bytes() == before


@pytest.mark.long
@pytest.mark.alone
def test_leaked_flags_are_seen_and_repaired(tmp_path: Path) -> None:
    """While one recorder asks for build-ids, the kernel marks the maps of another as if they had some."""
    recorded, injected = tmp_path / "perf.data", tmp_path / "out.data"
    other = subprocess.Popen(
        ["perf", "record", "-q", "-B", "--buildid-mmap", "-a", "-e", "dummy", "-o", tmp_path / "other.data"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        subprocess.run(["sleep", "0.5"], check=True)
        record(recorded, "-g -e cpu-clock -F 997")
    finally:
        other.terminate()
        other.wait()
    perf_offcpu("inject", "-i", recorded, "-o", injected)
    assert "cksum" in perf("report --stdio --no-children -g none", injected)
    recording = load_recording(injected)
    build_ids = {recording.strings[row] for row in recording.dsos.build_id.tolist()}
    assert all(len(one) in (0, 32, 40) for one in build_ids)
    if has_leaked_flags(recorded):  # kernels without that bug are welcome
        assert not has_leaked_flags(injected)
        with PerfDataReader.open(injected) as reader:
            for chunk in reader.chunks():
                assert not (chunk.miscs[chunk.types == RecordType.MMAP2] & Misc.MMAP_BUILD_ID).any()
