# SPDX-License-Identifier: Apache-2.0
"""A recording that was just made is pushed to a server of each kind, which stores all of it, by its rules."""

from collections import Counter
from pathlib import Path

import pytest
from builders import program
from builders.push.servers import receiver

pytestmark = pytest.mark.beside


def test_a_recording_arrives_whole(waiter: Path, tmp_path: Path) -> None:
    done = program.run("record", "--", waiter, "--rounds", "5", cwd=tmp_path)
    folded = program.run("convert", "--folded", "-o", "-", cwd=tmp_path)
    lines = [line.rpartition(" ") for line in folded.stdout.splitlines()]
    expected = Counter({tuple(stack.split(";")): int(weight) for stack, _, weight in lines})
    with receiver() as found:
        url = f"http://127.0.0.1:{found.port}"
        targets = [f"{server}={url}" for server in ("pyroscope", "parca", "otlp")]
        done = program.run("push", *targets, "--label", "service=waiter", cwd=tmp_path)
        assert done.stderr == ""
    assert len(found.stored) == 3
    for series, name in zip(found.stored, ("thread_name", "thread_name", "thread.name"), strict=True):
        stacks = Counter({(comm, *stack): value for (comm, stack), value in series.by_label(name).items()})
        assert stacks == +expected and stacks.total() > 0
        assert series.duration_ns > 0
        assert any(build_id for _, build_id, _ in series.addresses)
