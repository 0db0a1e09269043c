# SPDX-License-Identifier: Apache-2.0
"""Output of the workload as objects: what it measured of itself (the fields are explained in waiter.c)."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Site:
    """One place where a thread waits; `stack` names functions of the program, root first."""

    kind: str
    stack: tuple[str, ...]
    calls: int
    waits: int
    switches: int
    short_switches: int
    total_ns: int
    min_ns: int
    max_ns: int


@dataclass(frozen=True)
class Thread:
    """One thread; `waits` and the times are sums over its sites."""

    comm: str
    pid: int
    tid: int
    kind: str
    waits: int
    total_ns: int
    min_ns: int
    max_ns: int
    begin_ns: int
    end_ns: int
    cpu_ns: int
    nvcsw: int
    nivcsw: int
    blocked_since_ns: int
    sites: tuple[Site, ...]

    def site(self, kind: str) -> Site:
        (site,) = [site for site in self.sites if site.kind == kind]
        return site


def parse(output: str) -> dict[str, Thread]:
    """Parse the program's standard output into threads by comm; other lines (of a recorder) are ignored."""
    threads = [_thread(json.loads(line)) for line in output.splitlines() if line.startswith('{"comm"')]
    return {thread.comm: thread for thread in threads}


def run(program: Path, *arguments: str, cwd: Path, timeout_s: float = 60) -> dict[str, Thread]:
    done = subprocess.run([program, *arguments], cwd=cwd, timeout=timeout_s, check=True, capture_output=True, text=True)
    return parse(done.stdout)


def _thread(fields: dict[str, Any]) -> Thread:
    sites = tuple(Site(**site | {"stack": tuple(site["stack"].split(";"))}) for site in fields["sites"])
    return Thread(**fields | {"sites": sites})
