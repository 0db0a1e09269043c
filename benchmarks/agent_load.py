# SPDX-License-Identifier: Apache-2.0
"""An agent under changing load:  sudo python benchmarks/agent_load.py DIRECTORY [--rounds N] [--phase SECONDS]

The machine is quiet, serves pgbench, switches (stress-ng --switch) and forks (stress-ng --fork) in turn. Printed
are, for each phase: the CPU time of the agent's parts by /proc and the kernel's account of BPF programs, beside
what the agent says of itself, and the time that its segments cover; then the longest time without a record (each of
the agent's minutes has one, so less than two minutes), gaps by cause, memory and bytes. The kernel measures BPF
programs all the time (bpf_stats_enabled), which itself costs something.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / room) for room in ("", "tests")]

from kernel.agents import HOSTS, Place, fetch, recorder_of  # noqa: E402
from kernel.test_agent_cost import PARTS, STATS, booked, taken  # noqa: E402
from waiting_programs import postgres  # noqa: E402

from perf_offcpu.agent.cost.run_time import context_switches  # noqa: E402

MINUTE_NS = 60 * 10**9
STRESS = {"switches": ["stress-ng", "--switch", "2"], "forks": ["stress-ng", "--fork", "2"]}


def main() -> int:
    """Run all phases; return 1 if one of the agent's minutes cannot have a record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path, help="empty or not there: dataset, spool, database")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--phase", type=int, default=180, metavar="SECONDS")
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    loads = {"quiet": ["sleep", str(args.phase)], "pgbench": [*postgres(args.directory)[:-1], str(args.phase)]}
    loads |= {name: [*words, "--timeout", f"{args.phase}s", "--quiet"] for name, words in STRESS.items()}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    place = Place(args.directory, options=())
    stats = STATS.read_text()
    STATS.write_text("1")
    try:
        with place.agent("--port", str(port)) as agent:
            while not recorder_of(agent):
                time.sleep(0.1)
            spans = list(phases(port, agent, loads, args.rounds))
    finally:
        STATS.write_text(stats)
    print(*place.said)
    return results(place, spans)


def phases(
    port: int, agent: subprocess.Popen[str], loads: dict[str, list[str]], rounds: int
) -> list[tuple[str, int, int]]:
    """Print the cost in each phase; return (name, begin, end) of each, CLOCK_MONOTONIC ns."""
    spans: list[tuple[str, int, int]] = []
    columns = [f"{part} {by}" for part in PARTS for by in ("/proc", "own")]
    print(f"{'phase':10}{'s':>6}{'switch/s':>10}", *(f"{column:>16}" for column in [*columns, "share", "MB"]))
    for name in [*loads] * rounds:
        begin_ns, switches, kernel, own = time.monotonic_ns(), context_switches(), by_kernel(agent), booked(port)
        subprocess.run(loads[name], check=False, capture_output=True)
        end_ns = time.monotonic_ns()
        spans.append((name, begin_ns, end_ns))
        seconds = (end_ns - begin_ns) / 1e9
        rate = (context_switches() - switches) / seconds
        sides = zip(by_kernel(agent), kernel, booked(port), own, strict=True)
        values = [value for now, before, said, once in sides for value in (now - before, said - once)]
        share = sum(values[::2]) / seconds
        text = fetch(port, "/metrics")[1]
        memory = sum(float(match) for match in re.findall(r"resident_bytes\{.*?\} (\S+)", text)) / 1e6
        print(f"{name:10}{seconds:6.0f}{rate:10.0f}", *(f"{value:16.2f}" for value in values), end=" ")
        print(f"{share:16.2%} {memory:16.0f}  {fetch(port, '/health')}", flush=True)
    return spans


def by_kernel(agent: subprocess.Popen[str]) -> list[float]:
    """Return the CPU seconds of each part by the kernel, of the present recorder."""
    with contextlib.suppress(OSError):
        return taken(agent.pid, recorder_of(agent))
    return [0.0] * len(PARTS)


def results(place: Place, phases: list[tuple[str, int, int]]) -> int:
    """Print what the segments cover; return 1 if one of the agent's minutes cannot have a record."""
    hosts = place.rows("hosts", HOSTS)
    recorded = sorted((begin - shift, end - shift) for begin, end, shift in hosts)

    def covered(begin: int, end: int) -> float:
        return sum(max(0, min(stop, end) - max(start, begin)) for start, stop in recorded) / 1e9

    for name, begin, end in phases:
        print(f"{name:10} recorded {covered(begin, end):6.1f} s of {(end - begin) / 1e9:.1f}")
    gaps = [(after[0] - before[1]) / 1e9 for before, after in itertools.pairwise(recorded)]
    longest_s, minutes = max(gaps, default=0.0), (phases[-1][2] - recorded[0][0]) / MINUTE_NS
    print(
        f"{minutes:.0f} minutes, {len(recorded)} parts recorded; the longest time without a record: {longest_s:.0f} s"
    )
    print("gaps:", place.causes("gap_seconds_total"), "losses:", place.causes("losses_total"))
    size = sum(path.stat().st_size for path in place.dataset.rglob("*.parquet"))
    failures = place.counter("recorder_failures_total")
    print(f"dataset: {size / 1e6 / minutes:.2f} MB a minute; failures of the recorder: {failures:.0f}")
    return int(longest_s > 2 * MINUTE_NS / 1e9)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
