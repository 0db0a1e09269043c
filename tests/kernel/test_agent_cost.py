# SPDX-License-Identifier: Apache-2.0
"""The agent's account of its CPU time next to that of the kernel, on a machine that is quiet and busy in turn."""

import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel.agents import START_S, Place, fetch, recorder_of
from kernel.recorder import until

from perf_offcpu.agent.cost.run_time import Programs

STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
PHASE_S = 12
TICKS = 100
PARTS = ("agent", "recorder", "bpf")


pytestmark = pytest.mark.long


@pytest.fixture
def measured() -> Iterator[None]:
    """Let the kernel measure BPF programs all the time."""
    before = STATS.read_text()
    STATS.write_text("1")
    yield
    STATS.write_text(before)


def booked(port: int) -> list[float]:
    text = fetch(port, "/metrics")[1]
    values = {part: re.search(rf'cpu_seconds_total{{part="{part}"}} (\S+)', text) for part in PARTS}
    return [float(match[1]) if match else 0.0 for match in values.values()]


def taken(agent: int, recorder: int) -> list[float]:
    """Return CPU seconds by the kernel, by part."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in (agent, recorder)]
    own, other = (sum(map(int, fields[11:13])) / TICKS for fields in stats)
    ended = sum(map(int, stats[0][13:15])) / TICKS  # child processes that have ended: counted as "recorder"
    other += sum(map(int, stats[1][13:15])) / TICKS
    return [own, ended + other, Programs().run_ns(recorder) / 1e9]


def at_a_look(port: int, agent: int, recorder: int) -> tuple[list[float], list[float]]:
    """Return what the agent has booked, and what the kernel has, just after the agent has looked."""
    before = booked(port)
    until(lambda: booked(port) != before, 30)
    return booked(port), taken(agent, recorder)


def test_account_agrees_with_the_kernel(tmp_path: Path, measured: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    place = Place(tmp_path)
    with place.agent("--port", str(port)) as agent:
        until(lambda: recorder_of(agent), START_S)
        recorder = recorder_of(agent)
        place.wait_for_segments(2)
        looks = [at_a_look(port, agent.pid, recorder)]
        for load in (["sleep"], ["perf", "bench", "sched", "pipe", "-l"]) * 2:
            subprocess.run(["timeout", str(PHASE_S), *load, "100000000"], check=False)
            looks.append(at_a_look(port, agent.pid, recorder))
    print(*looks, *place.said, sep="\n")
    for part, name in enumerate(PARTS):
        for first, last in [(looks[0], looks[2]), (looks[2], looks[4]), (looks[0], looks[4])]:
            account, truth = (after[part] - before[part] for before, after in zip(first, last, strict=True))
            assert abs(account - truth) <= 0.2 * truth + 0.03, (name, account, truth)
