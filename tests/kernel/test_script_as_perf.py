# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu script` against `perf script`, on recordings made here and now, where all files are at hand. perf 6.1
prints user addresses relative to their mapping, later ones as they were: so they are not compared."""

import platform
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from builders import stock_perf
from builders.perf_text import Frame, Printed, parse
from builders.program import run as perf_offcpu
from builders.stock_perf import version

from perf_offcpu.objects.functions import load_elf_symbols

pytestmark = pytest.mark.beside

UNKNOWN = "[unknown]"

RECORDINGS = {"chains": "-g -e cpu-clock -F 2000", "faults": "-g -e page-faults -c 1"}
RECORDINGS |= {"switches": "-g -e sched:sched_switch"}


@pytest.fixture(scope="module", params=["chains", pytest.param("faults", marks=pytest.mark.long), "switches"])
def recording(request: pytest.FixtureRequest, waiter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Threads that wait, a program that reads directories, a shell that counts and has the kernel work."""
    path = tmp_path_factory.mktemp(request.param) / "perf.data"
    counting = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); read line < /proc/self/stat; done"
    script = f"'{waiter}' --rounds 2; ls -R /etc; {counting}"
    workload = ["sh", "-c", f"{{ {script}; }} > /dev/null"]
    command: list[str | Path] = ["perf", "record", "-o", path, *RECORDINGS[request.param].split(), "--", *workload]
    subprocess.run(command, cwd=path.parent, capture_output=True, check=True, timeout=120)
    return path


def perfs(path: Path) -> list[Printed]:
    return parse(stock_perf.perf("script", "--no-inline", "-i", path))


@pytest.mark.long
def test_the_same_text(recording: Path) -> None:
    done = perf_offcpu("script", "--no-inline", "-i", recording, timeout_s=120)
    theirs, ours = perfs(recording), parse(done.stdout)
    assert len(ours) == len(theirs) > 20
    known: list[bool] = []
    for perf, own in zip(theirs, ours, strict=True):
        assert head(own) == head(perf)
        cut = perf.frames[len(own.frames) :]
        assert all((frame.sym, frame.dso) == (UNKNOWN, UNKNOWN) for frame in cut), (perf, own)
        for index, (one, other) in enumerate(zip(perf.frames, own.frames, strict=False)):
            assert shown(one) == shown(other) or is_perfs_mistake(index, one, other), (perf, one, other)
            known += [one.sym != UNKNOWN] * one.dso.endswith(("/waiter", "[kernel.kallsyms]"))
    # The distribution's programs and libc may have no symbols; what has them has few addresses without name.
    assert sum(known) > max(20, 0.9 * len(known))


def head(sample: Printed) -> tuple[object, ...]:
    comm = None if sample.comm.startswith(":") else sample.comm
    return comm, sample.tid, sample.cpu, sample.time, sample.period, sample.event


def shown(frame: Frame) -> tuple[object, ...]:
    is_kernel = frame.dso.startswith("[") and frame.dso != UNKNOWN
    return frame.ip if is_kernel and frame.ip >> 63 else None, frame.sym, frame.dso


def is_perfs_mistake(index: int, perf: Frame, own: Frame) -> bool:
    """Say whether perf's frame is less than ours: nameless, or the symbol before.

    A return address at a function's start belongs to the last call of the function before. Where a stripped
    library has no symbol, perf does not look at the call for a name. perf 6.1 does not know which function a
    PLT entry of libc is for (or takes another, as it passes over entries that a function resolves), nor those
    of a program's second PLT: objdump and readelf do. Nor can anybody name code of the kernel that came and
    went meanwhile, outside its text. Functions of a module whose file perf does not find are the kernel's to
    it. perf 6.12 has no names for the vDSO at times."""
    if (perf.ip, perf.sym, perf.dso) == (own.ip, own.sym, "[kernel.kallsyms]"):
        return own.dso in modules_of(own.sym.partition("+")[0])
    if (perf.sym, perf.dso, own.sym, own.dso) == (UNKNOWN, UNKNOWN, UNKNOWN, "[kernel.kallsyms]"):
        return bool(own.ip >> 63) and own.ip not in kernel_text()
    if own.dso.startswith(("[bpf]", "bpf_prog_")) or own.sym.endswith(" (called)") or own.sym.startswith(".plt"):
        # A program of a recorder that was at work beside: its records name it. The first entry of a PLT.
        return perf.sym == UNKNOWN
    if (perf.sym, perf.dso, own.dso) == (UNKNOWN, "[vdso]", "[vdso]"):
        return (6, 2) <= version() < (7, 0)
    name, stub, _ = own.sym.partition("@plt+")
    if stub and (perf.sym == UNKNOWN or "@plt+" in perf.sym):
        return name in plt_functions(own.dso)
    return index > 0 and perf.sym.endswith("+0x0")


@cache
def modules_of(function: str) -> frozenset[str]:
    """The modules that have a function of this name, as dso."""
    found = re.findall(rf" \w {re.escape(function)}\t(\[\w+\])$", Path("/proc/kallsyms").read_text(), re.MULTILINE)
    return frozenset(found)


@cache
def kernel_text() -> range:
    ends = re.findall(r"^(\w+) \w (?:_stext|_etext)$", Path("/proc/kallsyms").read_text(), re.MULTILINE)
    first, last = sorted(int(address, 16) for address in ends)
    assert first > 1 << 63
    return range(first, last)


@cache
def plt_functions(dso: str) -> frozenset[str]:
    """What a file's PLT entries are for, by objdump; by readelf, where that knows an IFUNC's address only."""
    sections = ("-j", ".plt", "-j", ".plt.sec", "-j", ".plt.got")
    names = set(re.findall(r"<(\S+)@plt>:", output("objdump", "-d", *sections, dso)))
    ifuncs = {int(name.removeprefix("*ABS*+"), 16) for name in names if name.startswith("*ABS*+")}
    symbols = re.findall(r"^ *\d+: (\w+) +\d+ IFUNC .* (\S+)$", output("readelf", "-W", "--dyn-syms", dso), re.M)
    names |= {name.partition("@")[0] for value, name in symbols if int(value, 16) in ifuncs}
    return frozenset(names)


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout


def test_plt_entries_are_those_of_objdump() -> None:
    """A sample in one is rare: each of libc's and ls's is looked at here."""
    for dso in (f"/usr/lib/{platform.machine()}-linux-gnu/libc.so.6", "/bin/ls"):
        table = load_elf_symbols(dso).symbols
        ours = [table.name(row).partition("@plt")[0] for row in range(len(table)) if "@plt" in table.name(row)]
        assert len(ours) > 10
        assert set(ours) <= plt_functions(dso)


WORK = ["sh", "-c", "ls -R /etc/ssl > /dev/null; sleep 0.01; echo x | cat > /dev/null"]

FIELDS = {
    "ids and weights": (["-e", "cpu-clock", "-F", "4000"], "comm,pid,tid,time,period,event"),
    "tracepoints": (["-e", "sched:*", "-e", "raw_syscalls:sys_enter"], "trace:comm,pid,time,event"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields_that_are_asked_for(name: str, tmp_path: Path) -> None:
    options, fields = FIELDS[name]
    path = tmp_path / "perf.data"
    record: list[str | Path] = ["perf", "record", "-q", "-B", "-m", "4M", "-o", path, *options, "--", *WORK]
    subprocess.run(record, cwd=tmp_path, capture_output=True, check=True, timeout=120)
    perf = output("perf", "script", "--ns", "-i", str(path), "-F", fields)
    done = perf_offcpu("script", "--ns", "-i", path, "-F", fields, timeout_s=120)
    # Samples of one moment on two CPUs have no order, and columns are wider in later perfs.
    theirs, ours = (sorted(line.split() for line in text.splitlines()) for text in (perf, done.stdout))
    assert len(theirs) > 3 and ours == theirs
