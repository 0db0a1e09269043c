# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu record` where something is missing: the sentence names it and the smallest remedy."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

import pytest
from builders.examples import examples
from kernel.others import NOBODY, reachable
from kernel.recorder import PROGRAM, perf, recorder

from perf_offcpu import losses
from perf_offcpu.collect.bpf import syscall as bpf_syscall
from perf_offcpu.collect.bpf.attr import ProgramType
from perf_offcpu.decode.load import load_recording

pytestmark = pytest.mark.beside

RECORD = shlex.join(PROGRAM)
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def under(condition: str, directory: Path, options: str = "") -> subprocess.CompletedProcess[str]:
    """A recording of `true` under a command that takes something away."""
    command = condition.format(record=f"{RECORD} {options} -- true")
    directory.chmod(0o777)
    if NOBODY in command:
        command = reachable(command)
    return subprocess.run(
        ["sh", "-c", command], cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(("condition", "what", "remedy"), examples("kernel/sentences.txt", "conditions"))
def test_what_is_missing_is_named_with_the_least_change(tmp_path: Path, condition: str, what: str, remedy: str) -> None:
    done = under(condition.replace("NOBODY", NOBODY), tmp_path, "-a")
    assert done.returncode == 1
    assert what in done.stderr and remedy in done.stderr and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_two_capabilities_are_enough() -> None:
    caps = "--inh-caps=+bpf,+perfmon --ambient-caps=+bpf,+perfmon"
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # others may not enter pytest's
        done = under(f"setpriv {NOBODY} {caps} {{record}}", Path(directory))
    assert done.returncode == 0 and "Captured and wrote" in done.stderr


@pytest.mark.alone
def test_rings_are_smaller_where_memory_may_not_be_locked_and_that_is_said(tmp_path: Path) -> None:
    limits = "setpriv --bounding-set=-ipc_lock,-sys_admin,-sys_resource prlimit --memlock=65536:65536"
    done = under(f"{limits} {{record}}", tmp_path, "-m 64M")
    assert done.returncode == 0, done.stderr
    assert "ring buffers of 65536 kB per CPU are not to be had, using " in done.stderr
    load_recording(tmp_path / "perf.data")


def test_tracefs_is_mounted_where_it_is_not_and_may_be(tmp_path: Path) -> None:
    hide = "unshare -m sh -c 'umount -l /sys/kernel/tracing; umount -lR /sys/kernel/debug; "
    hide += "exec {before} {{record}}'"
    options = "-a -e sched:sched_process_exec"
    done = under(hide.format(before="setpriv --bounding-set=-sys_admin"), tmp_path, options)
    assert done.returncode == 1
    assert "mount -t tracefs nodev /sys/kernel/tracing" in done.stderr
    done = under(hide.format(before=""), tmp_path, options)
    assert done.returncode == 0, done.stderr
    shown = perf("script", "-F", "event,trace", "-i", tmp_path / "perf.data", allow="not valid for")
    assert "sched:sched_process_exec: filename=" in shown


@pytest.mark.parametrize(
    ("redirection", "sentence"), [(">/dev/full", "No space left on device"), (">&-", "standard output is closed")]
)
def test_standard_output_that_takes_nothing(tmp_path: Path, redirection: str, sentence: str) -> None:
    done = under(f"{{record}} {redirection}", tmp_path, "-o -")
    assert done.returncode in (1, 129)
    assert sentence in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.long
@pytest.mark.alone
def test_programs_loaded_beside_two_recorders_do_not_spoil_their_files(tmp_path: Path) -> None:
    """The kernel gives all but the first of them records of BPF programs that are too long."""
    directories = [tmp_path / "one", tmp_path / "two"]
    for directory in directories:
        directory.mkdir()
    options = ("-a", "-e", "none", "--off-cpu-thresh", "1000")
    with recorder(*options, cwd=directories[0]) as one, recorder(*options, cwd=directories[1]) as two:
        code = bytes.fromhex("b700000000000000 9500000000000000")
        for number in range(5):
            name = f"spoiler_{'x' * number}"
            subprocess.run(["true"], check=True)
            os.close(bpf_syscall.load_program(ProgramType.PERF_EVENT, name, code, "GPL"))
        for process in (one, two):
            process.terminate()
            process.wait(20)
    for directory in directories:
        shown = perf("script", "--show-bpf-events", "--no-inline", "-i", directory / "perf.data")
        assert shown.count("_spoiler_") >= 10  # each comes and goes
        assert load_recording(directory / "perf.data").losses.keys().isdisjoint({losses.UNKNOWN_ID})
