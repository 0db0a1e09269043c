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
    """Times of all threads in one interval, ns; kept after the interval itself has been dropped."""

    seconds: float
    tid: I32
    blocked: I64
    runnable: I64
    running: I64
    now: int  # threads blocked at the end


class History:
    """Keeps the moments of the last minute."""

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
        """Return the share of each interval that threads spent in a state: blocked, runnable or running."""
        return [
            float(getattr(moment, name)[np.isin(moment.tid, tids)].sum()) / 1e9 / moment.seconds
            for moment in self._moments
        ]


def sparkline(values: Sequence[float], most: float | None = None) -> str:
    """Return one character per value, as high as the value in proportion to `most` (default: the largest value)."""
    most = max(values, default=0) if most is None else most
    levels = len(_LEVELS) - 1
    return "".join(_LEVELS[min(levels, int(-(-value * levels // most)))] if most else " " for value in values)


def page(interval: Interval, history: History) -> list[str]:
    """Return the lines of the page of the chosen waits and threads of an interval."""
    return [*_states(interval, history), *_blocked(interval), *_waits(interval), *stack_lines(interval)]


def _states(interval: Interval, history: History) -> Iterator[str]:
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
    rows = np.flatnonzero(interval.now())
    if len(rows):
        yield "Blocked now:"
        yield from _lines(interval, rows[:_WAITS])
        yield ""


def _waits(interval: Interval) -> Iterator[str]:
    """Yield the longest waits that ended, and how many are not shown."""
    samples, rows = interval.whole, _single(interval)
    longest = rows[np.argsort(-samples.period[rows], kind="stable")][:_WAITS]
    if len(longest):
        yield f"Waits that ended, the longest {len(longest)} of {_ended(interval)}:"
        yield from _lines(interval, longest)
        yield ""


def wait_lines(interval: Interval) -> list[str]:
    """Return the lines of the single waits of an interval, the latest first; sums have no times of single waits."""
    rows = _single(interval)
    latest = rows[np.argsort(-interval.whole.time_ns[rows], kind="stable")][:_MOST_WAITS]
    title = f"Waits that ended, the latest {len(latest)} of {_ended(interval)}:"
    return [*_blocked(interval), title, *_lines(interval, latest)]


def _single(interval: Interval) -> I64:
    """Return the rows of the waits that ended and are in no sum."""
    samples = interval.whole
    single: Bool = interval.chosen & ~interval.now() & ~samples.has(SUM_FLAGS) & (samples.time_ns >= 0)
    return np.flatnonzero(single)


def _ended(interval: Interval) -> int:
    """Return the number of waits that ended, those in sums among them."""
    return int(interval.whole.count[interval.chosen & ~interval.now()].sum())


def _lines(interval: Interval, rows: I64) -> Iterator[str]:
    """Yield a line for each wait: length, when it ended, class, system call, object, and by whom."""
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
    """Return the stacks of the chosen waits, longest blocked first, each with the innermost function first."""
    lines: list[str] = []
    for stack in interval.stacks(_STACKS):
        lines.append(f"{plain.per_second(stack.weight, interval)} s/s  {stack.comm}")
        lines += [f"    {label}" for label in reversed(stack.labels)]
        lines.append("")
    return lines or ["no waits in this interval"]
