# SPDX-License-Identifier: Apache-2.0
"""Delivery: each recording once, whatever fails in between; what is lost is counted, with its cause."""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from builders.program import PATIENCE

from perf_offcpu.agent import sinks
from perf_offcpu.agent.cost.budget import Bucket
from perf_offcpu.agent.delivery import Delivery
from perf_offcpu.agent.ledger import Ledger, Origin
from perf_offcpu.agent.sinks import DatasetSink
from perf_offcpu.agent.spool import Spool, message_name
from perf_offcpu.errors import PerfOffcpuError, UsageError
from perf_offcpu.model.profile import Profile

DEMO = Path(__file__).resolve().parents[2] / "data" / "demo.data"
FIRST, SECOND = "00000001.data.2026112214000000", "00000001.data.2026112214010000"


class Place:
    """A spool with recordings, and what is needed to deliver them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.spool = Spool(str(root / "spool"), patience_s=0)
        self.said: list[str] = []
        self.renew()

    def renew(self, boot: str = "boot") -> None:
        """As after a restart."""
        self.ledger = Ledger(self.spool, boot, self.said.append)
        self.delivery = Delivery(
            self.spool, self.ledger, self.said.append, self.spool.recordings, lambda samples, seconds: None
        )
        self.delivery.dataset = DatasetSink(str(self.root / "dataset"), {"region": "eu"})

    def add(self, name: str, content: bytes | None = None) -> None:
        target = self.root / "spool" / name
        shutil.copy(DEMO, target) if content is None else target.write_bytes(content)

    def value(self, name: str, label: str | None = None) -> float:
        return self.ledger.metrics.value(name, label)

    def files(self) -> dict[str, int]:
        """Return name → rows of the files of samples."""
        paths = (self.root / "dataset" / "samples").rglob("*.parquet")
        return {path.name: pq.read_metadata(path).num_rows for path in paths}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(sinks, "FIRST_RETRY_S", 0.01)
    found = Place(tmp_path)
    yield found
    found.spool.close()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60 * PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def deliver(place: Place, *conditions: Callable[[], object]) -> None:
    """Deliver what is in the spool until one thing after the other is so."""
    place.delivery.start()
    try:
        for condition in conditions:
            until(condition)
    finally:
        place.delivery.close(30)


def before_writing(place: Place, monkeypatch: pytest.MonkeyPatch, step: Callable[[Profile], object]) -> None:
    """Take a step before each segment is written to the dataset; without it where the step fails."""
    sink = place.delivery.dataset
    assert sink is not None
    write = sink.write

    def stepping(profile: Profile, origin: Origin, missing: object) -> int:
        step(profile)
        return write(profile, origin, ())

    monkeypatch.setattr(sink, "write", stepping)


def test_recording_becomes_a_segment_and_is_removed(place: Place) -> None:
    place.add(FIRST)
    deliver(place, lambda: place.value("segments_total") == 1)
    assert place.spool.recordings() == [] and sum(place.files().values()) == place.value("samples_total") > 0
    assert place.value("recorded_seconds_total") > 0 and place.value("gap_seconds_total") == 0
    (host,) = (place.root / "dataset" / "hosts").rglob("*.parquet")
    assert dict(pq.read_table(host)["labels"][0].as_py()) == {"region": "eu"}


def test_a_recording_without_clocks_has_the_same_name_each_time(place: Place) -> None:
    """A killed recorder leaves none; the agent may be killed, too, before the segment is accounted."""
    assert place.ledger.clock_of(FIRST, (1000, 5)) == (1000, 5)
    place.renew()
    assert place.ledger.clock_of(FIRST, (2001, 1000)) == (1000, 5)
    assert place.ledger.clock_of(SECOND, (2001, 1000)) == (2001, 1000)
    place.ledger.deliver(FIRST, ((5, 6),), 995)
    place.ledger.save()
    place.renew()
    assert place.ledger.clock_of(FIRST, (3001, 2000)) == (3001, 2000), "it is forgotten once it is accounted"
    assert place.ledger.clock_of(SECOND, (3001, 2000)) == (2001, 1000)


def test_a_pause_is_the_cause_of_the_gap_after_it_in_the_same_run(place: Place) -> None:
    ledger, other_run = place.ledger, "00000002.data.2026112214020000"
    ledger.begin_run("stopped")
    ledger.deliver(FIRST, ((10, 20),), 1000)
    assert ledger.end_before(SECOND) == 20 and ledger.missing(SECOND, 20, 1000) == []
    ledger.pause(FIRST, "budget")
    assert ledger.end_before(SECOND) == 0, "the file does not begin where the one before ends"
    assert ledger.missing(SECOND, 50, 1000) == [(30, "budget")]
    ledger.save()
    place.renew()
    assert place.ledger.missing(SECOND, 50, 1000) == [(30, "budget")]
    place.ledger.begin_run("recorder")
    assert place.ledger.missing(other_run, 60, 1000) == [(40, "recorder")]
    place.ledger.deliver(SECOND, ((50, 60),), 1000)
    assert place.value("gap_seconds_total", "budget") == 30e-9
    assert place.ledger.missing("00000001.data.2026112214020000", 61, 1000) == [(1, "unknown")]


def test_pauses_within_a_segment_are_gaps(place: Place) -> None:
    ledger, second = place.ledger, 10**9
    ledger.begin_run("stopped")
    ledger.deliver(FIRST, ((10 * second, 40 * second), (70 * second, 90 * second), (95 * second, 100 * second)), 0)
    assert place.value("gap_seconds_total", "budget") == 35 and place.value("recorded_seconds_total") == 55
    assert ledger.missing(SECOND, 100 * second, 0) == []


def test_agent_killed_anywhere_delivers_nothing_twice(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop between the dataset, the account and the removal, and begin again each time."""

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    place.add(FIRST)
    for target, method in ((place.ledger, "save"), (place.spool, "remove")):
        with monkeypatch.context() as patch:
            patch.setattr(target, method, kill)
            with pytest.raises(Killed):
                place.delivery._deliver(FIRST)
        before = place.files()
        place.renew()
        assert place.spool.recordings() == [FIRST]
    deliver(place, lambda: place.spool.recordings() == [])
    assert place.files() == before and place.value("segments_total") == 1
    assert place.value("samples_total") == sum(before.values())


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("problem", [FULL, PerfOffcpuError("s3://a: no answer")])
def test_a_failing_dataset_gets_it_later(place: Place, monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    attempts: list[float] = []

    def fail(_: Profile) -> None:
        attempts.append(time.monotonic())
        if len(attempts) <= 4:
            raise problem

    before_writing(place, monkeypatch, fail)
    place.add(FIRST)
    deliver(place, lambda: place.value("segments_total") == 1)
    assert place.value("dataset_failures_total") == 4 and place.value("segments_lost_total", "failed") == 0
    assert any("again in" in one for one in place.said) and "segments are delivered again" in place.said
    assert attempts[4] - attempts[3] >= 0.08, "twice as long each time"


def full(*_: object) -> None:
    raise FULL


def test_a_full_disk_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("perf_offcpu.dataset.segment.put", full)
        place.add(FIRST)
        deliver(place, lambda: place.said)
    assert f"not delivered: {place.root}/dataset: No space left on device; again" in place.said[0]


def test_a_dataset_that_was_removed_is_made_again(place: Place) -> None:
    shutil.rmtree(place.root / "dataset")
    place.add(FIRST)
    deliver(place, lambda: place.value("segments_total") == 1)
    assert sum(place.files().values()) > 0 and place.value("dataset_failures_total") == 1


def test_account_that_cannot_be_written_is_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place.spool, "write", full)
    place.add(FIRST)
    deliver(place, lambda: place.spool.recordings() == [])
    assert place.said == ["the account cannot be written: No space left on device"]


def test_damaged_recording_is_lost_and_counted_and_the_next_is_delivered(place: Place) -> None:
    place.add(FIRST, b"PERFILE2" + bytes(50))
    place.add(SECOND)
    deliver(place, lambda: place.value("segments_total") == 1)
    assert place.value("segments_lost_total") == 1 and any("a segment is lost" in one for one in place.said)


def test_segment_that_makes_the_code_fail_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    bad: list[Profile] = []

    def fail(profile: Profile) -> None:
        bad[:] = bad or [profile]
        if profile is bad[0]:
            raise ZeroDivisionError("oops")

    before_writing(place, monkeypatch, fail)
    place.add(FIRST)
    place.add(SECOND)
    deliver(place, lambda: place.value("segments_total") == 1)
    assert place.value("segments_lost_total", "failed") == 1


def test_bytes_that_are_spent_lose_segments(place: Place) -> None:
    place.delivery.bytes = Bucket(10, 86400, time.monotonic())
    place.add(FIRST)
    place.add(SECOND)
    deliver(place, lambda: place.spool.recordings() == [])
    assert place.value("segments_total") == 1 and place.value("segments_lost_total", "max-bytes") == 1


def test_gaps_have_the_cause_that_was_noted(place: Place) -> None:
    ledger, second = place.ledger, 10**9

    def file(run: int, number: int) -> str:
        return f"{run:08}.data.{number:016}"

    def take(ledger: Ledger, name: str, begin: int, end: int, offset: int = 7) -> None:
        ledger.deliver(name, ((begin * second, end * second),), offset * second)

    ledger.begin_run("stopped")
    for number, begin in ((1, 100), (2, 160)):
        take(ledger, file(1, number), begin, begin + 60)
    ledger.drop(file(1, 3), "spool-full")
    take(ledger, file(1, 4), 280, 340)
    ledger.begin_run("budget")
    take(ledger, file(2, 1), 400, 460)
    ledger.save()
    again = Ledger(place.spool, "boot")
    again.begin_run("stopped")
    take(again, file(3, 1), 461, 470)
    again.save()
    other = Ledger(place.spool, "next boot")
    assert not other.is_of_this_boot(file(3, 2))
    other.begin_run("stopped")
    assert other.is_of_this_boot(file(4, 1))
    take(other, file(4, 1), 5, 15, 500)
    gaps = {cause: other.metrics.value("gap_seconds_total", cause) for cause in ("spool-full", "budget")}
    assert gaps == {"spool-full": 60, "budget": 60}
    assert other.metrics.value("gap_seconds_total", "stopped") == 1 + (5 + 500 - 470 - 7)
    assert other.metrics.value("recorded_seconds_total") == 60 * 4 + 9 + 10
    assert other.metrics.value("clock_steps_total") == 0


def test_segments_have_the_labels_and_the_boot_of_their_recording(place: Place) -> None:
    """A restart, or an hour without the dataset, must not give a release the waits of the one before."""
    place.ledger.begin_run("stopped", {"version": "1"})
    place.ledger.begin_run("recorder", {"version": "1"})
    place.ledger.save()
    place.renew(boot="next boot")
    place.ledger.begin_run("stopped", {"version": "2"})
    place.ledger.save()
    place.renew(boot="next boot")
    for run in (1, 2, 3):
        place.add(f"{run:08}.data.2026112214000000")
    deliver(place, lambda: place.value("segments_total") == 3)
    hosts = pq.read_table(place.root / "dataset" / "hosts", columns=["boot_id", "labels"]).to_pylist()
    found = {row["boot_id"]: dict(row["labels"]) for row in hosts}
    assert found == {"boot": {"version": "1"}, "next boot": {"version": "2"}}
    assert place.ledger.origin(f"{1:08}.data").labels is None, "it is not needed any more"


def test_a_segment_that_is_delivered_again_after_a_boot_replaces_itself(place: Place) -> None:
    place.ledger.begin_run("stopped", {})
    place.ledger.save()
    before = (place.root / "spool" / "state.json").read_bytes()
    for boot in ("boot", "next boot"):  # a power failure before the account was on the disk
        (place.root / "spool" / "state.json").write_bytes(before)
        place.renew(boot)
        place.add(FIRST)
        deliver(place, lambda: place.spool.recordings() == [])
    assert len(place.files()) == 1


def test_origins_are_few(place: Place) -> None:
    for number in range(200):
        place.ledger.begin_run("reload", {"version": str(number)})
    place.ledger.save()
    origins = [Ledger(place.spool, "x").origin(f"{run:08}.data").labels for run in (1, 137, 200, 300)]
    assert origins == [None, {"version": "136"}, {"version": "199"}, {"version": "199"}]


def test_step_of_the_wall_clock_is_counted_and_lengths_stay(place: Place) -> None:
    second = 10**9
    for number, offset in enumerate((0, 0, 5, 5, -3600)):
        begin = (number + 1) * 60 * second
        place.ledger.deliver(f"{1:08}.data.{number:016}", ((begin, begin + 60 * second),), (10**6 + offset) * second)
    assert place.value("clock_steps_total") == 2 and place.value("recorded_seconds_total") == 300
    assert place.ledger.metrics.value("gap_seconds_total") == 0


@pytest.mark.parametrize("text", [
    "", "{", "[]", '{"version": 99}', '{"version": 1, "run": "x", "origins": {"1": [1, 2]}}', "\0" * 100,
])  # fmt: skip
def test_damaged_account_is_begun_again(place: Place, text: str) -> None:
    (place.root / "spool" / "state.json").write_text(text)
    place.add(FIRST)
    assert Ledger(place.spool, "boot").begin_run("stopped") == 2, "after the runs that are in the spool"


def test_spool_has_one_user_and_is_private(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"), patience_s=0)
    with pytest.raises(UsageError, match="another agent uses it; stop that one"):
        Spool(str(tmp_path / "spool"))
    recorder_fd = os.dup(spool.lock_fd)
    spool.close()
    with pytest.raises(UsageError, match="the recorder of an agent that has ended still uses it"):
        Spool(str(tmp_path / "spool"), patience_s=0)
    os.close(recorder_fd)
    (tmp_path / "spool").chmod(0o777)
    with pytest.raises(UsageError, match="others may write"):
        Spool(str(tmp_path / "spool"), patience_s=0)


def test_names_in_the_spool(place: Place) -> None:
    for name in (SECOND, FIRST, ".00000001.data.2026112214020000.ab12cd34", "other"):
        (place.root / "spool" / name).touch()
    message = message_name(FIRST, "0123abcd", 3)
    place.spool.write(message, b"x")
    assert place.spool.recordings() == [FIRST, SECOND]
    assert place.spool.messages() == place.spool.messages("0123abcd") == [message]
    assert place.spool.messages("ffffffff") == []
    place.spool.tidy()
    assert not list((place.root / "spool").glob(".0*"))


def test_threads_of_an_agent_share_the_account(place: Place) -> None:
    """Runs that begin while segments are delivered keep their causes."""

    def begin() -> None:
        for _ in range(300):
            place.ledger.begin_run("stopped")

    thread = threading.Thread(target=begin)
    thread.start()
    for number in range(300):
        place.ledger.deliver(f"{0:08}.data.{number:016}", ((number + 1, number + 2),), 0)
    thread.join()
    state: dict[str, Any] = place.ledger._causes
    assert len(state) == 64 and max(state) == f"{300:08}"


def test_recording_that_is_delivered_is_not_dropped(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full spool loses others: each recording is delivered, or lost, never both."""
    began, go = threading.Event(), threading.Event()
    before_writing(place, monkeypatch, lambda _: (began.set(), go.wait(60)))
    place.add(FIRST)
    deliver(
        place, lambda: began.wait(60) and place.delivery.current == FIRST, lambda: go.set() is None,
        lambda: place.value("segments_total") == 1, lambda: place.delivery.current == "",
    )  # fmt: skip
