# SPDX-License-Identifier: Apache-2.0
"""Goroutines (`record --goroutines`) next to the program's own list (/debug/pprof/goroutine) and block profile."""

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from builders import program
from elftools.elf.elffile import ELFFile
from kernel.recorder import run

from perf_offcpu import losses
from perf_offcpu.collect.go.program import LAYOUTS, Memory, find_program
from perf_offcpu.model.recording import EventLoop, LoopTask, Recording
from perf_offcpu.objects.functions import load_elf_symbols

SOURCE = Path(__file__).parents[1] / "workload" / "programs" / "goroutines.go"
NEEDS_GO = pytest.mark.skipif(shutil.which("go") is None, reason="no go here (Debian: golang-go)")
pytestmark = [pytest.mark.beside, pytest.mark.long, NEEDS_GO]
STRUCTURES = (b"runtime.g", b"runtime.gobuf")
LEFT_OUT = re.compile(r"runtime\.|main\.main\.func\d+$|net\.\(\*TCPConn\)\.Read$")
"""Functions that Go's list leaves out: its own, and wrappers, which `go function(argument)` and embedding make."""
FORMS = {"plain": [], "stripped": ["-ldflags", "-s -w"], "pie": ["-buildmode=pie", "-ldflags", "-s -w"]}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("go")
    environment = {**os.environ, "GOCACHE": str(directory / "cache"), "GOTOOLCHAIN": "local"}
    for name, options in FORMS.items():
        command = ["go", "build", *options, "-o", str(directory / name), str(SOURCE)]
        subprocess.run(command, cwd=directory, env=environment, check=True, timeout=300)
    return directory


@contextmanager
def running(path: Path, number: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen([path, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield child, "".join(iter(child.stdout.readline, "ready\n"))
        finally:
            child.kill()


def listed(text: str) -> Counter[tuple[str, ...]]:
    """Return what goroutines wait for and their functions, leaf first, of Go's own list, without those that run."""
    stacks: Counter[tuple[str, ...]] = Counter()
    for block in text.strip().split("\n\n"):
        head, *lines = block.splitlines()
        names = [line.rpartition("(")[0] for line in lines if line[0] != "\t" and not line.startswith("created by")]
        if (state := re.findall(r"\[([^],]+)", head)[0]) != "running":
            stacks[state, *names] += 1
    return stacks


def tasks_of(recording: Recording) -> list[tuple[EventLoop, LoopTask]]:
    return [(loop, task) for loop in recording.loops for task in loop.tasks]


@pytest.mark.parametrize("form", FORMS)
def test_goroutines_are_those_of_the_program(built: Path, tmp_path: Path, form: str) -> None:
    with running(built / form) as (child, text):
        recording = run("-p", str(child.pid), "--goroutines", "--duration", "1", cwd=tmp_path).recording
        listening = subprocess.run(["ss", "-Htlnp"], capture_output=True, text=True, check=True).stdout
    (server,) = re.findall(rf"(127\.0\.0\.1:\d+) .*pid={child.pid},", listening)  # which it is a client of, too
    from_server = f"IO wait (tcp {server})"
    stacks = Counter[tuple[str, ...]]()
    for loop, task in tasks_of(recording):
        if names := [name for name, *_ in task.frames if not LEFT_OUT.match(name)]:
            stacks[task.awaits.removesuffix(f" (tcp {server})"), *names] += loop.weight_ns
    read_ns = stacks["sleep", "time.Sleep", "main.sleeper"] // 5
    assert read_ns > 5e8 and {loop.pid for loop in recording.loops} == {child.pid}
    assert {stack: ns / read_ns for stack, ns in stacks.items()} == listed(text) and listed(text).total() == 54
    assert not [cause for cause in recording.losses if "goroutine" in cause.text.lower()]

    (shown,) = [program.run("report", "-i", "perf.data", cwd=tmp_path).stdout.replace("\n#  ", "")]
    assert f"goroutines of {form} {child.pid} that wait: 30 in chan receive in main.deep (56 %), 9 in" in shown
    rows = json.loads(program.run("report", "--json", "-i", "perf.data", cwd=tmp_path).stdout)["goroutines"]
    assert {(row["waits_for"], row["function"], row["goroutines"]) for row in rows} >= {
        ("sync.Mutex.Lock", "main.(*Repo).Save", 3), ("select", "main.chooser", 4), (from_server, "main.reader", 1),
    }  # fmt: skip
    lines = program.run("convert", "--folded", "--by", "task", "-o", "-", cwd=tmp_path).stdout.splitlines()
    (line,) = [line for line in lines if "main.worker" in line]
    assert re.fullmatch(rf"([\w.]+);\1;(main.worker;)?runtime\.\S*;\[chan receive\] {9 * read_ns}", line)
    total_ns = sum(loop.weight_ns for loop, _ in tasks_of(recording))
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == total_ns
    command = ["perf", "script", "-i", "perf.data", "-F", "event,period,ip,sym"]
    theirs = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert sum(map(int, re.findall(r"(\d+) +offcpu-task:", theirs))) == total_ns
    theirs = re.sub(r"\n\s+\w+ (\S+)(?=\n)", r"\1;", theirs)
    assert form != "plain" or "offcpu-task: runtime.gopark;time.Sleep;main.sleeper;runtime.goexit" in theirs


def test_functions_of_a_stripped_program_have_their_names_and_stacks_their_roots(built: Path, tmp_path: Path) -> None:
    names = []
    for form in ("plain", "stripped"):
        symbols = load_elf_symbols(str(built / form)).symbols
        names.append({symbols.name(row).removesuffix(".abi0") for row in range(len(symbols))})
    assert len(names[1]) > 1000 and len(names[0] - names[1]) < 20  # functions of C, and generic ones
    with running(built / "stripped", 2) as (child, _):
        run("-p", str(child.pid), "--off-cpu-thresh", "0", "--duration", "1", cwd=tmp_path)
    lines = program.run("convert", "--folded", "-o", "-", cwd=tmp_path).stdout.splitlines()
    roots = {"runtime.mstart", "runtime.mcall", "runtime.systemstack", "runtime.morestack", "runtime.goexit"}
    begun = Counter(line.split(";")[1] for line in lines)
    del begun["[missed user stack]"]  # of threads that are still blocked
    assert begun.total() > 2 and begun.keys() <= roots, lines


def test_shares_are_those_of_the_block_profile(built: Path, tmp_path: Path) -> None:
    with running(built / "plain", 8) as (child, _):
        recording = run("-p", str(child.pid), "--duration", "10", cwd=tmp_path).recording
        profile, _ = child.communicate("end\n")
    ns, cycles = Counter[str](), Counter[str]()
    for loop, task in tasks_of(recording):
        ns.update({name: loop.weight_ns for name, *_ in task.frames if name in ("main.waits", "main.locks")})
    for time, function in re.findall(r"(?m)^(\d+) \d+ @.*\n(?:#\t.*\n)*?#\t.*(main\.(?:waits|locks))\+", profile):
        cycles[function] += int(time)
    share, truth = (sums["main.locks"] / sums.total() for sums in (ns, cycles))
    program.run("convert", "--parquet", "set", cwd=tmp_path)
    query = "fleet", "report", "set", "--event", "offcpu-task", "--json"
    (table, *_) = json.loads(program.run(*query, cwd=tmp_path).stdout)["tables"]
    assert table["weight"] == sum(loop.weight_ns for loop, _ in tasks_of(recording)) and table["keys"] == ["object"]
    assert {row["object"] for row in table["rows"]} >= {"chan receive", "select", "sleep"}
    readings = 10 / 0.1
    assert 0.5 < truth < 0.8 and abs(share - truth) < 3 * (truth * (1 - truth) / readings) ** 0.5


def test_other_versions_are_counted_and_not_guessed(built: Path, tmp_path: Path) -> None:
    content = (built / "stripped").read_bytes()
    other = re.sub(rb"(Go buildinf:.{19}go1\.)\d\d", rb"\g<1>99", content, flags=re.DOTALL)
    assert other != content
    (tmp_path / "other").write_bytes(other)
    (tmp_path / "other").chmod(0o700)
    with running(tmp_path / "other") as (child, _):
        recording = run("-p", str(child.pid), "--goroutines", "--duration", "1", cwd=tmp_path).recording
    assert recording.losses[losses.GO_UNKNOWN] == 1 and recording.loops == ()


def test_the_table_of_versions_agrees_with_dwarf_and_symbols(built: Path) -> None:
    with open(built / "plain", "rb") as file:
        elf, members = ELFFile(file), dict[str, int]()
        units = elf.get_dwarf_info().iter_CUs()
        runtime = [unit for unit in units if unit.get_top_DIE().attributes["DW_AT_name"].value == b"runtime"]
        for entry in (entry for unit in runtime for entry in unit.iter_DIEs()):
            is_struct = entry.tag == "DW_TAG_structure_type" and entry.attributes["DW_AT_name"].value in STRUCTURES
            for place in (child.attributes for child in entry.iter_children() if is_struct):
                members[place["DW_AT_name"].value.decode()] = place["DW_AT_data_member_location"].value
        symbols = {symbol.name: symbol["st_value"] for symbol in elf.get_section_by_name(".symtab").iter_symbols()}
    with running(built / "plain") as (child, _):
        found = find_program(child.pid)
        assert Memory(child.pid).words(found["allgs"], 2)[1] >= 54
    status, bp, sequence, _ = LAYOUTS[found["minor"]]
    assert (members["atomicstatus"], members["trackingSeq"], members["sched"]) == (status, sequence, 56)
    assert (members["goid"], members["waitreason"], 56 + members["bp"]) == (status + 8, status + 32, bp)
    names = {"allgs": "allgs", "reasons": "waitReasonStrings", "text": "text"}
    assert {key: found[key] for key in names} == {key: symbols[f"runtime.{name}"] for key, name in names.items()}
