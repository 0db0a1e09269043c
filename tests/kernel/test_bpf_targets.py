# SPDX-License-Identifier: Apache-2.0
"""The BPF program on the running kernel: whose waits it records, and from when to when."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from kernel.bpf_output import CpuClock
from kernel.napping import MS, NANOSLEEP, Napper, is_in, python, read_int, recording, usual, waits_of, watched

from perf_offcpu.collect.bpf.config import OffCpuConfig, Targets
from perf_offcpu.collect.bpf.program import OffCpuProgram
from perf_offcpu.collect.events.perf_event import set_filter


@pytest.mark.beside
@usual
def test_other_processes_are_left_alone(napper: Path, in_switch: bool) -> None:
    other = Napper(napper)
    with watched(napper, threshold_ns=0, in_switch=in_switch) as (one, program, rings):
        tallies = one.go()
        other.go()
        program.disable()
        seen = {w.pid for w in waits_of(rings)} | set(program.maps.drain().sums["pid"])
    other.end()
    (child,) = {t.pid for t in tallies if t.kind == "child"}
    assert {one.pid, child} <= seen
    assert other.pid not in seen and os.getpid() not in seen


def test_everybody_is_recorded_but_kernel_threads_and_idle_cpus(napper: Path) -> None:
    one, other = Napper(napper), Napper(napper)
    with recording(OffCpuConfig(threshold_ns=0), pages=1024) as (program, rings):
        program.enable()
        tallies = one.go() + other.go()
        program.disable()
        waits = waits_of(rings)
        kernel_threads = {int(p.name) for p in Path("/proc").iterdir() if is_kernel_thread(p)}
    one.end()
    other.end()
    for tally in tallies:
        assert len([w for w in waits if (w.tid, w.syscall) == (tally.tid, tally.syscall)]) == tally.waits
    assert not ({w.tid for w in waits} & (kernel_threads | {0}))


def is_kernel_thread(process: Path) -> bool:
    try:
        return (
            process.name.isdigit() and int((process / "stat").read_text().rpartition(")")[2].split()[6]) & 0x200000 > 0
        )
    except OSError:
        return False


@pytest.mark.alone
def test_a_thread_brings_what_it_starts_but_not_its_siblings() -> None:
    script = """
        import os, threading, time
        def nap(times): [time.sleep(0.002) for _ in range(times)]
        def chosen():
            print(threading.get_native_id(), flush=True)
            go.wait()
            nap(10)
            later = threading.Thread(target=nap, args=(7,))
            later.start(); print(later.native_id, flush=True); later.join()
            child = os.fork()
            if not child:
                nap(5); os._exit(0)
            os.waitpid(child, 0); print(child, flush=True)
        go = threading.Event()
        thread = threading.Thread(target=chosen); thread.start()
        input(); go.set(); nap(20); thread.join()
    """
    with python(script) as process, recording(OffCpuConfig(targets=Targets.TIDS, threshold_ns=MS)) as (program, rings):
        tid = read_int(process)
        program.maps.add_target(tid, "thread")
        program.enable()
        print(file=process.stdin, flush=True)
        started, child = read_int(process), read_int(process)
        process.wait(10)
        waits = waits_of(rings)
    assert {w.tid for w in waits} == {tid, started, child}
    naps = {
        t: sum(w.tid == t and w.ns > 1.9 * MS and w.syscall == NANOSLEEP for w in waits) for t in (tid, started, child)
    }
    assert naps == {tid: 10, started: 7, child: 5}
    assert process.pid not in {w.tid for w in waits}


@pytest.mark.beside
@usual
def test_a_command_is_recorded_from_its_exec_on(napper: Path, in_switch: bool) -> None:
    gate, go = os.pipe()
    pid = os.fork()
    if not pid:
        os.read(gate, 1)
        time.sleep(0.005)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        os.execv(napper, ["napper", "3", "again"])
    with recording(OffCpuConfig(targets=Targets.COMMAND, threshold_ns=MS, in_switch=in_switch)) as (program, rings):
        program.maps.add_target(pid, mode="target_armed")
        program.enable()
        os.write(go, b"x")
        os.waitpid(pid, 0)
        program.disable()
        waits = waits_of(rings)
    os.close(gate)
    os.close(go)
    # Waits outside of system calls are for pages of the program.
    first = min((w for w in waits if w.syscall >= 0), key=lambda w: w.switch_out_ns)
    assert (first.tid, first.syscall) == (pid, 230) and first.ns > 4.9 * MS  # the nap before it calls exec again
    assert is_in(napper, "main", first.user[1])
    assert len({w.tid for w in waits}) >= 7  # its threads
    assert len({w.pid for w in waits}) >= 2  # its children
    assert {w.tid for w in waits if w.pid == pid} > {pid}


def test_a_new_owner_of_a_targets_id_is_not_the_target() -> None:
    """A process that gets the id of a target that has ended is nobody's child of interest."""
    with recording(OffCpuConfig(targets=Targets.PIDS, threshold_ns=0)) as (program, rings):
        old = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert old.stdin
        program.maps.add_target(old.pid)
        program.enable()
        for line in (b"once\n", b"again\n"):  # the wait for the first may have begun too early to be seen
            old.stdin.write(line)
            old.stdin.flush()
            time.sleep(0.05)
        old.stdin.close()
        old.wait()
        assert {w.pid for w in waits_of(rings)} == {old.pid}
        new = None
        for _ in range(100):  # others may be quicker to take the id
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(old.pid - 1))
            new = subprocess.Popen(["sleep", "0.01"])
            new.wait()
            if new.pid == old.pid:
                break
        assert new and new.pid == old.pid
        assert waits_of(rings) == []


@pytest.mark.beside
def test_a_killed_sleeper_is_still_seen() -> None:
    sleeper = subprocess.Popen(["sleep", "10000"])
    time.sleep(0.05)
    with recording(OffCpuConfig(targets=Targets.PIDS, threshold_ns=MS)) as (program, rings):
        program.maps.add_target(sleeper.pid)
        program.enable()
        sleeper.send_signal(signal.SIGSTOP)
        sleeper.send_signal(signal.SIGCONT)  # the wait begins again, now recorded
        time.sleep(0.3)
        sleeper.kill()
        sleeper.wait()
        waits = [wait for wait in waits_of(rings) if wait.ns > 40 * MS]  # others for a CPU
    assert len(waits) == 1
    assert waits[0].kernel and waits[0].user


def test_nothing_is_recorded_before_enable_and_after_disable() -> None:
    napping = "import time\nwhile True: time.sleep(0.002)"
    with python(napping) as process, recording(OffCpuConfig(targets=Targets.PIDS, threshold_ns=0)) as (program, rings):
        program.maps.add_target(process.pid)
        time.sleep(0.05)
        assert waits_of(rings) == []
        program.enable()
        time.sleep(0.05)
        program.disable()
        assert len(waits_of(rings)) > 5
        time.sleep(0.05)
        assert waits_of(rings) == [] and len(program.maps.drain().sums) == 0
        begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        program.enable()
        time.sleep(0.02)
        assert all(w.switch_out_ns >= begin for w in waits_of(rings))  # what began while off is not taken up
        process.kill()


@pytest.mark.beside
@usual
def test_cgroup_of_the_sleeper(tmp_path: Path, in_switch: bool) -> None:
    (mount,) = [m.split()[1] for m in Path("/proc/mounts").read_text().splitlines() if m.split()[2] == "cgroup2"][:1]
    group = Path(mount) / f"perf-offcpu-test-{os.getpid()}"
    group.mkdir()
    try:
        sleeper = subprocess.Popen(["sh", "-c", "read line; sleep 0.01; sleep 0.01"], stdin=subprocess.PIPE)
        (group / "cgroup.procs").write_text(str(sleeper.pid))
        config = OffCpuConfig(targets=Targets.PIDS, threshold_ns=MS, in_switch=in_switch)
        with recording(config) as (program, rings):
            program.maps.add_target(sleeper.pid)
            program.enable()
            sleeper.communicate(b"\n")
            program.disable()
            waits, sums = waits_of(rings), program.maps.drain().sums
        assert {w.cgroup for w in waits} == {group.stat().st_ino}
        assert set(sums["cgroup"]) <= {group.stat().st_ino}
        assert len(waits) >= 2
    finally:
        group.rmdir()


def test_filter_passes_on_cpu_samples_of_targets_only() -> None:
    burning = "while True: pass"
    with python(burning) as one, python(burning) as other, CpuClock() as clock:
        with OffCpuProgram(OffCpuConfig(targets=Targets.PIDS)) as program:
            for ring in clock.rings.values():
                set_filter(ring.fd, program.filter_fd)
            clock.tids()
            program.maps.add_target(one.pid)
            program.attach()
            time.sleep(0.3)
            tids = clock.tids()
            assert program.counters()["oncpu_samples"] >= len(tids)
            for ring in clock.rings.values():  # an event keeps its filter, and with it the program, alive
                os.close(ring.fd)
                ring.fd = os.open(os.devnull, os.O_RDONLY)
        assert len(tids) > 50
        assert set(tids) == {one.pid}
        one.kill()
        other.kill()
