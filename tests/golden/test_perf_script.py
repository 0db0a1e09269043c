# SPDX-License-Identifier: Apache-2.0
"""The text of samples compared with perf 7.2's, sample by sample and frame by frame. `NAME.script.txt.xz` is the output
of `perf script --no-inline` for `NAME.data`. Each difference must be explained by a rule with a reason, and each rule
must be needed for the recordings that it names and no others: a rule that explains nothing fails the test as well."""

import io
import lzma
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.perf_text import DEFERRED, Frame, Printed, parse
from golden.perf_rules import BLOCKER, RULES, UNKNOWN, differences, is_cookie, reasons_for

from perf_offcpu.decode.deferred import deferred_as_samples
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording
from perf_offcpu.script.fields import choose_fields
from perf_offcpu.script.samples import TextOptions, write
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize

DATA = Path(__file__).parent.parent / "data" / "perf-7.2"
NAMES = ["direct", "atend", "hybrid", "deferred", "deferred.unmerged", "compressed", "pipe", "sched"]


@cache
def recording_of(name: str) -> Recording:
    stem, _, unmerged = name.partition(".")
    return load_recording(DATA / f"{stem}.data", merge=not unmerged, switches=False)


@cache
def our_text(name: str, symfs: Path) -> str:
    options = SymbolizeOptions(kallsyms=str(DATA / "kallsyms.gz"), symfs=str(symfs), keep_ips=True)
    profile = symbolize(deferred_as_samples(recording_of(name)), options)
    profile.check()
    out = io.StringIO()
    write(profile, out, TextOptions(choose_fields(["+pid,+flags"])))
    return out.getvalue()


@cache
def perfs_samples(name: str) -> list[Printed]:
    return parse(lzma.decompress((DATA / f"{name}.script.txt.xz").read_bytes()).decode())


def by_time(samples: list[Printed]) -> list[Printed]:
    return sorted(samples, key=lambda sample: tuple(map(int, sample.time.split("."))))


@pytest.fixture(scope="module")
def symfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("symfs")
    (root / "root").mkdir()
    (root / "root" / "blocker").symlink_to(DATA / "blocker")
    return root


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_as_perf_prints_them(name: str, symfs: Path) -> None:
    perf, ours = perfs_samples(name), parse(our_text(name, symfs))
    assert len(perf) == len(ours)
    if name == "deferred":
        # perf delivers a merged sample when its user callchain arrives; ours are by time.
        assert perf != by_time(perf)
        perf = by_time(perf)
    used: Counter[str] = Counter()
    for theirs, own in zip(perf, ours, strict=True):
        for one in differences(recording_of(name), theirs, own):
            reasons = reasons_for(one)
            assert len(reasons) == 1, f"{reasons or 'no rule'} explains {one}"
            used.update(reasons)
    assert set(used) == {rule.reason for rule in RULES if name in rule.recordings.split()}


def test_most_of_perfs_text_needs_no_rule(symfs: Path) -> None:
    """Nearly all frames that perf can name are equal in every field."""
    same = different = 0
    for name in set(NAMES) - {"deferred"}:  # its order differs
        for perf, ours in zip(perfs_samples(name), parse(our_text(name, symfs)), strict=True):
            for theirs, own in zip(perf.frames, ours.frames, strict=False):
                if theirs.sym != UNKNOWN:
                    same += theirs == own
                    different += theirs != own
    assert same > 17_000
    assert different < same / 50


def test_a_rule_is_no_blanket() -> None:
    """No rule explains real errors: another period, another address, a lost frame, another thread."""
    frames = [Frame(0x1000, "main+0x10", BLOCKER)]
    perf = Printed("blocker", None, 126, None, "13.5", 100, "offcpu-time", "", frames)

    def ours(**changes: Any) -> Printed:
        return Printed(**{**vars(perf), "pid": 126, "rest": "flags=-", **changes})

    for wrong in (
        ours(period=101), ours(tid=127), ours(comm="sleeper"), ours(time="-"), ours(event="cpu-clock"),
        ours(frames=[]), ours(frames=[Frame(0x1001, "main+0x11", BLOCKER)]),
        ours(frames=[Frame(0x1000, UNKNOWN, UNKNOWN)]),
        ours(frames=[*frames, Frame(0x2000, UNKNOWN, UNKNOWN)]),
    ):  # fmt: skip
        found = list(differences(Recording(), perf, wrong))
        assert found
        for one in found:
            assert not reasons_for(one)


ENTRIES = {
    "sleeper": "t_sleeper", "deep": "t_deep", "locker": "t_lock", "reader": "t_reader", "writer": "t_writer",
    "poller": "t_poll", "syncer": "t_sync", "stuck": "t_forever",
}  # fmt: skip
"""Thread of blocker.c → its function. Each waits in 10 rounds, `stuck` in one that main ends."""


def test_each_thread_has_its_own_waits(symfs: Path) -> None:
    """perf attributes all of them to the main thread."""
    waits = [sample for sample in parse(our_text("direct", symfs)) if sample.event == "offcpu-time"]
    assert {wait.pid for wait in waits} == {126}
    assert {wait.comm for wait in waits} == {*ENTRIES, "blocker", "perf-exec"}
    rounds: Counter[str] = Counter()
    for wait in waits:
        functions = {frame.sym.partition("+")[0] for frame in wait.frames if frame.dso == BLOCKER}
        assert functions & set(ENTRIES.values()) <= {ENTRIES.get(wait.comm)}, wait
        # Of t_deep's more than 100 frames, 32 are recorded, which do not reach it.
        rounds[wait.comm] += bool(functions & {ENTRIES.get(wait.comm), "recurse_then_sleep"})
    once_a_round = dict.fromkeys(("sleeper", "deep", "reader", "writer", "poller"), 10)
    assert {comm: rounds[comm] for comm in once_a_round} == once_a_round
    assert rounds["stuck"] == 1
    assert rounds["locker"] >= 20  # two threads that sleep in each round and may first wait for the lock
    assert rounds["syncer"] >= 10  # a write and an fsync in each
    assert len({wait.tid for wait in waits if wait.comm == "locker"}) == 2


def test_no_cookie_is_left_after_merging(symfs: Path) -> None:
    merged = parse(our_text("deferred", symfs))
    assert not [frame for sample in merged for frame in sample.frames if is_cookie(frame.ip) or "cookie" in frame.sym]
    assert not [sample for sample in merged if "unmerged" in sample.rest]
    cookies = [frame for sample in perfs_samples("deferred") for frame in sample.frames if is_cookie(frame.ip)]
    assert len(cookies) == 3  # perf's text has some


def test_unmerged_callchains_end_in_the_cookie_of_a_record(symfs: Path) -> None:
    samples = parse(our_text("deferred.unmerged", symfs))
    records = [sample for sample in samples if sample.event == DEFERRED]
    named = {int(re.sub(r"\[cookie: (.*)\]", r"\1", record.rest), 16) for record in records}
    waiting = [sample.frames[-1] for sample in samples if sample.event != DEFERRED]
    cookies = [frame for frame in waiting if frame.sym == "(cookie)"]
    assert len(records) == 506
    assert len(cookies) == len(waiting) - 1 == 543  # one was not deferred
    assert {frame.ip for frame in cookies} <= named
    assert all(sample.period is None for sample in records)
    assert (np.diff([float(sample.time) for sample in samples]) >= 0).all()
