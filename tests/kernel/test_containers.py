# SPDX-License-Identifier: Apache-2.0
"""A container made by hand: control group, root directory, and namespaces of processes, mounts and names of its own."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.program import run as perf_offcpu
from kernel.recorder import run, until

from perf_offcpu.collect.system.cgroups import MOUNTS, cgroup2_mount
from perf_offcpu.files import read_kernel, read_kernel_if_any

pytestmark = pytest.mark.beside


@pytest.fixture
def box(tmp_path: Path, waiter: Path) -> Iterator[int]:
    """The pid, outside, of a program of the container `byhand`, whose files exist only there."""
    mount = cgroup2_mount(read_kernel(MOUNTS))
    if mount is None:
        pytest.skip("no cgroup2 is mounted")
    group = Path(mount.decode(), f"test{os.getpid()}", "machine-byhand.scope")
    group.mkdir(parents=True)
    root = tmp_path / "root"
    (root / "opt").mkdir(parents=True)
    shutil.copy(waiter, root / "opt" / "napper")
    for line in subprocess.run(["ldd", waiter], capture_output=True, text=True, check=True).stdout.split():
        if line.startswith("/"):
            (root / line[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(line, root / line[1:])
    # The mount is there only: outside, the path of the program does not exist.
    inside = f"echo 0 > {group}/cgroup.procs; mount -t tmpfs none {root}/mnt; cp {root}/opt/napper {root}/mnt/napper; "
    (root / "mnt").mkdir()
    inside += f"exec chroot {root} /mnt/napper --rounds 1 --delay 60"
    words = ["unshare", "--pid", "--mount", "--uts", "--fork", "--kill-child", "sh", "-c", inside]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        try:
            until(lambda: "napper" in comms_in(group).values())
            yield next(pid for pid, comm in comms_in(group).items() if comm == "napper")
        finally:
            process.kill()
            process.wait()
            until(lambda: is_removed(group))
            group.parent.rmdir()


def is_removed(group: Path) -> bool:
    """A group is busy until its last process is reaped."""
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def comms_in(group: Path) -> dict[int, str]:
    pids = map(int, (group / "cgroup.procs").read_text().split())
    return {pid: read_kernel_if_any(f"/proc/{pid}/comm").decode().strip() for pid in pids}


def test_a_container_has_a_name_and_its_files_have_symbols_while_it_lives(box: int, tmp_path: Path) -> None:
    done = run("-G", f"test{os.getpid()}/machine-byhand.scope", "--duration", "1.5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = perf_offcpu("report", "--sort", "container", cwd=tmp_path).stdout
    assert "machine:byhand" in shown
    lines = perf_offcpu("script", "--container", "byhand", "-F", "+pid,+container", cwd=tmp_path).stdout
    samples = [line for line in lines.splitlines() if "offcpu-time" in line]
    assert samples and all("machine:byhand" in line and f"{box}/" in line for line in samples)
    # Names of the program's functions, from a file that exists in the container alone.
    assert "main" in lines and "/mnt/napper)" in lines
    wrong = perf_offcpu("report", "--container", "other", cwd=tmp_path, status=129).stderr
    assert "no container 'other' in perf.data (its containers: " in wrong and "machine:byhand" in wrong
