# SPDX-License-Identifier: Apache-2.0
"""Decoded recordings of perf 7.2: the waits of each thread, in every form; and the demo's stacks."""

from pathlib import Path

import numpy as np
import pytest

from perf_offcpu import losses
from perf_offcpu.cli import main
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording, SampleFlag

HERE = Path(__file__).parent
DATA = HERE.parent / "data" / "perf-7.2"
NAMES = ["direct", "atend", "hybrid", "deferred", "compressed", "pipe", "sched"]


def waits(recording: Recording) -> dict[str, tuple[int, int]]:
    """Return comm → (off-cpu samples, ns); "comm/tid" if several threads share a comm."""
    samples = recording.samples
    off = samples.take(samples.has(SampleFlag.OFFCPU))
    totals: dict[str, tuple[int, int]] = {}
    for comm, period in zip(off.comm.tolist(), off.period.tolist(), strict=True):
        count, total = totals.get(recording.strings[comm], (0, 0))
        totals[recording.strings[comm]] = (count + 1, total + period)
    return totals


@pytest.mark.parametrize("name", NAMES)
def test_every_form_is_read_whole(name: str) -> None:
    recording = load_recording(DATA / f"{name}.data", switches=False)
    recording.check()
    assert set(recording.losses) == {losses.WRONG_CALLERS}, "sound files: nothing but what frame pointers made up"
    # As many samples as perf 7.2 itself prints (`perf script | grep -c '^[^ \t]'`).
    expected = dict(direct=509, atend=17, hybrid=646, deferred=544, compressed=400, pipe=546, sched=271)
    assert len(recording.samples) == expected[name]


def test_direct_samples_go_to_the_thread_that_slept() -> None:
    """perf 7.2 attributes all of them to the main thread: it reads the swapped pair."""
    recording = load_recording(DATA / "direct.data")
    found = waits(recording)
    assert set(found) == {
        "perf-exec", "blocker", "sleeper", "deep", "locker", "reader", "writer", "poller", "syncer", "stuck",
    }  # fmt: skip
    # 10 rounds of a 10 ms sleep each, in emulation: at least that long, and not another thread's waits.
    assert 10 * 10_000_000 <= found["sleeper"][1] < 150_000_000
    assert 10 * 12_000_000 <= found["poller"][1] < 150_000_000
    samples = recording.samples
    threads = np.unique(samples.tid[samples.has(SampleFlag.REPAIRED_IDS)])
    assert len(threads) == 9
    assert set(samples.pid[samples.tid > 0].tolist()) <= {126}


def test_sums_have_no_time_but_a_thread_and_a_comm() -> None:
    recording = load_recording(DATA / "atend.data")
    samples = recording.samples
    both = np.uint32(SampleFlag.UNTIMED | SampleFlag.AGGREGATED)
    assert ((samples.flags & both) == both).all()
    assert (samples.time_ns == -1).all()
    assert waits(recording)["stuck"] == (1, 256586385)
    assert not any(comm.startswith(":") for comm in waits(recording))


def test_frames_are_capped_and_never_the_cgroup_id() -> None:
    recording = load_recording(DATA / "hybrid.data")
    samples = recording.samples
    off = samples.take(samples.has(SampleFlag.OFFCPU))
    assert recording.callchains.lengths[off.callchain].max() == 33
    chains = [recording.callchains.row(row) for row in off.callchain.tolist()]
    assert not any(int(cgroup) in chain.tolist() for cgroup, chain in zip(off.cgroup, chains, strict=True))
    assert (off.cgroup > 0).any()


def test_garbage_words_are_no_frames() -> None:
    """perf 7.2 shows up to 31 of them below the two real frames."""
    recording = load_recording(DATA / "direct.data")
    samples, maps = recording.samples, recording.maps
    sleeper = recording.strings.find("sleeper")
    off = samples.has(SampleFlag.OFFCPU)
    for row in np.flatnonzero((samples.comm == sleeper) & off).tolist():
        user = recording.callchains.row(samples.callchain[row])[1:]
        inside = [bool(((maps.start <= word) & (word < maps.end)).any()) for word in user]
        assert inside[-1] or len(user) == 1


def test_the_stored_recording_has_its_known_output(tmp_path: Path) -> None:
    out = tmp_path / "out.folded"
    demo = HERE.parent / "data"
    symbols = ["--symfs", str(demo / "demo.symfs"), "--kallsyms", str(demo / "demo.kallsyms")]
    assert main(["convert", "-f", "--folded", "-i", str(demo / "demo.data"), "-o", str(out), *symbols]) == 0
    assert out.read_text() == (HERE / "demo.folded").read_text()
