# SPDX-License-Identifier: Apache-2.0
"""Python functions of programs that hang, read by pystack with the rights of the owner of the program."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import program
from kernel.others import AS_NOBODY
from kernel.recorder import hanging, run

from perf_offcpu.collect.kernel_totals.python_stacks import functions_of

pytestmark = pytest.mark.beside

HUNG = Path(__file__).parent / "hung"
NOBODY = 65534
WITH_FEWER_RIGHTS = ["setpriv", "--bounding-set=-sys_boot", "--inh-caps=-all"]
IN_A_CONTAINER = ["unshare", "--mount"]
LOOK = """
from types import SimpleNamespace as Any

def get_process_threads(pid, stop_process):
    wanted = ("Uid", "Gid", "Groups", "Cap", "No")
    found = [line.strip() for line in open("/proc/self/status") if line.startswith(wanted)]
    try:
        found.append(open({secret!r}).read())
    except OSError as problem:
        found.append(type(problem).__name__)
    place = Any(lineno=1)
    frames = [Any(is_entry=1, is_shim=0, code=Any(scope=one, filename="", location=place)) for one in found]
    return [Any(tid=pid, all_frames=frames)]
"""
"""A pystack that shows its rights."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody can reach."""
    path = Path(tempfile.mkdtemp(prefix="python.", dir="/tmp"))
    path.chmod(0o755)
    shutil.copy(HUNG / "abba.py", path)
    yield path
    shutil.rmtree(path)


def record_functions(pid: int, seconds: str, cwd: Path) -> str:
    """Return what the recorder said. pystack gets some seconds, which are not enough where it gets no CPU."""
    for _ in range(3):
        done = run("--python-stacks", "-p", str(pid), "--duration", seconds, cwd=cwd)
        if "could not be read" not in done.stderr:
            break
    assert "could not be read" not in done.stderr, done.stderr
    return done.stderr


def test_functions_of_a_deadlock_stand_in_the_stacks_of_both_threads(place: Path, tmp_path: Path) -> None:
    with hanging(*AS_NOBODY, "/usr/bin/python3", place / "abba.py", threads=3) as pid:
        record_functions(pid, "1", tmp_path)
    text = program.run("script", "-i", "perf.data", "-F", "tid,sym", cwd=tmp_path).stdout
    stacks = [block.splitlines()[1:] for block in text.strip().split("\n\n")]
    found = 0
    for stack in stacks:
        functions = [line.strip() for line in stack if line.endswith("y)")]
        if "take (abba.py)" not in functions:
            continue
        found += 1
        assert functions[0] == "take (abba.py)" and functions[-1] == "_bootstrap (threading.py)", text
        names = [line.strip() for line in stack]
        take = names.index("take (abba.py)")
        # From Python 3.12 on, one call of the interpreter runs several functions.
        in_c = [name for name in names[take:] if not name.endswith("y)")]
        assert "_PyEval_EvalFrameDefault" in in_c[0], text
        assert any("acquire_lock" in name or "_PySemaphore" in name for name in names[:take]), text
    assert found == 2, text


def test_it_has_the_rights_of_the_owner_of_the_program(place: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of root")
    secret.chmod(0o600)
    (tmp_path / "pystack").mkdir()
    (tmp_path / "pystack" / "engine.py").write_text(LOOK.format(secret=str(secret)))
    with hanging(*AS_NOBODY, "cat") as pid:
        shown = [name for name, *_ in functions_of(pid, str(tmp_path))[pid]]
    rights = dict(line.split(":") for line in shown[:-1])
    assert rights["Uid"].split("?") == rights["Gid"].split("?") == ["", *[str(NOBODY)] * 4]
    assert not rights["Groups"].strip("? ") and rights["NoNewPrivs"] == "?1"
    assert int(rights["CapEff"][1:], 16) == int(rights["CapPrm"][1:], 16) == 0
    assert shown[-1] == "PermissionError"
    with hanging("cat") as pid:
        assert functions_of(pid, str(tmp_path))[pid][-1][0] == "of root", "root's own program"


@pytest.mark.parametrize("confined", [WITH_FEWER_RIGHTS, IN_A_CONTAINER], ids=["fewer rights", "container"])
def test_programs_of_root_that_are_confined_are_not_read(confined: list[str], tmp_path: Path) -> None:
    (tmp_path / "pystack").mkdir()
    (tmp_path / "pystack" / "engine.py").write_text(LOOK.format(secret="/"))
    with hanging(*confined, "cat") as pid:
        assert functions_of(pid, str(tmp_path)) == {}


def test_each_file_of_a_recording_has_the_functions_of_its_end(place: Path, tmp_path: Path) -> None:
    with hanging("/usr/bin/python3", place / "abba.py", threads=3) as pid:
        run("--python-stacks", "--switch-output=1s", "-p", str(pid), "--duration", "3", cwd=tmp_path)
    files = sorted(tmp_path.glob("perf.data*"))
    assert len(files) >= 2
    for path in files:
        text = program.run("script", "-i", path, "-F", "tid,sym", cwd=tmp_path).stdout
        assert text.count("take (abba.py)") == 2, text


NAPS = """
import threading, time
def nap():
    while True:
        time.sleep(0.05)
for _ in range(5):
    threading.Thread(target=nap).start()
"""


def test_threads_that_run_again_are_counted(tmp_path: Path) -> None:
    """Pystack takes longer to start than they sleep. On a busy machine one or two of them wait for a CPU."""
    with hanging("/usr/bin/python3", "-c", NAPS, threads=6) as pid:
        text = record_functions(pid, "0.3", tmp_path)
    said = re.findall(r"threads that ran again before their Python functions were read: ([1-5])$", text, re.M)
    assert len(said) == 1, text
    report = program.run("report", "-i", "perf.data", cwd=tmp_path).stdout
    assert f"{said[0]}  threads, blocked at the end, whose Python functions could not be read" in report
