# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu doctor` on this machine as it is, and with one part of it taken away for real."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernel.others import NOBODY, reachable

from perf_offcpu.collect.bpf.program import OffCpuProgram

pytestmark = pytest.mark.beside

DOCTOR = shlex.join([sys.executable, "-m", "perf_offcpu", "doctor"])
# Not unshare's own way of keeping mounts to itself, which fails in a chroot.
PRIVATE = "unshare --mount --propagation unchanged"


def privately(mounts: str, options: str = "", before: str = "") -> str:
    """A shell line that changes mounts for the doctor alone; `before` stands before its command."""
    return f"{PRIVATE} {options} sh -c {shlex.quote(f'{mounts}; {before} {DOCTOR} --json #')}"


def doctor(shell: str = DOCTOR) -> tuple[int, dict[str, Any], dict[str, dict[str, str]]]:
    """(exit status, the whole document, its findings by part) of a shell line that ends in the doctor."""
    done = subprocess.run(["bash", "-c", f"{shell} --json"], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    document = json.loads(done.stdout)
    return done.returncode, document, {one["part"]: one for one in document["findings"]}


@pytest.fixture(scope="module")
def here() -> tuple[int, dict[str, Any], dict[str, dict[str, str]]]:
    return doctor()


def test_all_that_recording_needs_works_where_recording_works(here: Any) -> None:
    status, document, parts = here
    assert (status, document["can_record"]) == (0, True)
    assert "missing" not in {one["state"] for one in parts.values() if one["group"] == "recording"}
    assert parts["collector"]["found"].startswith("compiled, verified and loaded in ")
    for one in parts.values():
        assert (one["state"] == "works") <= (one["advice"] == "")


@pytest.mark.long
def test_text_has_a_line_a_part_and_the_verdict_at_its_end(here: Any) -> None:
    _, document, _ = here
    done = subprocess.run(["bash", "-c", DOCTOR], capture_output=True, text=True, timeout=120, check=True)
    lines = done.stdout.splitlines()
    for one in document["findings"]:
        assert any(line.split()[:1] == [one["state"]] and one["part"] in line for line in lines)
    assert lines[-1] == "Recording works here."


# What is taken away, the part that shows it, and words of what is found and of what to do.
WITHOUT = {
    "privileges": (f"setpriv --bounding-set=-all --inh-caps=-all {DOCTOR}", {
        "BPF": ("neither CAP_SYS_ADMIN nor", "run as root"), "collector": ("not tried without BPF", ""),
        "perf events": ("perf_event_paranoid", "CAP_PERFMON"),
    }),
    "BTF": (privately("mount --make-rprivate /sys && mount -t tmpfs none /sys/kernel/btf"), {
        "BTF": ("cannot be read", "CONFIG_DEBUG_INFO_BTF"), "kernel": ("not tried without BTF", ""),
    }),
    "root of its own": (f"unshare -Ur {DOCTOR}", {
        "BPF": ("user namespace", "record from outside"), "kernel symbols": ("hides", "run as root"),
    }),
}  # fmt: skip


@pytest.mark.parametrize("what", WITHOUT)
def test_what_recording_cannot_do_without_is_missing_and_says_what_to_do(what: str) -> None:
    shell, wanted = WITHOUT[what]
    status, document, parts = doctor(shell)
    assert (status, document["can_record"]) == (1, False)
    for part, (found, advice) in wanted.items():
        assert found in parts[part]["found"] and advice in parts[part]["advice"]
        assert parts[part]["state"] == ("limited" if part == "kernel symbols" else "missing")


@pytest.mark.long
def test_the_other_package_called_bcc_is_told_from_the_real_one(tmp_path: Path) -> None:
    (tmp_path / "bcc.py").write_text("")
    status, _, parts = doctor(f"PYTHONPATH={shlex.quote(str(tmp_path))} {DOCTOR}")
    assert status == 1
    assert "is not the BPF compiler collection" in parts["bcc"]["found"]
    assert "python3-bpfcc" in parts["bcc"]["advice"]


@pytest.mark.long
def test_what_was_compiled_before_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    OffCpuProgram().close()
    kept = Path(os.environ["XDG_CACHE_HOME"], "perf-offcpu", "programs")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    without_bcc = f"PYTHONPATH={shlex.quote(str(tmp_path))} {DOCTOR}"
    (tmp_path / "bcc.py").write_text("")
    assert "for this kernel" not in doctor(without_bcc)[2]["bcc"]["found"]
    shutil.copytree(kept, tmp_path / "perf-offcpu" / "programs", dirs_exist_ok=True)
    status, _, parts = doctor(without_bcc)
    assert status == 1
    assert re.search(r"it was compiled (once|\d+ times) for this kernel", parts["bcc"]["found"])
    assert parts["bcc"]["state"] == "missing"


LIMITED = {"pid namespace": "--pid=host", "open files": "ulimit -n", "tracefs": "mount -t tracefs"}
LIMITED |= {"perf": "linux-perf"}
"""Part → words of what to do where it is taken away."""


@pytest.mark.long
def test_what_recording_can_do_without_is_limited_and_says_what_to_do() -> None:
    without = privately(
        "mount --make-rprivate /sys; mount --make-rprivate /proc && mount -t proc proc /proc; ulimit -n 68; "
        "umount -lR /sys/kernel/tracing /sys/kernel/debug 2>/dev/null; mount -t tmpfs none /sys/kernel/debug",
        "--pid --fork",
        f"PATH=/nowhere {shutil.which('setpriv')} --bounding-set=-sys_admin",
    )
    status, _, parts = doctor(without)
    assert status == 0
    for part, advice in LIMITED.items():
        assert parts[part]["state"] == "limited" and advice in parts[part]["advice"]
    assert "off-cpu samples" not in parts, "perf would show them"


def test_what_only_root_may_read_needs_no_mount() -> None:
    status, _, parts = doctor(reachable(f"setpriv {NOBODY} {DOCTOR} --json #"))
    assert status == 1
    assert (parts["tracefs"]["state"], parts["tracefs"]["advice"]) == ("limited", "run as root")


@pytest.mark.long
def test_check_of_the_agent_ends_with_the_doctors_findings(here: tuple[int, Any, Any], tmp_path: Path) -> None:
    parts = [one["part"] for one in here[1]["findings"] if one["group"] == "recording"]
    where = ["--dataset", tmp_path / "set", "--spool", tmp_path / "spool", "--port", "0"]
    words = [sys.executable, "-m", "perf_offcpu", "agent", "--check", *map(str, where)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    rows = [line for line in done.stdout.splitlines() if line[2] != " "]
    assert [row[11:30].strip() for row in rows] == ["configuration", "spool", "dataset", *parts], done.stderr
    assert done.returncode == here[0] == 0 and not list(tmp_path.iterdir())
