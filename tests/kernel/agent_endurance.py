# SPDX-License-Identifier: Apache-2.0
"""The agent for minutes: killed at random moments, on a full disk, with a server that misbehaves. Takes some minutes,
so that it runs on request only: `scripts/test tests/kernel/agent_endurance.py`. PERF_OFFCPU_TEST_ROUNDS is the number
of kills, PERF_OFFCPU_TEST_SEEDS the seed of the moments."""

import contextlib
import hashlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from builders.disk import small_disk
from kernel.agents import START_S, Place, recorder_of
from kernel.recorder import until

ROUNDS = int(os.environ.get("PERF_OFFCPU_TEST_ROUNDS", "8"))
SEED = int(os.environ.get("PERF_OFFCPU_TEST_SEEDS", "1"))

pytestmark = pytest.mark.timeout(1800)


@dataclass
class Moody:
    """A server of Pyroscope that takes messages, refuses, is slow, or breaks off before or in its answer."""

    draw: random.Random
    is_sound: bool = False
    taken: list[str] = field(default_factory=list)
    moods: list[str] = field(default_factory=list)

    def mood(self) -> str:
        one = "takes" if self.is_sound else self.draw.choice("takes busy slow breaks cuts".split())
        self.moods.append(one)
        return one


@contextlib.contextmanager
def server(moody: Moody) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            mood = moody.mood()
            if mood == "breaks":
                return
            if mood == "slow":
                time.sleep(3)
            status = 503 if mood == "busy" else 200
            if status == 200:
                moody.taken.append(hashlib.sha256(body).hexdigest())
            self.send_response(status)
            self.send_header("Content-Type", "application/proto")
            self.send_header("Content-Length", "0" if mood != "cuts" else "100")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield int(found.server_address[1])
        finally:
            found.shutdown()
            thread.join()


def test_kills_at_random_moments_with_a_moody_server(tmp_path: Path) -> None:
    draw, place = random.Random(SEED), Place(tmp_path)
    moody = Moody(random.Random(SEED + 1))
    with server(moody) as port:
        push = ("--push", f"pyroscope=http://127.0.0.1:{port}")
        for _ in range(ROUNDS):
            with place.agent(*push) as agent:
                time.sleep(draw.choice((draw.uniform(0.2, 3), draw.uniform(3, 20))))
                if draw.random() < 0.5 and (recorder := recorder_of(agent)):
                    os.kill(recorder, signal.SIGKILL)
                    time.sleep(draw.uniform(0, 4))
                agent.kill()
                agent.wait()
        with place.agent(*push):  # kills may all come before the first message
            place.wait_for_segments(2)
            time.sleep(10)
        moody.is_sound = True
        with place.agent(*push):
            place.wait_for_segments(len(place.recordings()) + 2)
        for _ in range(5):
            if place.recordings() or any(place.spool.glob("*.push-*")):
                with place.agent(*push, "--duration", "1"):
                    time.sleep(30)
    print(place.state(), moody.moods, *place.said, sep="\n")
    assert place.recordings() == [] and list(place.spool.glob("*.push-*")) == []
    place.check()
    assert place.causes("gap_seconds_total").keys() <= {"stopped", "recorder", "empty"}
    assert place.causes("segments_lost_total").keys() <= {"empty"}
    assert place.counter("push_lost_total") == 0
    assert {row[0] for row in place.rows("samples", ["time_ns"])}
    # What was taken before an answer that did not arrive, or before a kill, comes again: the same message.
    segments = len(list((place.dataset / "samples").rglob("*.parquet")))
    assert len(set(moody.taken)) == segments
    assert {"busy", "slow", "breaks", "cuts"} & set(moody.moods)


def test_full_disk(tmp_path: Path) -> None:
    """The disk of the spool is full for a while, then that of the dataset, too."""
    with small_disk(tmp_path / "disk", "48M") as disk:
        place = Place(tmp_path, disk=disk)
        with place.agent("--spool-size", "32M") as agent:
            place.wait_for_segments(2)
            fill(disk / "ballast")
            until(lambda: not recorder_of(agent), START_S)
            time.sleep(5)
            assert agent.poll() is None
            (disk / "ballast").unlink()
            place.wait_for_segments(3)
        print(place.state(), *place.said, sep="\n")
        assert place.causes("gap_seconds_total").keys() == {"recorder"}
        assert "No space left on device" in "".join(place.said)
        place.check()


def test_full_dataset_fills_the_spool_which_drops_the_oldest(tmp_path: Path) -> None:
    with small_disk(tmp_path / "dataset", "8M") as disk:
        place = Place(tmp_path)
        with place.agent("--spool-size", "16M") as agent:
            place.wait_for_segments(2)
            fill(disk / "ballast")
            until(lambda: place.causes("segments_lost_total").get("spool-full", 0) >= 1, 600)
            assert agent.poll() is None
            (disk / "ballast").unlink()
            place.wait_for_segments(1)
        print(place.state(), *place.said, sep="\n")
        place.check()
        assert place.causes("gap_seconds_total")["spool-full"] > 1
        assert place.counter("dataset_failures_total") > 0
        assert sum(path.stat().st_size for path in place.spool.iterdir()) < 20 << 20


def fill(path: Path) -> None:
    with open(path, "wb") as file, contextlib.suppress(OSError):
        size = 1 << 20
        while size:
            try:
                os.write(file.fileno(), bytes(size))
            except OSError:
                size //= 2
