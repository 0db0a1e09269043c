# SPDX-License-Identifier: Apache-2.0
"""Containers made by hand: control group, root directory, and namespaces of processes, mounts, users and names."""

import contextlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders.compiled import build
from builders.program import PROGRAM
from builders.program import run as perf_offcpu
from kernel.recorder import hanging, run, until

from perf_offcpu.collect.system.cgroups import MOUNTS, cgroup2_mount
from perf_offcpu.files import read_kernel, read_kernel_if_any

pytestmark = pytest.mark.beside

DAEMONSET = Path(__file__).parents[2] / "service" / "daemonset.yaml"
ID = "0123456789ab" + 52 * "c"
PIVOT_ROOT = {"x86_64": 155}.get(platform.machine(), 41)


@dataclass(frozen=True)
class Box:
    """A program of a container."""

    pid: int  # outside
    group: str  # its control group, below the mount of cgroup2
    container: str  # as it is shown
    program: str  # its path as the kernel tells it outside


@contextlib.contextmanager
def boxed(root: Path, scope: str, inside: str, container: str, program: Path) -> Iterator[Box]:
    """Run a shell's commands, the last of which is the waiter, in namespaces and a control group of their own."""
    mount = cgroup2_mount(read_kernel(MOUNTS))
    if mount is None:
        pytest.skip("no cgroup2 is mounted")
    group = Path(mount.decode(), f"test{os.getpid()}", scope)
    group.mkdir(parents=True)
    namespaces = "--pid --mount --uts --user --map-root-user --fork"
    words = ["unshare", *namespaces.split(), "sh", "-ec", f"echo 0 > {group}/cgroup.procs; {inside}"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=root, text=True) as process:
        try:
            until(lambda: process.poll() is not None or "stuck-reader" in comms_in(group).values())
            assert process.poll() is None, process.stderr and process.stderr.read()
            pid = next(tid for tid, comm in comms_in(group).items() if comm == "waiter")
            yield Box(pid, str(group.relative_to(mount.decode())), container, str(program))
        finally:
            (group / "cgroup.kill").write_text("1")
            process.wait()
            until(lambda: is_removed(group))
            group.parent.rmdir()


def fill(root: Path, program: Path, place: Path) -> str:
    """Copy a program and its libraries below a root directory; return the names of the directories there."""
    libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split()
    for source, path in [(program, place), *((Path(word), Path(word)) for word in libraries if word.startswith("/"))]:
        copy = root / path.relative_to("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)
    return " ".join(path.name for path in root.iterdir())


@pytest.fixture
def chrooted(tmp_path: Path, waiter: Path) -> Iterator[Box]:
    """By chroot(2), which leaves the root directory in the paths that the kernel tells; the files exist only there."""
    root = tmp_path / "root"
    names = fill(root, waiter, Path("/opt/waiter"))
    (root / "mnt").mkdir()
    inside = f"mount -t tmpfs none mnt; cp -r {names} mnt; exec chroot mnt /opt/waiter --rounds 1 --delay 600"
    with boxed(root, "machine-byhand.scope", inside, "machine:byhand", root / "mnt/opt/waiter") as box:
        yield box


@pytest.fixture
def pivoted(tmp_path: Path) -> Iterator[Box]:
    """By pivot_root(2), as docker does. Outside, another program has the path of this one; both have no build-id."""
    root, program = tmp_path / "root", tmp_path / "app/waiter"
    program.parent.mkdir()
    build("waiter.c", program, "-O2", "-fno-omit-frame-pointer", "-Wl,-z,now", "-Wl,--build-id=none")
    fill(root, program, program)
    subprocess.run(["objcopy", "--prefix-symbols=wrong_", program], check=True)
    (root / "old").mkdir()
    # The command pivot_root is not in all of Debian's suites; perl is, and each system that builds a program.
    call = f'perl -e \'syscall({PIVOT_ROOT}, (my $new = "."), (my $old = "old")) == 0 or die $!\''
    inside = f"mount --bind {root} {root}; cd {root}; {call}; exec {program} --rounds 1 --delay 600"
    with boxed(root, f"docker-{ID}.scope", inside, f"docker:{ID[:12]}", program) as box:
        yield box


def is_removed(group: Path) -> bool:
    """A group is busy until its last process is reaped."""
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def comms_in(group: Path) -> dict[int, str]:
    tids = map(int, (group / "cgroup.threads").read_text().split())
    return {tid: read_kernel_if_any(f"/proc/{tid}/comm").decode().strip() for tid in tids}


def own_ids(pid: int) -> dict[str, str]:
    """Return thread id outside → pid/tid inside, of the threads of a process."""
    statuses = {path.parent.name: path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")}
    own = {tid: re.findall(r"^NS(?:tgid|pid):.*\t(\d+)$", text, re.M) for tid, text in statuses.items()}
    return {tid: "/".join(ids) for tid, ids in own.items()}


def assert_named(text: str, box: Box) -> None:
    assert dict(re.findall(rf" {box.pid}/(\d+) +container={box.container} nspid=(\S+) ", text)) == own_ids(box.pid)
    functions = set(re.findall(rf"(\S+) \({re.escape(box.program)}\)", text))
    assert {"wait_for_start", "run_worker"} <= functions and not any(name.startswith("wrong_") for name in functions)


@pytest.mark.parametrize(("form", "targets"), [
    ("chrooted", "-p"), ("pivoted", "-p"), pytest.param("pivoted", "-a", marks=pytest.mark.long),
])  # fmt: skip
def test_from_outside(form: str, targets: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Names of functions come from the files of the container, while it lives."""
    box: Box = request.getfixturevalue(form)
    words = [targets] if targets == "-a" else [targets, str(box.pid)]
    done = run(*words, "--duration", "0.4", cwd=tmp_path, timeout_s=300)
    assert done.returncode == 0, done.stderr
    fields = "comm,pid,tid,container,nspid,ip,sym,dso"
    text = perf_offcpu("script", "--container", box.container, "-F", fields, cwd=tmp_path, timeout_s=300).stdout
    assert_named(text, box)


def test_two_files_of_one_name_without_build_ids_give_no_names(pivoted: Box, tmp_path: Path) -> None:
    """A program of the name that the container's has, with other functions at the same addresses."""
    with hanging(pivoted.program, "--delay", "600", threads=9) as pid:
        run("-p", f"{pivoted.pid},{pid}", "--duration", "0.4", cwd=tmp_path)
        text = perf_offcpu("script", "-F", "ip,sym,dso", cwd=tmp_path).stdout
        assert "processes have different files of this name" in perf_offcpu("report", "-v", cwd=tmp_path).stdout
    assert set(re.findall(rf"(\S+) \({re.escape(pivoted.program)}\)", text)) == {"[unknown]"}


@pytest.mark.long
@pytest.mark.parametrize("form", ["pivoted", "chrooted"])
def test_from_inside_a_pod_with_the_pids_of_the_host(form: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """As the DaemonSet runs it: a root file system that is read-only, the capabilities of its manifest, hostPID."""
    box: Box = request.getfixturevalue(form)
    added = DAEMONSET.read_text().partition("add:\n")[2].partition("resources:")[0]
    capabilities = ",".join(f"+{name.lower()}" for name in re.findall(r"- (\w+)", added))
    writable = [tmp_path, Path(os.environ["XDG_CACHE_HOME"]), Path(os.environ["PERF_BUILDID_DIR"]).parent]
    mounts = "; ".join(f"mount --bind {path} {path}" for path in writable)
    rights = f"setpriv --no-new-privs --inh-caps=-all --bounding-set=-all,{capabilities}"
    inside = f"{mounts}; mount -o remount,bind,ro /; cd {tmp_path}; exec {rights} "
    pod = ["unshare", "--mount", "--uts", "sh", "-ec", inside + '"$@"', "sh", *PROGRAM]
    subprocess.run([*pod, "record", "-p", str(box.pid), "--duration", "0.4"], check=True, timeout=120)
    words = [*pod, "script", "--container", box.container, "-F", "pid,tid,container,nspid,ip,sym,dso"]
    assert_named(subprocess.run(words, check=True, timeout=120, capture_output=True, text=True).stdout, box)
