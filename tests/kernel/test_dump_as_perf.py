# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu dump` against `perf script -D` and `perf report -D`, on recordings made here and now."""

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from builders.dump_text import Dumped, parse
from builders.program import run as perf_offcpu
from builders.stock_perf import perf

from perf_offcpu.abi.records import Misc, RecordType

pytestmark = pytest.mark.beside

PIPE_HEADER = 16  # perf counts the offsets of a pipe from behind its header, we from the start of the file

RECORDINGS = {
    "chains": "-g -e cpu-clock -F 2000", "addresses": "-g -d -e page-faults -c 1",
    "several": "-g -e cpu-clock/period=500000/,page-faults/period=10/,context-switches/period=1/ --switch-events",
    "everything": "-e cpu-clock -F 200 -W --phys-data -a --sample-cpu --namespaces",
    "registers": "--call-graph dwarf,512 -e cpu-clock -F 2000",
    "tracepoint": "-e sched:sched_switch -R --switch-events",
}  # fmt: skip
COMPRESSED = (RecordType.COMPRESSED, RecordType.COMPRESSED2)  # the second since perf 6.16

WORKLOAD = ["sh", "-c", "ls -R /etc > /dev/null; (sleep 0.02; true) | cat"]


def dumped(path: Path) -> list[Dumped]:
    return parse(perf_offcpu("dump", "-i", path, timeout_s=120).stdout.splitlines())


def events_of(text: str) -> Counter[tuple[int, int, int]]:
    """(offset, size, type) of each record that perf dumps: `0x368@perf.data [0x30]: event: 3`."""
    found = re.findall(r"^(0x[0-9a-f]+|0)@.* \[(0x[0-9a-f]+)\]: event: (\d+)$", text, re.M)
    return Counter((int(offset, 16), int(size, 16), int(kind)) for offset, size, kind in found)


def own_events(records: list[Dumped], shift: int = 0) -> Counter[tuple[int, int, int]]:
    types = {f"PERF_RECORD_{kind.name}": kind.value for kind in RecordType}
    return Counter((one.offset - shift, one.size, types[one.name]) for one in records)


class Both(NamedTuple):
    """A recording, perf's dump of it and ours."""

    path: Path
    text: str
    records: list[Dumped]


MORE = {"chains": pytest.mark.long, "addresses": pytest.mark.long}
"""Forms of which "several" and "everything" have the fields."""


@pytest.fixture(scope="module", params=[pytest.param(name, marks=MORE.get(name, ())) for name in RECORDINGS])
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    path = tmp_path_factory.mktemp(request.param) / "perf.data"
    perf("record", "-o", path, *RECORDINGS[request.param].split(), "--", *WORKLOAD)
    return Both(path, perf("script", "-D", "-i", path), dumped(path))


def test_the_same_records_at_the_same_places(recording: Both) -> None:
    records = recording.records
    assert own_events(records) == events_of(recording.text)
    assert own_events(records) == events_of(perf("report", "-D", "-i", recording.path))
    assert not [one for one in records if one.problems]
    assert {one.name for one in records} > {"PERF_RECORD_SAMPLE", "PERF_RECORD_COMM", "PERF_RECORD_FINISHED_INIT"}


def test_the_same_samples(recording: Both) -> None:
    """`4323278253004 0x5c0 [0x98]: PERF_RECORD_SAMPLE(IP, 0x1): 9016/9016: 0xff… period: 1 addr: 0x56…`"""
    samples = {record.offset: record for record in recording.records if record.name == "PERF_RECORD_SAMPLE"}
    pattern = re.compile(
        r"^(?:\d+ )?(\d+) (0x\S+) \[0x\S+\]: PERF_RECORD_SAMPLE\(IP, (0x\w+)\): "
        r"(-?\d+)/(-?\d+): (0x\w+|0) period: (\d+) addr: (0x\w+|0)$(.*?)^ \.\.\. thread",
        re.M | re.S,
    )
    printed = pattern.findall(recording.text)
    assert len(printed) == len(samples) > 5
    for time, offset, misc, pid, tid, ip, period, addr, rest in printed:
        ours = samples[int(offset, 16)]
        assert ours.misc == int(misc, 16)
        assert (ours.number("pid"), ours.number("tid")) == (int(pid), int(tid))
        assert (ours.number("time"), ours.number("ip")) == (int(time), int(ip, 16))
        assert int(ours.fields.get("addr", ["0"])[0], 16) == int(addr, 16)
        if "period" in ours.fields:
            assert ours.number("period") == int(period)
        chain = re.findall(r"^\.{5} +\d+: ([0-9a-f]{16})(?: \(PERF_\w+\))?$", rest, re.M)
        assert ours.words("callchain") == [int(word, 16) for word in chain]
        if stack := re.search(r"^\.\.\. ustack: size (\d+)", rest, re.M):
            assert ours.number("stack_user_dyn_size") == int(stack[1])
        registers = re.findall(r"^\.\.\.\. \w+ +(0x[0-9a-f]+)$", rest, re.M)
        shown = ours.fields.get("regs_user", ["[]"])[0]
        assert [int(word, 16) for word in re.findall(r"0x[0-9a-f]+", shown)] == [int(r, 16) for r in registers]


def test_the_same_tasks_and_mappings(recording: Both) -> None:
    _, text, records = recording
    comms = re.findall(r" (0x\w+) \[\w+\]: PERF_RECORD_COMM( exec)?: (.*):(-?\d+)/(-?\d+)$", text, re.M)
    ours = {
        (f"{row.offset:#x}", " exec" if row.misc & Misc.COMM_EXEC else "", name_of(row, "comm"), *ids_of(row))
        for row in records
        if row.name == "PERF_RECORD_COMM"
    }
    assert ours == set(comms)
    maps = re.findall(
        r" (0x\w+) \[\w+\]: PERF_RECORD_MMAP2? (-?\d+)/(-?\d+): \[(\w+)\((\w+)\) @ (\w+)[^]]*\]: \S+ (.*)$", text, re.M
    )
    places = ("addr", "len", "pgoff")
    mapped = {
        (f"{row.offset:#x}", *ids_of(row), *(shown(row, one) for one in places), name_of(row, "filename"))
        for row in records
        if row.name in ("PERF_RECORD_MMAP", "PERF_RECORD_MMAP2")
    }
    assert mapped == set(maps)
    switches = re.findall(r" (0x\w+) \[\w+\]: PERF_RECORD_SWITCH(?:_CPU_WIDE)? (IN|OUT)", text)
    switched = {
        (f"{row.offset:#x}", "OUT" if row.misc & Misc.SWITCH_OUT else "IN")
        for row in records
        if row.name.startswith("PERF_RECORD_SWITCH")
    }
    assert switched == set(switches)


def name_of(one: Dumped, name: str) -> str:
    return one.fields[name][0].removeprefix("b'").removesuffix("'")


def ids_of(one: Dumped) -> tuple[str, str]:
    return one.fields["pid"][0], one.fields["tid"][0]


def shown(one: Dumped, name: str) -> str:
    """As perf prints with %#lx: zero has no 0x."""
    return one.fields[name][0].replace("0x0", "0") if one.number(name) == 0 else one.fields[name][0]


def test_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe.data"
    with path.open("wb") as out:
        command = ["perf", "record", "-o", "-", "-g", "-e", "cpu-clock", "--", *WORKLOAD]
        subprocess.run(command, stdout=out, stderr=subprocess.DEVNULL, timeout=60, check=True)
    records = dumped(path)
    assert own_events(records, PIPE_HEADER) == events_of(perf("script", "-D", "-i", path))
    assert {"PERF_RECORD_HEADER_ATTR", "PERF_RECORD_HEADER_FEATURE"} < {one.name for one in records}


def test_a_compressed_recording(tmp_path: Path) -> None:
    """Inner records are the same; perf does not tell where they lay."""
    path = tmp_path / "perf.data"
    perf("record", "-z", "-o", path, "-g", "-e", "cpu-clock", "-F", "10000", "--", *WORKLOAD)
    records = dumped(path)
    theirs = Counter((size, kind) for _, size, kind in events_of(perf("script", "-D", "-i", path)).elements())
    ours = Counter((size, kind) for _, size, kind in own_events(records).elements())
    compressed = {key: count for key, count in ours.items() if key[1] in COMPRESSED}
    assert compressed
    assert ours - Counter(compressed) == theirs - Counter(compressed)
    assert {one.origin for one in records} == {"", "zstd"}


def test_our_own_recording(waiter: Path, tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    perf_offcpu("record", "-z0", "-o", path, "--", waiter, "--rounds", "3", cwd=tmp_path)
    assert own_events(dumped(path)) == events_of(perf("script", "-D", "-i", path))
    text = perf_offcpu("dump", "-i", path).stdout
    assert text.count("  offcpu-time extension\n") > 3
    assert "  offcpu-counters wait objects\n" in text
    assert text.count("  offcpu-counters raw payload\n") == 1
