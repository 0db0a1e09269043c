# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu record` on the running kernel: targets, events, what stock perf says, build-ids of what is mapped."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders import program
from kernel.napping import NANOSLEEP
from kernel.recorder import CHILDREN, MS, TWO_SLEEPS, Run, event, lost, off_cpu, perf, recorder, run, two_threads, waits
from workload.measured import Thread, parse

from perf_offcpu.abi.attr import Attr, AttrFlag, PerfType, SampleType, SoftwareConfig
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.collect.events import perf_event
from perf_offcpu.collect.system.cpus import online_cpus
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording, SampleFlag
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.reader import PerfDataReader

pytestmark = pytest.mark.beside

SUM = (sys.executable, "-c", "sum(range(10**7))")

# The known workload


@pytest.fixture(scope="module")
def known(waiter: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """The workload, recorded as a command with every option at its default."""
    directory = tmp_path_factory.mktemp("known")
    return directory / "perf.data", run("--", waiter, "--rounds", "10", cwd=directory)


@pytest.fixture(scope="module")
def threads(known: tuple[Path, Run]) -> dict[str, Thread]:
    return parse(known[1].stdout)


def test_samples_lie_in_the_recorded_time(known: tuple[Path, Run], threads: dict[str, Thread]) -> None:
    times = load_recording(known[0]).samples.time_ns
    assert (times >= 0).all()
    with PerfDataReader.open(known[0]) as reader:
        span = reader.features.values(Feature.SAMPLE_TIME)
    assert span is not None
    assert span["first"] <= times.min() and times.max() <= span["last"]
    assert span["first"] < threads["waiter"].begin_ns < threads["waiter"].end_ns < span["last"]


def test_on_cpu_samples_are_of_the_target_and_have_stacks(known: tuple[Path, Run], threads: dict[str, Thread]) -> None:
    recording = load_recording(known[0])
    on_cpu = event(recording, "cpu-clock")
    assert on_cpu.sum() >= 3
    assert set(recording.samples.pid[on_cpu]) == {threads["waiter"].pid}
    assert (recording.samples.callchain[on_cpu] >= 0).all()


def test_last_line_is_perfs_with_our_numbers(known: tuple[Path, Run]) -> None:
    recording = load_recording(known[0])
    samples, on_cpu = recording.samples, event(recording, "cpu-clock").sum()
    summed = samples.flags & SampleFlag.AGGREGATED > 0
    single = (samples.flags & SampleFlag.OFFCPU > 0) & ~summed
    assert re.fullmatch(
        rf"\[ perf-offcpu record: Captured and wrote \d+\.\d{{3}} MB perf\.data "
        rf"\({single.sum()} off-cpu samples, {summed.sum()} sums, {on_cpu} on-CPU samples\) \]\n",
        known[1].stderr,
    )


def test_nothing_was_lost(known: tuple[Path, Run]) -> None:
    assert lost(load_recording(known[0])) == set()


def test_stock_perf_opens_it_without_a_word(known: tuple[Path, Run], threads: dict[str, Thread]) -> None:
    header = perf("report", "--header-only", "-i", known[0])
    for wanted in ("hostname : ", "nrcpus online : ", "cmdline : ", "sample duration : ", "clockid: monotonic (1)"):
        assert f"# {wanted}" in header
    assert "name = offcpu-time" in header and f"# os release : {os.uname().release}" in header
    shown = perf("script", "-F", "comm,tid,event", "-i", known[0])
    assert re.search(rf"^ *waiter +{threads['waiter'].tid} +offcpu-time:", shown, re.MULTILINE)
    assert "Samples: " in perf("report", "--stdio", "-i", known[0])


def test_stock_perf_finds_symbols_of_kernel_and_program(tmp_path: Path) -> None:
    run("-F", "997", "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=300000", cwd=tmp_path)
    shown = perf("script", "-F", "comm,event,ip,sym,dso", "-i", tmp_path / "perf.data")
    samples = [part for part in shown.split("\n\n") if "cpu-clock" in part]
    assert any("entry_SYSCALL_64_after_hwframe ([kernel.kallsyms])" in part for part in samples)
    assert any("/libc.so.6)" in part for part in samples)


def test_clocks_of_the_file_agree(known: tuple[Path, Run]) -> None:
    meta, before_ns = load_recording(known[0]).meta, time.time_ns()
    wall_ns = meta.wall_clock_ns - meta.wall_clock_at_ns + time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    assert before_ns - 50 * MS < wall_ns < time.time_ns() + 50 * MS


@pytest.mark.alone
def test_children_of_a_command_are_recorded_and_others_are_not(tmp_path: Path) -> None:
    with two_threads() as (pid, _):
        recording = run("--", sys.executable, "-c", CHILDREN, cwd=tmp_path).recording
    sleeps = off_cpu(recording) & (recording.samples.syscall == NANOSLEEP)
    periods = sorted(recording.samples.period[sleeps].tolist())
    # Of 30 and of 50 ms; a thread that is preempted on its way to sleep sleeps as much shorter.
    assert len(periods) == 6 and periods[0] > 20 * MS and periods[3] > 40 * MS
    assert len(set(recording.samples.pid[off_cpu(recording)])) == 4
    assert pid not in recording.samples.pid
    assert set(recording.tasks.pid[recording.tasks.tid == pid].tolist()) == {pid}


def test_pid(tmp_path: Path) -> None:
    with two_threads() as (pid, tids):
        recording = run("-p", str(pid), "--duration", "0.5", cwd=tmp_path).recording
    assert waiting(recording) == set(tids)
    for tid in tids:
        # Some 25 naps; where the two threads meet at Python's lock, a few short waits more.
        assert 10 <= waits(recording, tid)[0] <= 60
    python = os.fsencode(Path(sys.executable).resolve()).decode()
    assert any(recording.strings[path] == python for path in recording.dsos.path)


def waiting(recording: Recording) -> set[int]:
    return set(recording.samples.tid[off_cpu(recording)].tolist())


def test_tid_and_a_command_beside_it_that_only_sets_the_time(tmp_path: Path) -> None:
    with two_threads() as (_, tids):
        done = run("-t", str(tids[1]), "--", "sh", "-c", "sleep 0.3; exit 5", cwd=tmp_path, status=5)
    assert waiting(done.recording) == {tids[1]}


def test_recording_ends_with_its_last_target(tmp_path: Path) -> None:
    with two_threads() as (pid, _), recorder("-p", str(pid), cwd=tmp_path) as process:
        os.kill(pid, signal.SIGKILL)
        assert process.wait(10) == 0
    assert lost(load_recording(tmp_path / "perf.data")) == set()


def test_no_event_is_off_cpu_time_alone(tmp_path: Path) -> None:
    recording = run("-e", "none", "--", sys.executable, "-c", TWO_SLEEPS, cwd=tmp_path).recording
    assert [evsel.name for evsel in recording.evsels][:2] == ["offcpu-time", "dummy"]
    assert off_cpu(recording).all()
    assert "Samples: " in perf("report", "--stdio", "-i", tmp_path / "perf.data")


def test_events_by_name_with_period_and_modifier_without_callchains_of_the_kernel(tmp_path: Path) -> None:
    script = f"{TWO_SLEEPS}\nb = bytearray(4 << 20)\nfor at in range(0, len(b), 4096): b[at] = 1"
    options = ("-e", "page-faults,cs", "-c", "1", "--no-kernel-callchains")
    recording = run(*options, "--", sys.executable, "-c", script, cwd=tmp_path).recording
    faults = event(recording, "page-faults")
    assert faults.sum() >= 512 and off_cpu(recording).sum() >= 2
    assert (recording.samples.period[faults] == 1).all()
    assert not (recording.callchains.values == 2**64 - 128).any(), "callchains of the kernel"
    user = run("-e", "cpu-clock:u", "-F", "1999", "--", *SUM, cwd=tmp_path).recording
    assert event(user, "cpu-clock:u").sum() > 20
    assert (user.samples.ip[event(user, "cpu-clock:u")] < 2**63).all()


def test_cycles_are_counted_or_replaced_by_the_clock_and_that_is_said_once(tmp_path: Path) -> None:
    done = run("-e", "cycles:u", "-F", "999", "--", *SUM, cwd=tmp_path)
    recording = done.recording
    if any(Path("/sys/bus/event_source/devices").glob("cpu*")):
        assert event(recording, "cycles:u").any()
    else:
        assert done.stderr.count("using cpu-clock:u instead\n") == 1
        assert event(recording, "cpu-clock:u").sum() > 10


def test_an_event_without_counter_is_an_error_that_names_a_way_out(tmp_path: Path) -> None:
    if not any(Path("/sys/bus/event_source/devices").glob("cpu*")):
        done = run("-e", "instructions", "--", "true", cwd=tmp_path, status=1)
        assert "no hardware counter" in done.stderr and "use -e cpu-clock" in done.stderr


def test_tracepoints_of_everybody_with_what_perf_needs_to_print_them(tmp_path: Path) -> None:
    options = ("-e", "sched:sched_process_exec,cpu-clock", "--all-cgroups", "-a")
    done = run(*options, "--", "sh", "-c", "/bin/true; /bin/true; :", cwd=tmp_path)
    recording = done.recording
    assert lost(recording, of_others=True) == set()
    shown = perf("script", "-F", "comm,event,trace", "-i", tmp_path / "perf.data", allow="not valid for")
    assert len(re.findall(r"sched:sched_process_exec: filename=/bin/true pid=\d+", shown)) >= 2
    assert off_cpu(recording).any() and event(recording, "sched:sched_process_exec").sum() >= 3
    samples = int(event(recording, "sched:sched_process_exec").sum() + event(recording, "cpu-clock").sum())
    assert f"{samples} on-CPU samples" in done.stderr
    assert (recording.samples.cgroup[event(recording, "cpu-clock")] > 0).all()
    refused = run("-e", "sched:sched_switch", "--", "true", cwd=tmp_path, status=129)
    assert "tracepoints are recorded system-wide only: use -a" in refused.stderr
    assert_build_ids_of_kernel_and_mapped_files(recording, tmp_path / "perf.data")


def test_deferred_callchains_or_the_word_that_there_are_none(tmp_path: Path) -> None:
    done = run("--call-graph", "fp,defer", "-F", "999", "--", *SUM, cwd=tmp_path)
    recording = done.recording
    assert (recording.samples.callchain[event(recording, "cpu-clock")] >= 0).all()
    deferring = any(evsel.attr.flags & AttrFlag.DEFER_CALLCHAIN for evsel in evsels(tmp_path / "perf.data"))
    assert deferring != ("this kernel does not defer user callchains" in done.stderr)


def evsels(path: Path) -> list[EventSpec]:
    with PerfDataReader.open(path) as reader:
        return list(reader.events.specs)


TRUE = Path("/bin/true").resolve()


def build_id(program: Path) -> str:
    notes = subprocess.run(["readelf", "-n", program], capture_output=True, text=True, check=True).stdout
    found = re.search(r"Build ID: (\w+)", notes)
    assert found is not None
    return found[1]


def mapped(path: Path, name: Path) -> set[tuple[bool, str]]:
    """(whether it says to hold a build-id, the bytes where it would be) of a file's MMAP2 records."""
    found = set()
    with PerfDataReader.open(path) as reader:
        assert not any(spec.attr.flags & AttrFlag.BUILD_ID for spec in reader.events.specs)
        for chunk in reader.chunks():
            for row in range(len(chunk)):
                record = bytes(chunk.record(row))
                if chunk.types[row] == RecordType.MMAP2 and os.fsencode(name) + b"\0" in record:
                    misc = int.from_bytes(record[4:6], "little")
                    found.add((bool(misc & Misc.MMAP_BUILD_ID), record[44:64].hex()))
    return found


def test_maps_of_short_lived_processes_carry_their_build_ids(tmp_path: Path) -> None:
    run("--", "sh", "-c", "for i in 1 2 3 4 5; do /bin/true; done", cwd=tmp_path)
    assert mapped(tmp_path / "perf.data", TRUE) == {(True, build_id(TRUE))}
    assert f"{build_id(TRUE)} {TRUE}" in perf("buildid-list", "-i", tmp_path / "perf.data")
    assert lost(load_recording(tmp_path / "perf.data")) == set()


def assert_build_ids_of_kernel_and_mapped_files(recording: Recording, path: Path) -> None:
    listed, python = perf("buildid-list", "-i", path), Path(sys.executable).resolve()
    assert re.search(rf"^[0-9a-f]{{40}} {python}$", listed, re.MULTILINE)
    # The table has room for one file of a name; in containers there may be others. Mappings have their own.
    strings, dsos = recording.strings, recording.dsos
    rows = [row for row, path in enumerate(dsos.path) if strings[path] == str(python)]
    assert build_id(python) in {strings[one] for one in dsos.build_id[rows]}
    assert re.search(r"^[0-9a-f]{40} \[kernel\.kallsyms\]$", listed, re.MULTILINE)


def test_functions_below_another_root_directory_have_names(napper: Path, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    shutil.copy(napper, tmp_path / "root" / "naps")
    run("--", "chroot", tmp_path / "root", "/naps", "500", cwd=tmp_path)  # longer than the recorder sleeps
    shown = program.run("script", "-i", "perf.data", "-F", "comm,sym", cwd=tmp_path).stdout
    assert "\tnap\n" in shown and "[naps]" not in shown, "the program, which runs no more, has names"


def test_perf_beside_us_gets_records_that_say_what_is_true(tmp_path: Path) -> None:
    """While somebody asks for build-ids perf 6.1 would take inodes for them, and abort."""
    theirs = tmp_path / "theirs"
    with recorder("-a", cwd=tmp_path):
        command = ["sh", "-c", "/bin/true; /bin/true; sleep 0.1"]
        beside: list[str | Path] = ["perf", "record", "-q", "-a", "-o", theirs, "--", *command]
        subprocess.run(beside, check=True, capture_output=True, timeout=60)
    assert {flag for flag, _ in mapped(theirs, TRUE)} <= {False}
    subprocess.run(["perf", "report", "--stdio", "-i", theirs], check=True, capture_output=True)


@pytest.mark.alone  # perf 6.1 cannot read what it records meanwhile
def test_asking_of_others_does_not_leak_into_our_records(tmp_path: Path) -> None:
    asking = Attr(
        type=PerfType.SOFTWARE, config=SoftwareConfig.DUMMY, sample_period=1,
        sample_type=SampleType.TID | SampleType.TIME | SampleType.IDENTIFIER,
        flags=AttrFlag.SAMPLE_ID_ALL | AttrFlag.MMAP | AttrFlag.MMAP2 | AttrFlag.BUILD_ID,
    )  # fmt: skip
    fds = [perf_event.open_event(asking, cpu) for cpu in online_cpus()]
    script = tmp_path / "nobuildid"
    subprocess.run(
        ["gcc", "-Wl,--build-id=none", "-x", "c", "-", "-o", script], input=b"int main(void){return 0;}", check=True
    )
    try:
        run("--", "sh", "-c", f"/bin/true; {script}", cwd=tmp_path)
    finally:
        for fd in fds:
            os.close(fd)
    assert mapped(tmp_path / "perf.data", TRUE) == {(True, build_id(TRUE))}
    assert {flag for flag, _ in mapped(tmp_path / "perf.data", script)} == {False}
    assert "Samples" in perf("report", "--stdio", "-i", tmp_path / "perf.data")
