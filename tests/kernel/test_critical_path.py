# SPDX-License-Identifier: Apache-2.0
"""The critical path of a client whose requests pass through two servers; the last one sleeps and computes."""

import re
import sys
from pathlib import Path

from builders.program import run as perf_offcpu
from kernel.recorder import report, run

REQUESTS, SLEEP_MS, BACKEND_MS, FRONTEND_MS = 10, 20, 8, 4
CHAIN = f"""
import os, time

def named(comm):
    with open("/proc/self/comm", "w") as file:
        file.write(comm)

def compute(ms):
    end = time.thread_time() + ms / 1000
    while time.thread_time() < end:
        pass

def server(comm, work):
    (there, to), (back, reply) = os.pipe(), os.pipe()
    if os.fork() == 0:
        named(comm)
        os.close(to)
        while os.read(there, 1):
            work()
            os.write(reply, b"x")
        os._exit(0)
    os.close(there), os.close(reply)
    return lambda: (os.write(to, b"x"), os.read(back, 1))

def sleep_and_compute():
    time.sleep({SLEEP_MS / 1000})
    compute({BACKEND_MS})

backend = server("backend", sleep_and_compute)
frontend = server("frontend", lambda: (compute({FRONTEND_MS}), backend()))
named("client")
for _ in range({REQUESTS}):
    frontend()
"""


def test_the_time_of_a_client_is_that_of_the_servers_behind_it(tmp_path: Path) -> None:
    run("-q", "--off-cpu-thresh", "0", "-F", "999", "--", sys.executable, "-c", CHAIN, cwd=tmp_path)
    path = report("--critical-path", "--comm", "client", cwd=tmp_path)
    assert sum(row["time"] for row in path["rows"]) == path["total"]
    comms = {row["comm"]: row for row in path["hops"] if row["wakeups"] >= REQUESTS}
    assert [(comm, row["depth"]) for comm, row in comms.items()] == [("frontend", 1), ("backend", 2)]
    frontend, backend = comms["frontend"]["own"], comms["backend"]["own"]
    # A busy machine adds time to each; what a server does before the other one waits for it does not count: a
    # frontend that loses its CPU between its request and its read may do so for a whole sleep of the backend.
    assert backend["waiting"] >= 0.8 * REQUESTS * SLEEP_MS * 1_000_000
    assert backend["running"] >= 0.8 * REQUESTS * BACKEND_MS * 1_000_000
    assert frontend["running"] >= 0.8 * REQUESTS * FRONTEND_MS * 1_000_000
    assert frontend["waiting"] <= 0.05 * path["total"]
    waits = {(row["comm"], row["class"]) for row in path["rows"] if row["time"] > 0.05 * path["total"]}
    assert ("backend", "sleep") in waits and not {("client", "pipe"), ("frontend", "pipe")} & waits
    folded = perf_offcpu("convert", "--folded", "--critical-path", "--comm", "client", "-o", "-", cwd=tmp_path)
    lines = [line.rpartition(" ") for line in folded.stdout.splitlines()]
    assert sum(int(weight) for _, _, weight in lines) == path["total"]
    chained = sum(int(ns) for stack, _, ns in lines if "by] frontend;" in stack and "by] backend;" in stack)
    assert chained >= 0.8 * REQUESTS * (SLEEP_MS + BACKEND_MS) * 1_000_000
    assert_chains_and_bottlenecks(tmp_path)


def assert_chains_and_bottlenecks(folder: Path) -> None:
    """The client's waits lead through both servers to a timer."""
    chains, plain = (
        perf_offcpu("convert", "--folded", "--comm", "client", *more, "-o", "-", cwd=folder).stdout.splitlines()
        for more in (("--wakers",), ())
    )
    weights = [sum(int(line.rpartition(" ")[2]) for line in lines) for lines in (chains, plain)]
    assert weights[0] == weights[1]
    through = [line for line in chains if re.search(r"frontend_\[w\];--;.*backend_\[w\];--;", line)]
    whole = sum(int(line.rpartition(" ")[2]) for line in through)
    assert whole >= 0.95 * REQUESTS * (SLEEP_MS + BACKEND_MS) * 1_000_000
    found = report("--bottlenecks", "--comm", "client", cwd=folder)
    held = {name: one["held"] for one in found["bottlenecks"] for name in one["members"]}
    assert held["[timer]"] >= 0.8 * REQUESTS * SLEEP_MS * 1_000_000
    assert sum(held.values()) + found["others"]["held"] == found["total"]
    serial = report("--serial", "--comm", "client,frontend,backend", cwd=folder)
    assert sum(serial["threads_running"]) == serial["total"]
    assert serial["threads_running"][0] >= 0.8 * REQUESTS * SLEEP_MS * 1_000_000
