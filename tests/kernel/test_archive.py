# SPDX-License-Identifier: Apache-2.0
"""Recordings with copies of stacks, passed on: nothing of the copies, and all that names their frames.

The program's own code lies in no address that was recorded: only unwinding finds it.
"""

import os
import re
import shutil
from pathlib import Path

import pytest
from conftest import Command
from kernel.whole_stacks import record

pytestmark = pytest.mark.beside

SECRET = re.compile(rb"secret \d+ on the stack")


def folded(perf_offcpu: Command, recording: Path, *options: str | Path) -> str:
    done = perf_offcpu("convert", "--folded", "-i", recording, "-o", "-", *options)
    return done.stdout


def test_an_archive_names_all_frames_and_holds_no_stack(cpp: Path, perf_offcpu: Command, tmp_path: Path) -> None:
    here, recorded, archive = tmp_path / "waits", tmp_path / "x.data", tmp_path / "x.tar"
    shutil.copy(cpp, here)
    record(recorded, here, "3", options=("-F", "999"), event="cpu-clock")
    expected = folded(perf_offcpu, recorded)
    assert "main" in expected and SECRET.search(recorded.read_bytes())
    done = perf_offcpu("archive", "-i", recorded, "-o", archive)
    assert "copies of user stacks unwound and left out" in done.stderr
    assert not SECRET.search(archive.read_bytes())
    assert archive.stat().st_mode & 0o777 == 0o600
    perf_offcpu("archive", "--unpack", archive, "-C", tmp_path / "there")
    here.unlink()
    there = tmp_path / "there"
    found = folded(perf_offcpu, there / "perf.data", "--symfs", there / "symbols")
    assert sorted(found.splitlines()) == sorted(expected.splitlines())


def test_copies_of_stacks_are_packed_if_asked_for(cpp: Path, perf_offcpu: Command, tmp_path: Path) -> None:
    recorded, archive = tmp_path / "x.data", tmp_path / "x.tar"
    record(recorded, cpp, "1")
    perf_offcpu("archive", "--keep-stack-bytes", "-i", recorded, "-o", archive)
    perf_offcpu("archive", "--unpack", archive, "-C", tmp_path)
    assert (tmp_path / "perf.data").read_bytes() == recorded.read_bytes()
    assert SECRET.search(archive.read_bytes())


def test_the_build_id_cache_gets_the_files_that_unwinding_leads_to(
    cpp: Path, perf_offcpu: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERF_BUILDID_DIR", str(tmp_path / "debug"))
    here, recorded = tmp_path / "waits", tmp_path / "x.data"
    shutil.copy(cpp, here)
    perf_offcpu("record", "--buildid-cache", "--call-graph", "cfi", "-o", recorded, "--", here, "1")
    expected = folded(perf_offcpu, recorded)
    os.unlink(here)
    assert folded(perf_offcpu, recorded) == expected
    assert "main" in expected
