# SPDX-License-Identifier: Apache-2.0
"""Count recorded waits with stacks that reach the root, by comm: for tests and benchmarks."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from builders.compiled import build
from builders.program import run
from builders.stock_perf import perf

from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Recording, SampleFlag
from perf_offcpu.objects.search import Search
from perf_offcpu.symbolize.symbolizer import symbolize
from perf_offcpu.unwind.unwinder import unwind

AS_POSTGRES = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups")
STACKS = Path(__file__).parents[1] / "workload" / "stacks"
BASH = "for i in 1 2 3 4 5; do sleep 0.01 | cat; read -t 0.01 x; done; (sleep 0.02); wait"
ENOUGH = 0.99  # share of waits, and of their time, that have to reach the root
ROOTS = {"_start", "clone", "clone3", "__clone", "__clone3", "__GI___clone3", "[libc.so.6]"}
"""The last: clone3() is not exported, so that it has no name where libc's debug symbols are not installed."""
_USER_HALF = np.uint64(1 << 63)


@dataclass(frozen=True)
class Wholeness:
    """Waits of one comm: their number, those with whole stacks, and mean user depths, unwound and by fp."""

    waits: int
    whole: int
    depth: float
    fp_depth: float


def compiled(name: str, directory: Path, *flags: str) -> Path:
    """Build a program of tests/workload/stacks as distributions do: optimized, without frame pointers."""
    return build(STACKS / name, directory / Path(name).stem, "-O2", "-fomit-frame-pointer", *flags)


def record(output: Path, *arguments: str | Path, options: tuple[str, ...] = (), event: str = "none") -> None:
    """Record a command's waits of 0.1 ms and more, and an on-CPU event, without compression: tests look into files."""
    how = ("-q", "-z0", "-e", event, "--off-cpu-thresh", "0.1", *options, "-o", str(output))
    run("record", *how, "--", *arguments, timeout_s=120)


def blocks_of_perf(path: Path, word: str) -> list[list[str]]:
    """Return the words of each sample that stock perf prints with event and symbols, if `word` is in it."""
    text = perf("script", "-i", path, "--no-inline", "-F", "event,ip,sym")
    return [block.split() for block in text.split("\n\n") if word in block]


def waits(recording: Recording) -> np.ndarray:
    flags = recording.samples.flags
    off, aggregated = np.uint32(SampleFlag.OFFCPU), np.uint32(SampleFlag.AGGREGATED)
    return np.flatnonzero((flags & (off | aggregated)) == off)


def user_depths(recording: Recording, rows: np.ndarray) -> np.ndarray:
    chains = recording.callchains.take(recording.samples.callchain[rows])
    return np.bincount(chains.row_of_value()[chains.values < _USER_HALF], minlength=len(rows))


def wholeness(path: Path) -> dict[str, Wholeness]:
    recorded = load_recording(path, snapshots=True)
    unwound = unwind(recorded, Search.usual())
    unwound.check()
    found = {}
    rows = waits(recorded)
    comms = recorded.samples.comm[rows]
    for comm in np.unique(comms).tolist():
        mine = rows[comms == comm]
        cut = (unwound.samples.flags[mine] & np.uint32(SampleFlag.TRUNCATED)) != 0
        depth, fp_depth = (float(user_depths(recording, mine).mean()) for recording in (unwound, recorded))
        whole = int((~cut & (recorded.samples.snapshot[mine] >= 0)).sum())
        found[recorded.strings[comm]] = Wholeness(len(mine), whole, depth, fp_depth)
    return found


@dataclass(frozen=True)
class SumWholeness:
    """Summed waits of one comm: their number and time, and number and time of those with whole stacks."""

    waits: int
    whole: int
    ns: int
    whole_ns: int


def sums(recording: Recording) -> np.ndarray:
    return np.flatnonzero(recording.samples.flags & np.uint32(SampleFlag.AGGREGATED))


def sum_wholeness(path: Path) -> dict[str, SumWholeness]:
    recorded = load_recording(path, snapshots=True)
    samples = unwind(recorded, Search.usual()).samples
    rows = sums(recorded)
    whole = (samples.flags[rows] & np.uint32(SampleFlag.TRUNCATED)) == 0
    whole &= recorded.samples.snapshot[rows] >= 0
    found = {}
    for comm in np.unique(samples.comm[rows]).tolist():
        chosen = rows[samples.comm[rows] == comm], rows[(samples.comm[rows] == comm) & whole]
        numbers = [int(column[some].sum()) for column in (samples.count, samples.period) for some in chosen]
        found[recorded.strings[comm]] = SumWholeness(*numbers)
    return found


def sums_by_stack(path: Path) -> dict[tuple[str, ...], tuple[int, int]]:
    """Return (waits, ns) of sums by the names of their user frames, leaf first."""
    recording = unwind(load_recording(path, snapshots=True), Search.usual())
    profile = symbolize(recording)
    found: dict[tuple[str, ...], tuple[int, int]] = {}
    for row in sums(recording).tolist():
        stack = _names(profile, int(profile.samples.stack[row]))
        waits, ns = found.get(stack, (0, 0))
        samples = profile.samples
        found[stack] = waits + int(samples.count[row]), ns + int(samples.period[row])
    return found


def user_stacks(path: Path) -> Counter[tuple[str, ...]]:
    """Count waits by the names of their user frames, leaf first; without symbol the file's in brackets."""
    recording = unwind(load_recording(path, snapshots=True), Search.usual())
    rows = waits(recording)
    profile = symbolize(recording)
    return Counter(_names(profile, int(profile.samples.stack[row])) for row in rows)


def _names(profile: Profile, stack: int) -> tuple[str, ...]:
    names = []
    while stack >= 0:
        frame = int(profile.stacks.frame[stack])
        if profile.frames.cpumode[frame] == 2:
            file = os.path.basename(profile.strings[int(profile.frames.dso[frame])])
            names.append(profile.strings[int(profile.frames.symbol[frame])] or f"[{file}]")
        stack = int(profile.stacks.parent[stack])
    return tuple(names)
