# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu script` against `perf script`, on recordings made here and now, where all files are at hand.

perf 6.1 prints user addresses relative to their mapping, later ones as they were: so they are not compared.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from builders.perf_text import Frame, Printed, parse
from conftest import Command

pytestmark = pytest.mark.beside

UNKNOWN = "[unknown]"

RECORDINGS = {
    "chains": ["-g", "-e", "cpu-clock", "-F", "2000"],
    "leaves": ["-e", "cpu-clock", "-F", "2000"],
    "faults": ["-g", "-e", "page-faults", "-c", "1"],
    "switches": ["-g", "-e", "sched:sched_switch"],
    "counters read along": ["-g", "-e", "{cpu-clock,page-faults,context-switches}:S"],
}


@pytest.fixture(scope="module", params=RECORDINGS)
def recording(request: pytest.FixtureRequest, waiter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Threads that wait, and a program that reads directories."""
    path = tmp_path_factory.mktemp(request.param) / "perf.data"
    workload = ["sh", "-c", f"'{waiter}' --rounds 2 > /dev/null; ls -R /usr/share/doc > /dev/null"]
    command = ["perf", "record", "-o", path, *RECORDINGS[request.param], "--", *workload]
    subprocess.run(command, cwd=path.parent, capture_output=True, check=True, timeout=120)
    return path


def perfs(path: Path) -> list[Printed]:
    command = ["perf", "script", "--no-inline", "-i", path]
    return parse(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)


def test_the_same_text(recording: Path, perf_offcpu: Command) -> None:
    done = perf_offcpu("script", "--no-inline", "-i", recording, timeout_s=120)
    assert done.returncode == 0, done.stderr
    theirs, ours = perfs(recording), parse(done.stdout)
    assert len(ours) == len(theirs) > 2
    named = 0
    for perf, own in zip(theirs, ours, strict=True):
        assert head(own) == head(perf)
        cut = perf.frames[len(own.frames) :]
        assert all((frame.sym, frame.dso) == (UNKNOWN, UNKNOWN) for frame in cut), (perf, own)
        for index, (one, other) in enumerate(zip(perf.frames, own.frames, strict=False)):
            assert shown(one) == shown(other) or is_perfs_mistake(index, one, other), (perf, one, other)
            named += one.sym != UNKNOWN
    assert named > len(theirs) / 2


def head(sample: Printed) -> tuple[object, ...]:
    comm = None if sample.comm.startswith(":") else sample.comm
    return comm, sample.tid, sample.cpu, sample.time, sample.period, sample.event


def shown(frame: Frame) -> tuple[object, ...]:
    is_kernel = frame.dso.startswith("[") and frame.dso != UNKNOWN
    return frame.ip if is_kernel and frame.ip >> 63 else None, frame.sym, frame.dso


def is_perfs_mistake(index: int, perf: Frame, own: Frame) -> bool:
    """A return address at a function's start belongs to the last call of the function before; and perf 6.1
    does not know which function a PLT entry of libc is for, nor those of a program's second PLT. Nor do we
    know a kernel function that came and went meanwhile, but that it is the kernel's."""
    if (perf.sym, perf.dso, own.sym, own.dso) == (UNKNOWN, UNKNOWN, UNKNOWN, "[kernel.kallsyms]"):
        return True
    if "plt+" in own.sym and (perf.sym == UNKNOWN or perf.sym.startswith("@plt+")):
        return True
    return index > 0 and perf.sym.endswith("+0x0")


WORK = ["sh", "-c", "ls -R /etc/ssl > /dev/null; sleep 0.01; echo x | cat > /dev/null"]
TRACEPOINTS = (
    "sched",
    "irq",
    "timer",
    "kmem",
    "signal",
    "task",
    "raw_syscalls",
    "workqueue",
    "mmap",
    "filemap",
)

FIELDS = {
    "data addresses": (
        ["-e", "page-faults", "-c", "1", "-d", "--phys-data", "-W"],
        "time,addr,weight,phys_addr",
    ),
    "registers": (
        ["-e", "cpu-clock", "-F", "4000", "-d", "--intr-regs=ax,sp,ip", "--user-regs=bp,sp,ip"],
        "time,iregs,uregs,addr,data_src",
    ),
    "page sizes": (
        ["-e", "cpu-clock", "-F", "4000", "--data-page-size", "--code-page-size"],
        "time,data_page_size,code_page_size",
    ),
    "tracepoints": (
        [word for name in TRACEPOINTS for word in ("-e", f"{name}:*")], "trace:comm,time,event,trace",
    ),
    "system calls": (
        [word for name in ("open", "read", "stat", "mmap", "exec") for word in ("-e", f"syscalls:*{name}*")],
        "trace:event,trace",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_fields_that_are_asked_for(name: str, perf_offcpu: Command, tmp_path: Path) -> None:
    path, (options, fields) = tmp_path / "perf.data", FIELDS[name]
    command = ["perf", "record", "-q", "-B", "-m", "4M", "-o", path, *options, "--", *WORK]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, timeout=120)
    perf = ["perf", "script", "--ns", "-i", path, "-F", fields]
    text = subprocess.run(perf, capture_output=True, text=True, check=True, timeout=120).stdout
    done = perf_offcpu("script", "--ns", "-i", path, "-F", fields, timeout_s=120)
    assert done.returncode == 0, done.stderr
    theirs, own = text.splitlines(), done.stdout.splitlines()
    assert len(own) == len(theirs) > 3
    # Samples of one moment on two CPUs have no order.
    different = [pair for pair in zip(sorted(theirs), sorted(own), strict=True) if pair[0] != pair[1]]
    assert [pair for pair in different if not is_perfs_flag(*pair)] == []


def is_perfs_flag(perf: str, own: str) -> bool:
    """Of flags whose numbers the kernel's recipe does not say perf prints all, or the first."""
    return re.sub(r"(flags|state)=\S*", "", perf) == re.sub(r"(flags|state)=\S*", "", own)
