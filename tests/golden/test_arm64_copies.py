# SPDX-License-Identifier: Apache-2.0
"""A recording of arm64 with copies of stacks, of a program without frame pointers and a libc whose return addresses are
signed: read on any machine, stacks are those that were shown where it was made."""

import lzma
from pathlib import Path

import numpy as np
import pytest

from perf_offcpu import losses
from perf_offcpu.cli import main
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.objects.search import Search
from perf_offcpu.unwind.unwinder import unwind

DATA = Path(__file__).parents[1] / "data" / "arm64-copies"
FILES = {"waiter.xz": "tmp/w/waiter", "libc.so.6.xz": "usr/lib/aarch64-linux-gnu/libc.so.6"}


@pytest.fixture(scope="module")
def symfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the program had mapped, as far as the stacks need them."""
    root = tmp_path_factory.mktemp("symfs")
    for name, place in FILES.items():
        (root / place).parent.mkdir(parents=True)
        (root / place).write_bytes(lzma.decompress((DATA / name).read_bytes()))
    return root


def test_stacks_are_those_of_the_machine_itself(symfs: Path, tmp_path: Path) -> None:
    out, kallsyms = tmp_path / "folded", str(DATA / "kallsyms")
    files = ["-f", "--symfs", str(symfs), "--kallsyms", kallsyms]
    assert main(["convert", "--folded", "-i", str(DATA / "own.data"), "-o", str(out), *files]) == 0
    theirs = lzma.decompress((DATA / "folded.xz").read_bytes()).decode()
    assert sorted(out.read_text().splitlines()) == sorted(theirs.splitlines())
    assert "[truncated]" not in theirs


def test_every_wait_of_the_program_reaches_its_root(symfs: Path) -> None:
    recording = unwind(load_recording(DATA / "own.data", snapshots=True), Search(symfs=str(symfs)))
    samples = recording.samples
    waits = (samples.flags & SampleFlag.OFFCPU > 0) & (samples.flags & SampleFlag.NO_USER_STACK == 0)
    cut = samples.flags[waits] & SampleFlag.TRUNCATED > 0
    assert np.count_nonzero(waits) > 70
    assert np.count_nonzero(cut) <= 0.02 * np.count_nonzero(waits)
    assert recording.losses.get(losses.OUTSIDE_MAPS, 0) == 0


def test_return_addresses_in_the_copies_are_signed() -> None:
    """Otherwise the tests above show less than they say."""
    recording = load_recording(DATA / "own.data", snapshots=True)
    rows = np.arange(len(recording.snapshots))
    words = recording.snapshots.read_stacks(rows).words
    user = recording.maps.end < np.uint64(1 << 63)
    bits = int(recording.maps.end[user].max() - np.uint64(1)).bit_length()
    code = words & np.uint64((1 << bits) - 1)
    start, end = recording.maps.start[user], recording.maps.end[user]
    in_code = ((code[:, None] >= start) & (code[:, None] < end)).any(axis=1)
    assert np.count_nonzero(in_code & (words != code)) > 20


def test_waits_are_as_many_as_the_threads_counted_themselves() -> None:
    """By thread: its own count of voluntary switches, at its end; that of the last one is still blocked."""
    samples = load_recording(DATA / "own.data").samples
    waits = samples.flags & SampleFlag.OFFCPU > 0
    assert set(samples.pid[waits].tolist()) == {183}
    counted = {tid: int(samples.count[waits & (samples.tid == tid)].sum()) for tid in (183, *range(194, 207))}
    assert list(counted.values()) == [2, 8, 10, 4, 4, 4, 4, 3, 4, 7, 4, 50, 1, 1 + 1]
