# SPDX-License-Identifier: Apache-2.0
"""Build-ids of what is mapped while recording, beside recorders that ask the kernel for them or do not."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builders import program
from kernel.recorder import lost, perf, recorder, run

from perf_offcpu.abi.attr import Attr, AttrFlag, PerfType, SampleType, SoftwareConfig
from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.collect.events import perf_event
from perf_offcpu.collect.system.cpus import online_cpus
from perf_offcpu.decode.load import load_recording
from perf_offcpu.perfdata.reader import PerfDataReader

pytestmark = pytest.mark.beside

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


def test_build_ids_of_kernel_and_mapped_files(tmp_path: Path) -> None:
    recording, python = run("-a", "--duration", "0.2", cwd=tmp_path).recording, Path(sys.executable).resolve()
    listed = perf("buildid-list", "-i", tmp_path / "perf.data")
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
    flagged = {flag for flag, _ in mapped(theirs, TRUE)}
    assert flagged <= {False}
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
