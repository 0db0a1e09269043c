# SPDX-License-Identifier: Apache-2.0
"""Targets: perf's rules, and those that do not exist; the child of the command ends with a recorder that fails."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perf_offcpu.collect import targets
from perf_offcpu.collect.bpf.config import Targets
from perf_offcpu.collect.system.cgroups import Hierarchy, hierarchies
from perf_offcpu.collect.targets import Target, TargetWatch, check_target, choose_target, left_out, process_of
from perf_offcpu.collect.workload import Workload
from perf_offcpu.errors import TargetError, UsageError


@pytest.mark.parametrize(("texts", "command", "target"), [
    ({}, False, Target()), ({"system": True}, True, Target()), ({}, True, Target(command=True)),
    ({"pids": "17"}, True, Target(processes=(17,))), ({"pids": "18,17,18"}, False, Target(processes=(18, 17))),
    ({"tids": "4, 5"}, False, Target(threads=(4, 5))), ({"users": "root,7"}, True, Target(users=(0, 7))),
    ({"pids": "3", "tids": "4"}, False, Target(processes=(3,), threads=(4,))),
    ({"system": True, "cpus": "0"}, True, Target(cpus=(0,))),
    ({"comms": "a b,c"}, True, Target(command=True, comms=(b"a b", b"c"))),
    ({"comms": "123456789012345"}, True, Target(command=True, comms=(b"123456789012345",))),
])  # fmt: skip
def test_choice(texts: dict[str, Any], command: bool, target: Target) -> None:
    assert choose_target(command, **texts) == target


def test_kinds() -> None:
    kinds = [Target(), Target((1,)), Target((), (1,)), Target((1,), (2,)), Target(command=True)]
    expected = [Targets.ALL, Targets.PIDS, Targets.TIDS, Targets.TASKS, Targets.COMMAND]
    assert [target.kind for target in kinds] == expected


@pytest.mark.parametrize(("texts", "kind", "sentence"), [
    *(({"system": True, other: "1"}, UsageError, ".*choose one") for other in ("pids", "tids")),
    *(
        ({"pids": text}, UsageError, re.escape(f"-p {text}: not a list of ids"))
        for text in ("x", "1,x", "-1", "0", ",", "1.5", "+", "1++", "9" * 5000)
    ),
    *((texts, UsageError, "") for texts in ({"cpus": "0-"}, {"cpus": "x"}, {"users": "root,"}, {"comms": ",a"})),
    ({"comms": "a,1234567890123456"}, UsageError, "--comm 1234567890123456: .* 15 bytes .*: use 123456789012345$"),
    ({"users": "no such user"}, TargetError, "-u no such user: there is no such user"),
    *(({"users": user}, TargetError, ".*there is no such user") for user in ("4294967295", "99999999999", "9" * 30)),
    ({"cpus": "4095"}, TargetError, "-C 4095: CPU 4095 is not online; 0"),
    ({"groups": ["no/such/group"]}, TargetError, "-G no/such/group: there is no such control group in /"),
    ({"groups": ["x" * 300]}, TargetError, "-G x*: there is no such control group in /"),
    ({"groups": ["../../etc"]}, TargetError, r"-G \.\./\.\./etc: there is no such control group"),
])  # fmt: skip
def test_bad_targets_are_refused(texts: dict[str, Any], kind: type[UsageError | TargetError], sentence: str) -> None:
    with pytest.raises(kind, match=f"^{sentence}"):
        choose_target(**texts)


MOUNTINFO = rb"""30 20 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
31 20 0:27 / /sys/fs/cgroup/block\040io rw - cgroup cgroup rw,blkio
32 20 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
33 20 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
34 20 0:30 / /proc rw - proc proc rw
"""


def test_hierarchies_of_a_system_with_both() -> None:
    kinds = {"cpu,cpuacct": "cpu", "block io": "io", "systemd": None, "unified": ""}
    assert hierarchies(MOUNTINFO) == tuple(Hierarchy(f"/sys/fs/cgroup/{name}", kind) for name, kind in kinds.items())


@contextlib.contextmanager
def waiting_thread() -> Iterator[int]:
    stop = threading.Event()
    thread = threading.Thread(target=lambda: stop.wait(10))
    thread.start()
    try:
        assert thread.native_id
        yield thread.native_id
    finally:
        stop.set()
        thread.join()


def test_own_process_and_threads_are_there() -> None:
    with waiting_thread() as tid:
        check_target(Target(processes=(os.getpid(),)))
        check_target(Target(threads=(os.getpid(), tid)))
        assert process_of(tid) == os.getpid()
        with pytest.raises(TargetError, match=f"^{tid} is a thread of process {os.getpid()}: use -t"):
            check_target(Target(processes=(tid,)))


def gone() -> int:
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


def test_a_target_that_is_gone_is_named_unless_it_is_a_child() -> None:
    pid = gone()
    with pytest.raises(TargetError, match=f"^there is no process {pid}$"):
        check_target(Target(processes=(os.getpid(), pid)))
    with pytest.raises(TargetError, match=f"^there is no thread {pid}$"):
        check_target(Target(threads=(pid,)))
    with pytest.raises(TargetError, match="^there is no process"):
        TargetWatch(Target(processes=(pid,)))
    with contextlib.closing(TargetWatch(Target(processes=(os.getpid(), pid), forked=frozenset([pid])))) as watch:
        assert len(watch.fds) == 1
    assert TargetWatch(Target()).fds == set(), "everybody is a target"


def test_children_that_exist_are_named_or_taken_with_their_parent() -> None:
    words = "import os, time; [os.fork() for _ in range(2)]; time.sleep(60)"
    with subprocess.Popen(["/usr/bin/python3", "-c", words]) as parent:
        while len(forked := targets.descendants([parent.pid])) < 3:
            pass
        target = choose_target(pids=f"{parent.pid}+")
        assert target.processes == (parent.pid, *forked) and target.roots == (parent.pid,)
        assert choose_target(pids=f"{parent.pid}").processes == (parent.pid,)
        (line,) = left_out([parent.pid])
        assert line.endswith(f" {parent.pid} are not recorded: -p {parent.pid}+ takes them, too")
        assert line.startswith("3 children of ") and left_out(target.processes) == []
        for pid in target.processes:
            os.kill(pid, signal.SIGKILL)


def test_watch_tells_when_the_last_one_has_ended() -> None:
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    watch = TargetWatch(Target(processes=tuple(child.pid for child in children)))
    assert len(watch.fds) == 2 and not select.select(list(watch.fds), [], [], 0)[0]
    ended = []
    for child in children:
        child.kill()
        (fd,) = select.select(list(watch.fds), [], [], 5)[0]
        ended.append(watch.ended(fd))
        child.wait()
    assert ended == [False, True]
    watch.close()


@pytest.mark.kernel
def test_watch_of_a_thread_tells_when_it_ends_before_its_process() -> None:
    """Linux 6.9 and later; before, the recording goes on until the process has ended."""
    with waiting_thread() as tid:
        watch = TargetWatch(Target(threads=(tid,)))
        (fd,) = watch.fds
        assert not select.select([fd], [], [], 0.05)[0]
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    assert bool(select.select([fd], [], [], 1)[0]) == (release >= (6, 9))
    watch.close()


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
