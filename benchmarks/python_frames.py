# SPDX-License-Identifier: Apache-2.0
"""Measure BPF ns for the Python functions of a sample:  sudo python benchmarks/python_frames.py [PYTHON] [--rounds N]

A program that waits under 30 different Python functions is recorded, each wait a sample, with and without its
functions, in turn; the kernel counts the run time of the program at the end of waits. Mark: at most 3 us a sample.
Other stacks: one function that calls itself; 41 frames of 27 functions in 13 files, half of them methods."""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf_offcpu.binary.layout import Buffer
from perf_offcpu.collect.bpf import syscall as bpf_syscall
from perf_offcpu.collect.bpf.config import OffCpuConfig, Targets
from perf_offcpu.collect.bpf.program import OffCpuProgram
from perf_offcpu.collect.events.evsels import offcpu_attr, probe_support
from perf_offcpu.collect.existing.maps import MappedBuildIds
from perf_offcpu.collect.existing.process import ProcessReader
from perf_offcpu.collect.python.processes import PythonProcesses
from perf_offcpu.collect.rings.rings import Rings
from perf_offcpu.collect.system.cpus import online_cpus
from perf_offcpu.losses import Losses

DEPTH = 30
WAITS = """
import time
def wait_0():
    while True:
        time.sleep(0.0002)
"""
DISTINCT = "".join(f"def wait_{n}(): wait_{n - 1}()\n" for n in range(1, DEPTH - 1)) + f"wait_{DEPTH - 2}()"
RECURSIVE = f"def wait(depth): wait(depth - 1) if depth else wait_0()\nwait({DEPTH - 3})"
MODULE = """class Part:
    def handle(self, calls, place): return calls[place](calls, place + 1)
def dispatch(calls, place): return calls[place](calls, place + 1)
"""
MIXED = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
modules = [importlib.import_module(f"part_{n}") for n in range(12)]
calls = [call for module in modules for call in (module.Part().handle, module.dispatch)]
calls = [*calls, *(modules[0].Part().handle, modules[1].dispatch) * 7, lambda calls, place: wait_0()]
calls[0](calls, 1)
"""
STACKS = {"distinct": DISTINCT, "recursive": RECURSIVE, "mixed": MIXED}
SECONDS = 1.0


class Nowhere:
    """Sink that discards the content of the rings."""

    def append(self, *pieces: Buffer) -> None:
        """Discard."""


def cost_ns(pid: int, *, python: bool) -> tuple[float, int]:
    """Return (ns a sample of the program at the end of waits, number of samples), of the waits of a process."""
    config = OffCpuConfig(targets=Targets.PIDS, threshold_ns=0, copy_bytes=8192, in_sleeper=True, python=python)
    support, cpus = probe_support(0), online_cpus()
    rings = Rings("offcpu-time", lambda wakeup: offcpu_attr(support, wakeup, 8, False), cpus, 4 << 20, print)
    with OffCpuProgram(config) as program:
        pythons = PythonProcesses(Losses(), maps=program.maps)
        reader = ProcessReader(MappedBuildIds(), False, lambda key, content: False, lambda number: None)
        for part in reader.read(pid, mapped=True)[0]:
            pythons.see(part[2] or b"" if python else b"")
        for cpu, fd in rings.owner.fds.items():
            program.maps.set_output(cpu, fd)
            for size in ("bare", "quarter", "double", "fourfold"):
                program.maps.set_output(cpu, fd, f"events_{size}")
        program.maps.add_target(pid)
        program.attach()
        rings.owner.enable()
        program.enable()
        end = time.monotonic() + SECONDS
        before = program.run_stats()["offcpu_switched"].run_time_ns
        while time.monotonic() < end:
            time.sleep(0.05)
            rings.drain(Nowhere())
        program.disable()
        samples = program.counters()["samples"]
        spent = program.run_stats()["offcpu_switched"].run_time_ns - before
        pythons.close()
    rings.close()
    return spent / max(samples, 1), samples


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="?", default="/usr/bin/python3")
    parser.add_argument("--stack", choices=STACKS, default="distinct")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    bpf_syscall.enable_stats()
    with tempfile.TemporaryDirectory() as directory:
        for number in range(12):
            (Path(directory) / f"part_{number}.py").write_text(MODULE)
        program = subprocess.Popen([args.python, "-c", WAITS + STACKS[args.stack], directory])
        time.sleep(0.5)
    costs: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(args.rounds):
        for python, rounds in costs.items():
            cost, samples = cost_ns(program.pid, python=python)
            assert samples > 100, samples
            rounds.append(cost)
    program.kill()
    medians = {python: statistics.median(rounds) for python, rounds in costs.items()}
    print(f"{args.stack} functions: {medians[True]:.0f} ns a sample, without {medians[False]:.0f} ns")


if __name__ == "__main__":
    main()
