# SPDX-License-Identifier: Apache-2.0
"""Write the page of a thread of `top`: its last minute, its times, what it waits for now, single waits, and stacks."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.holders import holders_of
from perf_offcpu.callpaths.keys import column_of
from perf_offcpu.model.columns import I32, I64, Bool, distinct
from perf_offcpu.model.recording import SUM_FLAGS
from perf_offcpu.report.style import pad
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable, thread_label
from perf_offcpu.top import plain
from perf_offcpu.top.interval import Interval, comm_at

_STACKS: Final = 30
_WAITS: Final = 12
_MOST_WAITS: Final = 500
_MINUTE_S: Final = 60
_LEVELS: Final = " ▁▂▃▄▅▆▇█"


@frozen
class Moment:
    """Times of the threads in one interval, ns; one row a thread."""

    seconds: float  # length of the interval
    tid: I32
    blocked: I64
    runnable: I64
    running: I64
    now: int  # number of threads blocked at the end of the interval


class History:
    """Times of the threads in the intervals of the last minute; the intervals themselves are dropped."""

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque()

    def add(self, interval: Interval, now: int) -> None:
        """Add an interval in which `now` threads were blocked at the end."""
        lives = interval.lives
        blocked = lives.blocked_ns()
        running = np.zeros_like(blocked) if lives.running is None else lives.running
        self._moments.append(Moment(interval.seconds, lives.tid, blocked, lives.runnable, running, now))
        while sum(moment.seconds for moment in self._moments) > _MINUTE_S and len(self._moments) > 1:
            self._moments.popleft()

    def now(self) -> list[int]:
        """Return the number of threads that were blocked at the end of each interval."""
        return [moment.now for moment in self._moments]

    def shares(self, name: str, tids: I32) -> list[float]:
        """Return for each interval s/s that the threads `tids` spent in a state (`name`: blocked, runnable,
        running)."""
        return [
            float(getattr(moment, name)[np.isin(moment.tid, tids)].sum()) / 1e9 / moment.seconds
            for moment in self._moments
        ]


def sparkline(values: Sequence[float], most: float | None = None) -> str:
    """Draw a bar of one character for each value, full at `most` (None: the largest value)."""
    most = max(values, default=0) if most is None else most
    levels = len(_LEVELS) - 1
    return "".join(_LEVELS[min(levels, int(-(-value * levels // most)))] if most else " " for value in values)


def page(interval: Interval, history: History) -> list[str]:
    """Return the lines of the page of a thread, the only one chosen in the interval."""
    return [*_states(interval, history), *_blocked(interval), *_waits(interval), *stack_lines(interval)]


def _states(interval: Interval, history: History) -> Iterator[str]:
    """Yield a line for each state: seconds per second now, and in the last minute."""
    tids = interval.lives.tid[interval.lives_chosen]
    if not len(tids):  # chosen by a key of waits
        tids = distinct(interval.profile.samples.tid[interval.chosen])
    if not len(tids):
        return
    for name, label in (("running", "Running"), ("runnable", "For a CPU"), ("blocked", "Blocked")):
        if shares := history.shares(name, tids):
            yield f"{label:<9} {shares[-1]:.3f} s/s; last minute: {sparkline(shares, max(1, len(tids)))}"
    yield ""


def _blocked(interval: Interval) -> Iterator[str]:
    """Yield the lines of the chosen waits that have not ended."""
    rows = np.flatnonzero(interval.now())
    if len(rows):
        yield "Blocked now:"
        yield from _lines(interval, rows[:_WAITS])
        yield ""


def _waits(interval: Interval) -> Iterator[str]:
    """Yield the lines of the longest chosen waits that ended."""
    samples, rows = interval.whole, _single(interval)
    longest = rows[np.argsort(-samples.period[rows], kind="stable")][:_WAITS]
    if len(longest):
        yield f"Waits that ended, the longest {len(longest)} of {_ended(interval)}:"
        yield from _lines(interval, longest)
        yield ""


def wait_lines(interval: Interval) -> list[str]:
    """Return the lines of the chosen waits: those that have not ended, then the others, latest first, without sums."""
    rows = _single(interval)
    latest = rows[np.argsort(-interval.whole.time_ns[rows], kind="stable")][:_MOST_WAITS]
    title = f"Waits that ended, the latest {len(latest)} of {_ended(interval)}:"
    return [*_blocked(interval), title, *_lines(interval, latest)]


def _single(interval: Interval) -> I64:
    """Return the rows of the chosen waits that ended, without sums."""
    samples = interval.whole
    single: Bool = interval.chosen & ~interval.now() & ~samples.has(SUM_FLAGS) & (samples.time_ns >= 0)
    return np.flatnonzero(single)


def _ended(interval: Interval) -> int:
    """Return the number of chosen waits that ended, also those in sums."""
    return int(interval.whole.count[interval.chosen & ~interval.now()].sum())


def _lines(interval: Interval, rows: I64) -> Iterator[str]:
    """Yield a line for each wait in `rows`: length, when it ended, class, system call, object, holder or waker."""
    profile, samples = interval.profile, interval.whole
    labels = [column_of(key, profile, interval.waits)[1] for key in ("syscall", "object", "waker")]
    held = holders_of(profile).known()
    for row in rows.tolist():
        ago = (interval.end_ns - int(samples.time_ns[row])) / 1e9
        syscall, thing, waker = (label(row) for label in labels)
        label, is_now = WaitClass(interval.waits.wait_class[row]).label, bool(interval.now()[row])
        texts = [label, f"in {syscall}"] + ([f"on {thing}"] if thing != label else [])
        if held[row] >= 0:
            tid = int(held[row])
            texts.append(f"held by {thread_label(comm_at(profile, tid, interval.end_ns))} {tid}")
        elif not is_now:
            texts.append(f"woken by {waker}")
        length = pad(plain.milliseconds(int(samples.period[row])), 12, False)
        when = "so far" if is_now else f"{ago:.3f} s ago"
        yield printable(f"{length} ms, {when}: {', '.join(texts)}")


def stack_lines(interval: Interval) -> list[str]:
    """Return the lines of the stacks of the chosen waits, longest blocked first, innermost function first."""
    lines: list[str] = []
    for stack in interval.stacks(_STACKS):
        lines.append(f"{plain.per_second(stack.weight, interval)} s/s  {stack.comm}")
        lines += [f"    {label}" for label in reversed(stack.labels)]
        lines.append("")
    return lines or ["no waits in this interval"]
