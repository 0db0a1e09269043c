# SPDX-License-Identifier: Apache-2.0
"""A recording that was just made is pushed to a server of each kind, which stores all of it, by its rules."""

from collections import Counter
from pathlib import Path

import pytest
from builders import program
from builders.push.servers import receiver

from perf_offcpu.push.targets import SERVERS

pytestmark = pytest.mark.beside


def test_a_recording_arrives_whole(waiter: Path, tmp_path: Path) -> None:
    done = program.run("record", "--", waiter, "--rounds", "5", cwd=tmp_path)
    folded = program.run("convert", "--folded", "-o", "-", cwd=tmp_path)
    lines = [line.rpartition(" ") for line in folded.stdout.splitlines()]
    expected = Counter({tuple(stack.split(";")): int(weight) for stack, _, weight in lines})
    with receiver() as found:
        url = f"http://127.0.0.1:{found.port}"
        targets = [f"{server}={url}" for server in SERVERS]
        done = program.run("push", *targets, "--label", "service=waiter", cwd=tmp_path)
        assert done.stderr == ""
    for series, server in zip(found.stored, SERVERS.values(), strict=True):
        name = "thread.name" if server.export_answers else "thread_name"  # of OTLP, or of pprof
        stacks = Counter({(comm, *stack): value for (comm, stack), value in series.by_label(name).items()})
        assert stacks == +expected and stacks.total() > 0
        assert series.duration_ns > 0
        assert any(build_id for _, build_id, _ in series.addresses)
