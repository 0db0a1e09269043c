# SPDX-License-Identifier: Apache-2.0
"""The child of the command: it waits for the start, passes on its status, ends with a recorder that fails."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from perf_offcpu.collect.workload import Workload
from perf_offcpu.errors import TargetError


def run(*argv: str) -> int:
    with contextlib.closing(Workload(argv)) as workload:
        workload.start()
        return workload.wait()


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -SEGV $$", 139)]
)
def test_status_is_the_shells(script: str, status: int) -> None:
    assert run("sh", "-c", script) == status


def test_nothing_runs_before_start(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    Workload(["touch", str(mark)]).close()
    assert not mark.exists(), "closing gives up a command that was never started"
    with contextlib.closing(Workload(["sh", "-c", f"echo $$ > {mark}"])) as workload:
        assert not select.select([workload.pidfd], [], [], 0.2)[0] and not mark.exists()
        workload.start()
        assert select.select([workload.pidfd], [], [], 5)[0] and workload.wait() == 0
    assert int(mark.read_text()) == workload.pid, "the pid is the command's"


@pytest.mark.parametrize(
    ("name", "status", "text"), [("nonexistent", 127, "No such file"), ("text", 126, "Permission denied")]
)
def test_what_cannot_run(tmp_path: Path, name: str, status: int, text: str) -> None:
    (tmp_path / "text").write_text("no program")
    with contextlib.closing(Workload([str(tmp_path / name)])) as workload:
        with pytest.raises(TargetError, match=rf"^cannot run \S+/{name}: {text}") as problem:
            workload.start()
        assert problem.value.exit_status == status


def test_signals_are_what_a_command_expects(tmp_path: Path) -> None:
    """Python ignores SIGPIPE and SIGXFSZ; a command that inherits that behaves strangely in pipelines."""
    handled = {number: signal.getsignal(number) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    assert set(handled.values()) == {signal.SIG_IGN}
    # Signals that this process ignores, as under nohup, stay ignored. The kernel is asked, as a library (LLVM) may have
    # set handlers.
    (mask,) = re.findall(r"SigIgn:\s+(\w+)", Path("/proc/self/status").read_text())
    ignored = int(mask, 16) & ~sum(1 << (number - 1) for number in handled)
    assert run("sh", "-c", f"grep -E 'Sig(Ign|Blk)' /proc/self/status >{tmp_path}/signals") == 0
    assert (tmp_path / "signals").read_text().split() == ["SigBlk:", f"{0:016x}", "SigIgn:", f"{ignored:016x}"]


def test_end_terminates_what_still_runs() -> None:
    with contextlib.closing(Workload(["sleep", "60"])) as workload:
        workload.start()
        assert workload.end() == 128 + signal.SIGTERM and workload.end() == 128 + signal.SIGTERM


def test_child_goes_when_the_recorder_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"""
        import os, signal
        from perf_offcpu.collect.workload import Workload
        workload = Workload(["touch", {str(mark)!r}])
        print(workload.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, timeout=30, check=False
    )
    assert done.returncode == -signal.SIGKILL
    with contextlib.suppress(ProcessLookupError):  # it may be gone, and reaped by its new parent
        assert select.select([os.pidfd_open(int(done.stdout))], [], [], 5)[0]
    assert not mark.exists()
