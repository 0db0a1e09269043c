# SPDX-License-Identifier: Apache-2.0
"""Whole user stacks of programs as the distribution ships them: waits reach the root, and perf agrees."""

import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from builders.compiled import build
from builders.program import PATIENCE
from builders.program import run as perf_offcpu
from builders.stock_perf import perf
from kernel import whole_stacks
from kernel.gdb_stacks import random_stops
from kernel.whole_stacks import AS_POSTGRES, BASH, ENOUGH, ROOTS, STACKS, compiled, record, user_stacks, wholeness

from perf_offcpu.abi.attr import SampleType
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.decode.load import load_recording
from perf_offcpu.decode.samples import is_offcpu
from perf_offcpu.objects.search import Search
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.unwind.state import End
from perf_offcpu.unwind.unwinder import unwind

pytestmark = pytest.mark.beside

IS_ARM = platform.machine() == "aarch64"
UNWINDER_SAYS = {b"unwind: get_proc_name unsupported"} if IS_ARM else set[bytes]()
"""Of each address, where a return address is signed: perf's own unwinder does not know of that, and stops."""
SECRET = re.compile(rb"secret \d+ on the stack")


@pytest.fixture(scope="module")
def recorded(cpp: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Waits and on-CPU samples of waits.cpp, with copies of their stacks."""
    path = tmp_path_factory.mktemp("recorded") / "x.data"
    record(path, cpp, "5", options=("-F", "999"), event="cpu-clock")
    return path


def assert_whole(path: Path, comm: str, least: int) -> None:
    found = wholeness(path)[comm]
    assert found.waits >= least
    # One wait may have a stack that no copy holds: of a process that is just being made.
    assert found.whole >= ENOUGH * found.waits - 1, found
    # Compilers for arm64 keep frame pointers: only the caller of a leaf function is missing along these.
    assert found.depth > found.fp_depth * (1 if IS_ARM else 2), found


def test_waits_of_python_reach_the_root(tmp_path: Path) -> None:
    record(tmp_path / "x.data", "/usr/bin/python3", STACKS / "waits.py", str(PATIENCE))
    assert_whole(tmp_path / "x.data", "python3", 100)


def test_frames_of_an_interpreter_are_one_but_for_script(tmp_path: Path) -> None:
    record(tmp_path / "perf.data", "/usr/bin/python3", STACKS / "waits.py", "3")
    own = re.compile(r"_PyEval_EvalFrameDefault|_?PyObject_Vectorcall|_?PyFunction_Vectorcall")
    totals = []
    for option in ("--fold-interpreters", "--no-fold-interpreters"):
        done = perf_offcpu("convert", "--folded", option, "-o", "-", cwd=tmp_path)
        is_folded = option == "--fold-interpreters"
        assert bool(own.search(done.stdout)) != is_folded
        assert ("[CPython]" in done.stdout) == is_folded and "[CPython];[CPython]" not in done.stdout
        totals.append(sum(int(line.rpartition(" ")[2]) for line in done.stdout.splitlines()))
    assert totals[0] == totals[1] > 0
    assert "[CPython]" in perf_offcpu("report", "--limit", "0", cwd=tmp_path).stdout
    shown = perf_offcpu("script", cwd=tmp_path).stdout
    assert own.search(shown) and "[CPython]" not in shown


@pytest.mark.long  # test_copies.py has their sums
def test_waits_of_bash_and_its_children_reach_the_root(tmp_path: Path) -> None:
    record(tmp_path / "x.data", "bash", "-c", BASH)
    assert_whole(tmp_path / "x.data", "bash", 5)
    assert_whole(tmp_path / "x.data", "sleep", 5)


GO = """
package main
import "time"
func worker(c chan int) { for range c { time.Sleep(5 * time.Millisecond) } }
func main() {
	c := make(chan int)
	for i := 0; i < 4; i++ { go worker(c) }
	for i := 0; i < 60; i++ { c <- i; time.Sleep(2 * time.Millisecond) }
}
"""


@pytest.mark.skipif(shutil.which("go") is None, reason="no go here (Debian: golang-go)")
def test_stacks_of_gos_scheduler_end_where_it_left_the_goroutine(tmp_path: Path) -> None:
    (tmp_path / "main.go").write_text(GO)
    environment = {**os.environ, "GOCACHE": str(tmp_path / "cache"), "CGO_ENABLED": "0"}
    subprocess.run(["go", "build", "-o", "sleepers", "main.go"], cwd=tmp_path, env=environment, check=True, timeout=200)
    options = ["-e", "none", "--call-graph", "cfi", "--off-cpu-thresh", "1"]
    perf_offcpu("record", *options, "--", "./sleepers", cwd=tmp_path)
    lines = perf_offcpu("convert", "--folded", "-o", "-", cwd=tmp_path).stdout.splitlines()
    stacks = [line.rpartition(" ")[0].split(";") for line in lines]
    parked = [names for names in stacks if names[0] == "sleepers" and "runtime.park_m" in names]
    assert len(parked) >= 2
    assert {names[1] for names in parked} == {"runtime.mcall"}
    # Waits before the scheduler runs are on a stack whose first function has no rule for its caller.
    assert not [names for names in parked if "[truncated]" in names]


def test_waits_of_a_cpp_program_reach_the_root(recorded: Path) -> None:
    assert_whole(recorded, "waits", 80)
    stacks = user_stacks(recorded)
    # A process that waits while it exits may have no memory any more.
    assert {stack[-1] for stack in stacks if list(stack) != ["_exit"]} <= ROOTS
    by_leaf = {" ".join(stack) for stack in stacks}
    for expected in (
        r"(Napper::wait ){5,}rounds main .*_start$",
        r"(thrower ){4}rounds ",  # from a destructor, while an exception is thrown
        r"compare .*qsort.* rounds ",
        r"on_signal \S* .*raise rounds ",  # \S*: the signal's frame, whose code has no symbol
        r"aligned rounds .*(clone3|\[libc.so.6\])$",
    ):
        assert any(re.search(expected, one) for one in by_leaf), expected


def test_waits_of_the_workload_without_frame_pointers_reach_the_root(tmp_path: Path) -> None:
    flags = ["-mbranch-protection=standard"] if platform.machine() == "aarch64" else []  # return addresses are signed
    record(tmp_path / "x.data", build("waiter.c", tmp_path / "waiter", "-O2", "-fomit-frame-pointer", *flags))
    threads = wholeness(tmp_path / "x.data").values()
    assert sum(thread.waits for thread in threads) >= 50
    assert sum(thread.whole for thread in threads) >= ENOUGH * sum(thread.waits for thread in threads) - 1


def test_the_copy_is_as_long_as_asked_for_and_can_be_left_out(cpp: Path, tmp_path: Path) -> None:
    cases = ("--call-graph cfi,1024", 1024), ("--call-graph fp", 0), ("--no-stack-bytes", 0), ("", 8192)
    for options, expected in cases:
        record(tmp_path / "x.data", cpp, "1", options=tuple(options.split()))
        with PerfDataReader.open(tmp_path / "x.data") as reader:
            attr = next(spec.attr for spec in reader.events.specs if is_offcpu(spec))
        assert attr.sample_stack_user == expected
        assert bool(attr.sample_type & SampleType.STACK_USER) == (expected > 0)
        assert len(load_recording(tmp_path / "x.data", snapshots=True).snapshots) > 0 or not expected


def test_stock_perf_opens_copies_without_a_word_and_unwinds_them(recorded: Path) -> None:
    for verb in (["report", "--stdio"], ["script", "--no-inline"]):
        done = subprocess.run(["perf", *verb, "-i", recorded], capture_output=True, timeout=120, check=True)
        assert set(done.stderr.splitlines()) <= UNWINDER_SAYS


@pytest.fixture(scope="module")
def injections(recorded: Path) -> tuple[Path, Path]:
    """The recording after inject, without and with the bytes of the copies."""
    injected, kept = recorded.with_name("i.data"), recorded.with_name("k.data")
    for output, keep in ((injected, []), (kept, ["--keep-stack-bytes"])):
        done = perf_offcpu("inject", "-i", recorded, "-o", output, *keep)
        assert [line for line in done.stderr.splitlines() if "content" in line] == []
    return injected, kept


def test_inject_writes_whole_stacks_and_no_stack_bytes(recorded: Path, injections: tuple[Path, Path]) -> None:
    injected, kept = injections
    assert SECRET.search(recorded.read_bytes()) and SECRET.search(kept.read_bytes())
    assert not SECRET.search(injected.read_bytes())
    with PerfDataReader.open(injected) as reader:
        assert not any(spec.attr.sample_type & SampleType.STACK_USER for spec in reader.events.specs)
    expected = user_stacks(recorded)
    assert expected.total() > 40
    assert user_stacks(injected) == user_stacks(kept) == expected


def is_root(words: list[str]) -> bool:
    """Return whether the stack ends in the last line of perf (name and file), as ROOTS has it."""
    name, dso = words[0].split("@")[0], words[1]
    return name in ROOTS or (name == "[unknown]" and dso.endswith("/libc.so.6)"))


def test_stock_perf_shows_whole_stacks_of_what_was_injected(injections: tuple[Path, Path]) -> None:
    for injected in injections[:1] if IS_ARM else injections:  # of copies it shows what its own unwinder finds
        text = perf("script", "-i", injected, "--no-inline", "-F", "event,ip,sym,dso")
        waits = [block.split() for block in text.split("\n\n") if "offcpu-time" in block]
        assert len(waits) > 40
        # A wait at the very start of a thread may have no stack to copy yet.
        assert sum(is_root(block[-2:]) for block in waits) >= ENOUGH * len(waits) - 1
        assert max(Counter(block)["main"] for block in waits) == 1  # nothing is there twice


Chain = tuple[int, ...]


def chains_of_perf(path: Path) -> dict[tuple[int, int], Chain]:
    """(tid, µs) → user addresses within their pages, as perf script unwinds them."""
    text = perf("script", "-i", path, "--no-inline", "-F", "tid,time,ip")
    chains: dict[tuple[int, int], Chain] = {}
    for block in text.split("\n\n"):
        head, *lines = block.strip().split("\n")
        if found := re.match(r"\s*(\d+)\s+(\d+)\.(\d+):", head):
            tid, seconds, micros = map(int, found.groups())
            words = [int(line, 16) for line in lines]
            chains[tid, seconds * 10**6 + micros] = tuple(w & 0xFFF for w in words if w < 1 << 63)
    return chains


def chains_of_ours(path: Path) -> dict[tuple[int, int], Chain]:
    """Return the same as decode unwinds them: return addresses as they are."""
    recording = unwind(load_recording(path, snapshots=True), Search.usual())
    chains = {}
    for row, number in enumerate(recording.samples.callchain.tolist()):
        words = recording.callchains.row(number).tolist() if number >= 0 else []
        user = words[words.index(CallchainContext.USER) + 1 :] if CallchainContext.USER in words else []
        key = int(recording.samples.tid[row]), int(recording.samples.time_ns[row]) // 1000
        chains[key] = tuple(word & 0xFFF for word in user)
    return chains


def agree(ours: Chain, theirs: Chain) -> bool:
    """Return whether both have the same frames, as far as the shorter goes."""
    # perf shows the byte before a return address, ends early where a rule is too much for it, and goes on
    # behind the root where memory looks like a frame.
    off_by = [(one - other) % 0x1000 for one, other in zip(ours, theirs, strict=False)]
    return bool(ours) == bool(theirs) and max(off_by, default=0) <= 1


@pytest.mark.long
@pytest.mark.parametrize("name, argument", [("waits", "150"), ("busy", "0.3")])
def test_chains_of_perfs_dwarf_recordings_are_perf_scripts(cpp: Path, tmp_path: Path, name: str, argument: str) -> None:
    program = cpp if name == cpp.name else compiled(f"{name}.cpp", tmp_path, "-g")
    output = tmp_path / "dwarf.data"
    command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "9999", "--call-graph", "dwarf,16384"]
    environment = os.environ | {"DEBUGINFOD_URLS": ""}
    command += ["-o", str(output), str(program), argument]
    subprocess.run(command, check=True, timeout=60, env=environment, capture_output=True)
    theirs, ours = chains_of_perf(output), chains_of_ours(output)
    assert theirs.keys() == ours.keys() and len(theirs) > 100
    others = [(ours[key], chain) for key, chain in theirs.items() if not agree(ours[key], chain)]
    assert len(others) <= 0.05 * len(theirs), others[:10]
    assert sum(len(ours[key]) == len(chain) for key, chain in theirs.items()) >= 0.9 * len(theirs)


@pytest.mark.long
def test_frames_are_gdbs_at_random_stops(cpp: Path) -> None:
    stops = list(random_stops([str(cpp), "100000"], 8))
    assert [one for one in stops if not one.agrees] == []
    assert {one.end for one in stops} == {End.ROOT}


@pytest.mark.long
def test_waits_of_postgres_under_small_load_reach_the_root_and_name_objects(database: Path, tmp_path: Path) -> None:
    # Starting and stopping, postgres writes files from buffers of 8 kB on its stack and waits for the disk.
    longer = ("--call-graph", "cfi,24576")
    record(tmp_path / "x.data", *AS_POSTGRES, database / "run", "load", database, options=longer)
    found = wholeness(tmp_path / "x.data")["postgres"]
    assert found.waits >= 500
    assert found.whole >= ENOUGH * found.waits, found
    sums = whole_stacks.sum_wholeness(tmp_path / "x.data")["postgres"]
    assert sums.waits >= 100
    assert sums.whole >= ENOUGH * sums.waits and sums.whole_ns >= ENOUGH * sums.ns, sums
    profile = load_profile([str(tmp_path / "x.data")], SymbolizeOptions(inline=False))
    names = {profile.strings[name] for name in profile.objects.name.tolist()}
    assert any(name.startswith(f"{database}/data/pg_wal/0000") for name in names), names
    assert any(f"unix {database}/.s.PGSQL" in name for name in names), names


# Recordings with copies of stacks, passed on: nothing of the copies, and all that names their frames. The program's
# own code lies in no address that was recorded: only unwinding finds it.


def folded(recording: Path, *options: str | Path) -> str:
    return perf_offcpu("convert", "--folded", "-i", recording, "-o", "-", *options).stdout


def test_an_archive_names_all_frames_and_holds_no_stack(cpp: Path, tmp_path: Path) -> None:
    here, recorded, archive = tmp_path / "waits", tmp_path / "x.data", tmp_path / "x.tar"
    shutil.copy(cpp, here)
    record(recorded, here, "3", options=("-F", "999"), event="cpu-clock")
    expected = folded(recorded)
    assert "main" in expected and SECRET.search(recorded.read_bytes())
    done = perf_offcpu("archive", "-i", recorded, "-o", archive)
    assert "copies of user stacks unwound and left out" in done.stderr
    assert not SECRET.search(archive.read_bytes())
    assert archive.stat().st_mode & 0o777 == 0o600
    perf_offcpu("archive", "--unpack", archive, "-C", tmp_path / "there")
    here.unlink()
    there = tmp_path / "there"
    found = folded(there / "perf.data", "--symfs", there / "symbols")
    assert sorted(found.splitlines()) == sorted(expected.splitlines())


def test_copies_of_stacks_are_packed_if_asked_for(cpp: Path, tmp_path: Path) -> None:
    recorded, archive = tmp_path / "x.data", tmp_path / "x.tar"
    record(recorded, cpp, "1")
    perf_offcpu("archive", "--keep-stack-bytes", "-i", recorded, "-o", archive)
    perf_offcpu("archive", "--unpack", archive, "-C", tmp_path)
    assert (tmp_path / "perf.data").read_bytes() == recorded.read_bytes()
    assert SECRET.search(archive.read_bytes())


def test_the_build_id_cache_gets_files_of_unwinding(cpp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERF_BUILDID_DIR", str(tmp_path / "debug"))
    here, recorded = tmp_path / "waits", tmp_path / "x.data"
    shutil.copy(cpp, here)
    perf_offcpu("record", "--buildid-cache", "--call-graph", "cfi", "-o", recorded, "--", here, "1")
    expected = folded(recorded)
    os.unlink(here)
    assert folded(recorded) == expected
    assert "main" in expected
