# SPDX-License-Identifier: Apache-2.0
"""Objects of real programs: a slow upstream, locks without a holder; `test_unwind.py` has those of postgres."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from builders.compiled import WORKLOAD
from kernel.recorder import report, run

from perf_offcpu.analysis.holders import holders_of
from perf_offcpu.model.profile import Profile

pytestmark = pytest.mark.beside

FUTEX = 202


def record(directory: Path, *command: str | Path) -> Profile:
    return run("-q", "-e", "none", "--lock-owners", "--", *command, cwd=directory).profile


def names(profile: Profile) -> set[str]:
    used = set(profile.samples.object.tolist()) - {-1}
    return {profile.strings[profile.objects.name[row]] for row in used}


UPSTREAM = """
import os, socket, sys, threading, time

def named(comm):
    with open("/proc/self/comm", "w") as file:
        file.write(comm)

slow, front = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    named("upstream")
    connection, _ = slow.accept()
    while connection.recv(1):
        time.sleep(0.03)
        connection.send(b"x")
    os._exit(0)
if os.fork() == 0:
    named("front")
    upstream = socket.create_connection(slow.getsockname())
    connection, _ = front.accept()
    while connection.recv(1):
        upstream.send(b"x")
        connection.send(upstream.recv(1))
    os._exit(0)
named("client")
print("%s:%d" % slow.getsockname())
connection = socket.create_connection(front.getsockname())
for _ in range(20):
    connection.send(b"x")
    connection.recv(1)
    time.sleep(0.002)
"""


def test_the_address_of_a_slow_upstream_comes_first(tmp_path: Path) -> None:
    address = run("-q", "-e", "none", "--", sys.executable, "-c", UPSTREAM, cwd=tmp_path).stdout.strip()
    first = report("--comm", "front", cwd=tmp_path)["objects"]["rows"][0]
    assert first["name"].startswith(f"tcp {address}"), first
    assert "upstream" in first["name"], "the process at the other end"


CONTENDED = """
import threading, time
lock = threading.Lock()
def work():
    for _ in range(10):
        with lock:
            time.sleep(0.004)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def waiting_for_semaphores(profile: Profile) -> set[int]:
    stacks, below = profile.stacks, set[int]()
    for row, (parent, frame) in enumerate(zip(stacks.parent.tolist(), stacks.frame.tolist(), strict=True)):
        name = profile.strings[int(profile.frames.symbol[frame])]
        if parent in below or "sem_" in name or "new_sem" in name:
            below.add(row)
    return below


def test_a_lock_of_python_is_a_semaphore_that_nobody_holds(tmp_path: Path) -> None:
    profile = record(tmp_path, "/usr/bin/python3", "-c", CONTENDED)
    samples, holders = profile.samples, holders_of(profile)
    waiting = waiting_for_semaphores(profile)  # not for the interpreter's own mutex
    semaphore = np.array([row in waiting for row in samples.stack.tolist()])
    waits = (samples.syscall == FUTEX) & (samples.period > 2_000_000) & semaphore
    assert waits.sum() >= 5  # on a busy machine the threads want it at the same time less often
    assert (holders.held[waits] == -1).all()
    assert (holders.released[waits] > 0).mean() >= 0.8, "who posted it is known"
    assert all(name.startswith("semaphore ") for name in names(profile.select(waits))), names(profile)


@pytest.mark.skipif(shutil.which("go") is None, reason="no go here (Debian: golang-go)")
def test_a_go_program_has_no_false_holders(tmp_path: Path) -> None:
    environment = {**os.environ, "GOCACHE": str(tmp_path / "cache"), "CGO_ENABLED": "0"}
    build = ["go", "build", "-o", "locks", str(WORKLOAD / "programs" / "locks.go")]
    subprocess.run(build, cwd=tmp_path, env=environment, check=True, timeout=200)
    profile = record(tmp_path, "./locks")
    assert (profile.samples.syscall == FUTEX).sum() >= 10
    assert (holders_of(profile).held == -1).all()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("javac") is None, reason="no javac here (Debian: default-jdk-headless)")
def test_a_java_program_has_no_false_holders(tmp_path: Path) -> None:
    source = WORKLOAD / "programs" / "Locks.java"
    subprocess.run(["javac", "-d", tmp_path, source], check=True, timeout=120)
    profile = record(tmp_path, "java", "-Xint", "-cp", ".", "Locks")
    comms = [profile.strings[row] for row in profile.samples.comm.tolist()]
    workers = [row for row, comm in enumerate(comms) if comm.startswith("worker")]
    samples = profile.samples.take(workers)
    waits = (samples.syscall == FUTEX) & (samples.period > 2_000_000)
    assert waits.sum() >= 20
    assert (holders_of(profile).held[workers][waits] == -1).all(), "monitors are no mutexes of libc"
