# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu push` to servers on real sockets."""

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from builders import program
from builders.examples import examples
from builders.push import rules
from builders.push.servers import Reply, receiver

from perf_offcpu.cli import main
from perf_offcpu.push import messages

DATA = Path(__file__).parents[2] / "data"
INPUT = ("-f", "-i", DATA / "demo.data", "--kallsyms", DATA / "demo.kallsyms", "--symfs", DATA / "demo.symfs")


@pytest.fixture
def any_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording is old."""
    monkeypatch.setattr(rules, "PYROSCOPE_AGE_S", 1e12)


def push(*words: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    return program.run("push", *words, *INPUT, status=status)


@pytest.mark.usefixtures("any_age")
def test_what_arrives_is_what_convert_writes() -> None:
    """What each server stores of a message: tests/unit/push/test_messages.py."""
    with receiver() as found:
        target = f"pyroscope=http://127.0.0.1:{found.port}"
        done = push(target, "--label", "service=web", "--comm", "locker-a,syncer,stuck-reader")
    assert done.stderr == ""
    folded = program.run("convert", "--folded", "-o", "-", *INPUT, "--comm", "locker-a,syncer,stuck-reader")
    expected = Counter[tuple[str, ...]]()
    for line in folded.stdout.splitlines():
        stack, _, weight = line.rpartition(" ")
        expected[tuple(stack.split(";"))] += int(weight)
    (series,) = found.stored
    assert {(comm, *stack): value for (comm, stack), value in series.by_label("thread_name").items()} == +expected
    assert f"perf-offcpu push: {target}: {expected.total() / 1e9:.3f} s, " in done.stdout


def test_pyroscope_refuses_what_is_old() -> None:
    with receiver() as found:
        done = push(f"pyroscope=http://127.0.0.1:{found.port}", status=1)
        assert found.stored == [] and len(found.requests) == 1
    assert "400 Bad Request: profile is outside of ingestion window" in done.stderr


@pytest.mark.usefixtures("any_age")
def test_one_target_fails_the_others_get_theirs(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("Authorization: Bearer geheim\n")
    with receiver(None, Reply(401)) as found, receiver(None, Reply(503, {"Retry-After": "0"})) as other:
        first, second = (f"{kind}=http://127.0.0.1:{one.port}" for kind, one in (("otlp", found), ("parca", other)))
        done = push(first, second, "--push-header-file", f"parca={tmp_path / 'token'}", status=1)
        assert (len(found.stored), len(other.stored)) == (0, 1)
        assert "authorization" not in found.requests[0].headers
        assert other.requests[1].headers["authorization"] == "Bearer geheim"
    assert "geheim" not in done.stdout + done.stderr
    assert f"{first}: 401" in done.stderr and f"{second}: " in done.stdout
    assert f"{second}: 503 Service Unavailable; trying again in 0.0 s" in done.stderr


@pytest.mark.usefixtures("any_age")
def test_rejected_profiles_are_a_failure() -> None:
    partial = Reply(200, {"Content-Type": "application/x-protobuf"}, b"\x0a\x08\x08\x01\x12\x04nope")
    with receiver(None, partial) as found:
        done = push(f"otlp=http://127.0.0.1:{found.port}", status=1)
    assert "1 profiles rejected: nope" in done.stderr


def test_a_part_that_was_taken_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(messages, "MOST_SAMPLES", 2)
    with receiver(None, Reply(), Reply(401)) as found:
        target = f"otlp=http://127.0.0.1:{found.port}"
        assert main(["push", target, *map(str, INPUT)]) == 1
    out, err = capsys.readouterr()
    assert not out and f"push: {target}: 401 Unauthorized" in err
    assert re.search(rf"push: {target} has taken a part: \d+\.\d+ s, \d+ samples in 1 message\n", err)


def test_no_server_no_wait_and_no_file() -> None:
    done = push("parca=http://127.0.0.1:1", "--push-time", "0", status=1)
    assert done.stdout == ""
    assert done.stderr == "perf-offcpu push: parca=http://127.0.0.1:1: Connection refused\n"
    done = push("parca=http://127.0.0.1:1", "--comm", "nobody")
    assert "no wait was selected: nothing was pushed" in done.stderr
    for option in ("--push-header-file", "--push-ca"):
        done = push("otlp=https://host", option, "/nonexistent", status=1)
        assert done.stderr == "perf-offcpu push: /nonexistent: No such file or directory\n"


@pytest.mark.parametrize(("words", "reason"), examples("unit/sentences.txt", "push"))
def test_wrong_usage(words: str, reason: str) -> None:
    done = push(*words.split(), status=129)
    assert reason in done.stderr and done.stderr.count("\n") == 1
