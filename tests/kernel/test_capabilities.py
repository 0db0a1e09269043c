# SPDX-License-Identifier: Apache-2.0
"""Recording with capabilities instead of all of root's rights: what is missing without each, as `doctor` says it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from builders.examples import examples
from builders.program import PROGRAM
from kernel.others import AS_NOBODY

from perf_offcpu.collect.system.privileges import USES
from perf_offcpu.decode.load import load_recording

pytestmark = [pytest.mark.beside, pytest.mark.long]

ALL = [name.removeprefix("CAP_").lower() for name in USES]
FEATURES = ("recording", "maps of others", "closed files", "kernel map", "large rings", "priority")


@pytest.fixture
def napper(tmp_path: Path) -> Iterator[int]:
    """A process of nobody, of a file that only nobody may read, in a directory that is closed to others."""
    closed = tmp_path / "closed"
    closed.mkdir()
    shutil.copy("/bin/sleep", closed / "napper")
    for path in (closed / "napper", closed):
        os.chown(path, 65534, 65534)
        path.chmod(0o700)
    for directory in tmp_path.parents:
        if directory.stat().st_uid == os.getuid():
            directory.chmod(directory.stat().st_mode | 0o755)
    tmp_path.chmod(0o755)
    with subprocess.Popen([*AS_NOBODY, closed / "napper", "600"]) as process:
        yield process.pid
        process.kill()


def works(without: str, napper: int, cwd: Path) -> set[str]:
    """Record the whole system with all capabilities of USES but `without` and CAP_SYS_ADMIN; return what works."""
    kept = ",".join(f"+{name}" for name in ALL if name not in (without, "sys_admin"))
    words = ["setpriv", f"--bounding-set=-all,{kept}", "--inh-caps=-all", *PROGRAM, "record", "-a", "-m", "32M"]
    nice = 0
    with subprocess.Popen([*words, "--duration", "1"], cwd=cwd, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "recording ]" in line:
                nice = os.getpriority(os.PRIO_PROCESS, process.pid)
    if process.returncode:
        return set()
    recording = load_recording(cwd / "perf.data")
    dsos = recording.maps.dso[np.isin(recording.maps.space, np.flatnonzero(recording.spaces.pid == napper))]
    names = {recording.strings[path]: recording.strings[build_id] for path, build_id in zip(
        recording.dsos.path[dsos].tolist(), recording.dsos.build_id[dsos].tolist(), strict=True)}  # fmt: skip
    facts = {
        "recording": True,
        "maps of others": bool(names),
        "closed files": any(name.endswith("/napper") and build_id for name, build_id in names.items()),
        "kernel map": any("kernel.kallsyms" in name for name in kernel_names(recording)),
        "large rings": not any("are not to be had" in line for line in said),
        "priority": nice < 0,
    }
    return {feature for feature, is_there in facts.items() if is_there}


def kernel_names(recording: object) -> set[str]:
    maps, dsos, strings = recording.maps, recording.dsos, recording.strings  # type: ignore[attr-defined]
    return {strings[path] for path in dsos.path[maps.dso[maps.space < 0]].tolist()}


@pytest.mark.parametrize(("without", "missing"), examples("kernel/examples.txt", "capabilities"))
def test_each_capability_is_needed_for_what_the_table_says(
    without: str, missing: str, napper: int, tmp_path: Path
) -> None:
    lost = set(FEATURES) if missing == "everything" else {*missing.split(", ")} - {""}
    assert works(without, napper, tmp_path) == set(FEATURES) - lost
