# SPDX-License-Identifier: Apache-2.0
"""Stress the recorder:  sudo python benchmarks/record_stress.py [flood] [stop] [slow] [attach] ...

Each test disturbs the recorder in one way and prints the effect on the recording:

    flood    busy pipes, every wait a sample (or --off-cpu-period), for --seconds: samples, losses, CPU and
             memory of the recorder;
             before that a quarter as long without recorder, for the share of switches that remains
    stop     the same, and SIGSTOP to the recorder for 5 s in the middle
    slow     the same into a pipe whose reader takes --rate MB/s
    full     the same onto a file system of 16 MB
    attach   recordings of `true`, --times in a row in one process: descriptors, programs, maps, memory
    storm    10 000 short processes
    hotplug  a CPU goes offline and comes back

Losses must be reported by cause: `unsaid` counts waits of the workload that are neither recorded nor
counted as lost.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

RECORD = [sys.executable, "-m", "perf_offcpu", "record"]
PIPES = """
import ctypes, os, resource, signal, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: all switches are counted in the end
bench = ["perf", "bench", "--format=simple", "sched", "pipe", "-l", "1000000000"]
cpus = sorted(os.sched_getaffinity(0))
def start(cpu):
    return subprocess.Popen(["taskset", "-c", str(cpu), *bench], stdout=subprocess.DEVNULL)
running = [start(cpus[number % len(cpus)]) for number in range(int(sys.argv[2]))]
signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(0))
try: time.sleep(float(sys.argv[1]))
except SystemExit: pass
for one in running:
    for pid in (one.pid, *map(int, open(f"/proc/{one.pid}/task/{one.pid}/children").read().split())):
        os.kill(pid, signal.SIGKILL)
while True:
    try: os.wait()
    except ChildProcessError: break
own, others = (resource.getrusage(who).ru_nvcsw for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(own + others)
"""


class Recorder:
    """A running recorder; its memory is sampled twice a second."""

    def __init__(self, options: list[str], directory: str, stdout: int | None = None) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [*RECORD, "-v", *options], cwd=directory, env=environment, stderr=subprocess.PIPE, text=True, stdout=stdout
        )
        self.memory_kb: list[int] = []
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while self.process.poll() is None:
            try:
                status = Path(f"/proc/{self.process.pid}/status").read_text()
            except OSError:
                return
            if found := re.search(r"^VmRSS:\s+(\d+)", status, re.MULTILINE):
                self.memory_kb.append(int(found[1]))
            time.sleep(0.5)

    def cpu_s(self) -> float:
        """Return CPU seconds so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> str:
        """Wait for the end and return the summary."""
        said = self.process.communicate()[1]
        tail = self.memory_kb[len(self.memory_kb) // 2 :] or [0]
        span, peak = f"{tail[0] >> 10} MB to {tail[-1] >> 10} MB", max(self.memory_kb, default=0) >> 10
        memory = f"memory: middle to end {span}, peak {peak} MB"
        return f"{said}{memory}; exit status {self.process.returncode}"


def flood(
    args: argparse.Namespace,
    directory: str,
    options: tuple[str, ...] = (),
    during: Callable[[Recorder], None] | None = None,
    stdout: int | None = None,
) -> float:
    """Record busy pipes, print the accounts of both; return the workload's switches per second."""
    workload = pipes(args, args.seconds)
    command = ["sh", "-c", 'exec "$@" > counts', "sh", *workload]
    every = [] if "--off-cpu-period" in args.options else ["--off-cpu-thresh", "0"]
    recorder = Recorder([*every, *options, *args.options, "--", *command], directory, stdout)
    if during:
        during(recorder)
    said = recorder.end()
    waits = sum(map(int, Path(directory, "counts").read_text().split()))
    taken = re.search(r"\((\d+) off-cpu samples,(?: \d+ of them still blocked,)? (\d+) sums", said)
    counters = {name: int(number) for name, number in re.findall(r"([a-z-]+) (\d+)(?=[,\n])", said)}
    print(said)
    print(f"context switches of the workload: {waits} voluntary, {waits / args.seconds:.0f}/s")
    if taken:
        others = sum(counters.get(name, 0) for name in ("ring-full", "waits-lost", "unsampled"))
        print(
            f"sampled {taken[1]}, ring full {counters.get('ring-full', 0)}, for which samples stand "
            f"{counters.get('unsampled', 0)}; unsaid {waits - int(taken[1]) - others} "
            "(begins and ends of processes aside)"
        )
    return waits / args.seconds


def pipes(args: argparse.Namespace, seconds: float) -> list[str]:
    """Return the command of busy pipes; it prints its context switches."""
    return [sys.executable, "-c", PIPES, str(seconds), str(args.pairs)]


def flood_and_bare(args: argparse.Namespace, directory: str) -> None:
    """Run the load without and with the recorder."""
    seconds = args.seconds / 4
    counts = subprocess.check_output(pipes(args, seconds), text=True)
    bare = sum(map(int, counts.split())) / seconds
    print(f"without recorder: {bare:.0f} switches/s")
    rate = flood(args, directory)
    print(f"under the recorder {rate / bare:.0%} of that")


def stop(args: argparse.Namespace, directory: str) -> None:
    """Stop the recorder for a while."""

    def during(recorder: Recorder) -> None:
        time.sleep(args.seconds / 3 + 2)
        recorder.process.send_signal(signal.SIGSTOP)
        time.sleep(5)
        recorder.process.send_signal(signal.SIGCONT)

    flood(args, directory, during=during)
    opens(Path(directory, "perf.data"))


def slow(args: argparse.Namespace, directory: str) -> None:
    """Record into a pipe with a slow reader."""
    read_fd, write_fd = os.pipe()

    def read() -> None:
        with Path(directory, "taken.data").open("wb") as taken:
            while piece := os.read(read_fd, 65536):
                taken.write(piece)
                time.sleep(len(piece) / (args.rate * 1e6))

    thread = threading.Thread(target=read)
    thread.start()
    flood(args, directory, ("-o", "-"), lambda recorder: os.close(write_fd), write_fd)
    thread.join()
    os.close(read_fd)
    opens(Path(directory, "taken.data"))


def full(args: argparse.Namespace, directory: str) -> None:
    """Record on a small file system."""
    disk = Path(directory, "disk")
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16M", "none", disk], check=True)
    try:
        flood(args, directory, ("-o", f"{disk}/perf.data"))
        opens(disk / "perf.data")
    finally:
        subprocess.run(["umount", disk], check=True)


def storm(args: argparse.Namespace, directory: str) -> None:
    """Record short processes."""
    script = "import os\nfor _ in range(10000): os.waitpid(os.posix_spawn('/bin/true', ['true'], os.environ), 0)"
    begin = time.monotonic()
    recorder = Recorder([*args.options, "--", sys.executable, "-c", script], directory)
    print(f"{recorder.end()}\n10000 processes in {time.monotonic() - begin:.1f} s")
    opens(Path(directory, "perf.data"))


def hotplug(args: argparse.Namespace, directory: str) -> None:
    """Take the last CPU offline and back."""
    cpu = sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/online"))[-1]
    recorder = Recorder(["-a", *args.options, "--duration", "6"], directory)
    time.sleep(3)
    for state in "01":
        try:
            cpu.write_text(state)
            print(f"{cpu}: {cpu.read_text().strip()}")
        except OSError as problem:
            print(f"{cpu} does not take {state}: {problem.strerror}")
        time.sleep(1)
    print(recorder.end())
    opens(Path(directory, "perf.data"))


def attach(args: argparse.Namespace, directory: str) -> None:
    """Attach and close collectors in one process."""
    from perf_offcpu.collect.collector import Collector
    from perf_offcpu.collect.options import RecordOptions
    from perf_offcpu.collect.system.privileges import raise_descriptor_limit
    from perf_offcpu.collect.targets import Target

    raise_descriptor_limit()
    options = RecordOptions(Target())

    def state() -> tuple[int, int, int, int]:
        status = Path("/proc/self/status").read_text()
        memory = re.search(r"^VmRSS:\s+(\d+)", status, re.MULTILINE)
        programs, maps = (
            subprocess.run(["bpftool", kind], capture_output=True, text=True, check=True).stdout
            for kind in ("prog", "map")
        )
        return (
            len(os.listdir("/proc/self/fd")),
            programs.count("xlated "),
            maps.count("key "),
            int(memory[1] if memory else 0),
        )

    for turn in range(args.times + 1):
        with Collector(options, print) as collector:
            collector.track()
            collector.begin(None)
            collector.end()
        if turn in (0, 10, args.times // 2, args.times):
            time.sleep(1)  # the kernel frees programs and maps after a grace period
            print("after {}: {} descriptors, {} programs and {} maps on the machine, {} kB".format(turn + 1, *state()))


def opens(path: Path) -> None:
    """Return whether perf-offcpu and stock perf can read the file."""
    from perf_offcpu.decode.load import load_recording

    recording = load_recording(path)
    losses = ", ".join(f"{count} {what}" for what, count in recording.losses.items()) or "nothing"
    perf = subprocess.run(["perf", "report", "--stdio", "-i", path], capture_output=True, check=False)
    print(f"{path.name}: {len(recording.samples.pid)} samples; the file says of losses: {losses}")
    print(f"perf report: exit status {perf.returncode}, on stderr: {perf.stderr.decode()[:300] or 'nothing'}")


TESTS = {
    "flood": flood_and_bare,
    "stop": stop,
    "slow": slow,
    "full": full,
    "attach": attach,
    "storm": storm,
    "hotplug": hotplug,
}


def main() -> None:
    """Run the named tests, by default all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", metavar="TEST", help=f"of {', '.join(TESTS)}; all if none is named")
    parser.add_argument("--seconds", type=float, default=60, help="length of floods (default: 60)")
    parser.add_argument("--pairs", type=int, default=4, help="pairs of processes in floods (default: 4)")
    parser.add_argument("--rate", type=float, default=5, help="MB/s that the slow reader takes (default: 5)")
    parser.add_argument("--times", type=int, default=1000, help="recordings of attach (default: 1000)")
    parser.add_argument("--options", type=str.split, default=[], help="more options for record")
    args = parser.parse_args()
    for name in args.tests or TESTS:
        print(f"== {name}", flush=True)
        with tempfile.TemporaryDirectory() as directory:
            TESTS[name](args, directory)


if __name__ == "__main__":
    main()
