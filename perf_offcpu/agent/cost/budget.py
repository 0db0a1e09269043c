# SPDX-License-Identifier: Apache-2.0
"""Compare the CPU time of the agent with `--max-cpu`, and choose the part of each minute to record.

A bucket fills at a constant rate up to a limit. Spending takes an amount out, and the level may fall below 0. The rate
is chosen so that no window of `window_s` seconds exceeds its share, even if the bucket is full when the window begins.

On a busy machine recording may cost several times the budget: the BPF programs run at each context switch. A pause
until the budget has recovered would leave out half an hour, perhaps the one that matters later. So a part of each
minute is recorded, whatever the debt, and the rest of it is a gap with the cause `budget`. The part begins at a random
moment of the minute: what programs do at each full minute must be seen neither always nor never.

A file may stay open over a pause. Otherwise it ends with the pause and a new one begins after it, which has to be
described, read and symbolized: about half a second of CPU time. Following many short programs costs more."""

import random
from collections import deque
from typing import Final

BURST: Final = 1 / 12  # part of a window's share that may be spent at once


class Bucket:
    """Budget (token bucket) of `share` units per window of `window_s` seconds; `level`: what may be spent now, at first
    `limit`, and negative after overspending."""

    def __init__(self, share: float, window_s: float, now_s: float) -> None:
        self._window_s, self._at = window_s, now_s
        self._set(share)
        self.level = self.limit

    def _set(self, share: float) -> None:
        self.limit, self._rate = share * BURST, share * (1 - BURST) / self._window_s

    def spend(self, amount: float, now_s: float) -> None:
        """Refill the budget for the time since the last call, then take `amount` out of it; `now_s`: monotonic s."""
        self.level = min(self.limit, self.level + max(0.0, now_s - self._at) * self._rate) - amount
        self._at = now_s

    def change(self, share: float) -> None:
        """Allow `share` units per window; what may be spent at once, and what is left of it, change likewise."""
        part = self.level / self.limit if self.limit else 1.0
        self._set(share)
        self.level = part * self.limit


HOUR_S: Final = 3600.0
RECENT_S: Final = 600.0
_START_PART: Final = 0.5  # largest part of the budget that repays the start


class CpuBudget:
    """Account of the CPU time of the agent against `part`, the part of one CPU that --max-cpu allows."""

    def __init__(self, part: float) -> None:
        self.part = part
        self.is_counting = False  # set by `begin`; CPU time of the start (compiling, first symbols) is repaid later
        self._start_s = self._repaid_s = 0.0  # CPU time of the start that is not repaid yet; repaid each second
        self.bucket = Bucket(part * HOUR_S, HOUR_S, 0.0)  # of CPU seconds
        self._notes: deque[tuple[float, float]] = deque()  # (time, CPU time so far)

    def begin(self, now_s: float) -> None:
        """Begin to count CPU time against the budget, which is full. CPU time so far is counted bit by bit over an
        hour, or longer if it would take more than half of the budget: counted at once, it would stop recording."""
        self.bucket = Bucket(self.part * HOUR_S, HOUR_S, now_s)
        self._start_s = self.spent_s
        self._repaid_s = min(self._start_s / HOUR_S, _START_PART * self.part)
        while len(self._notes) > 1:
            self._notes.popleft()
        self.is_counting = True

    def note(self, cpu_s: float, now_s: float) -> None:
        """Note the total CPU time of all parts of the agent so far, s, and spend its increase."""
        spent = cpu_s - self._notes[-1][1] if self._notes else 0.0
        elapsed_s = now_s - self._notes[-1][0] if self._notes else 0.0
        self._notes.append((now_s, cpu_s))
        while len(self._notes) > 2 and self._notes[1][0] <= now_s - RECENT_S:
            self._notes.popleft()
        if self.is_counting:
            repaid = min(self._start_s, self._repaid_s * elapsed_s)
            self._start_s -= repaid
            self.bucket.spend(max(0.0, spent) + repaid, now_s)

    def change(self, part: float) -> None:
        """Set another part of one CPU as limit."""
        self.part = part
        self.bucket.change(part * HOUR_S)
        self._repaid_s = min(self._repaid_s, _START_PART * part)

    @property
    def free_part(self) -> float:
        """Return the part of one CPU that may be used now: `part` minus the repayment of the start's CPU time."""
        return self.part - (self._repaid_s if self._start_s > 0 else 0.0)

    @property
    def spent_s(self) -> float:
        """Return the total CPU time noted last, s."""
        return self._notes[-1][1] if self._notes else 0.0

    @property
    def noted_s(self) -> float:
        """Return the seconds between the oldest kept measurement of CPU time and the newest; 0 without one."""
        return self._notes[-1][0] - self._notes[0][0] if self._notes else 0.0

    def recent(self, window_s: float = RECENT_S) -> float:
        """Return the CPU time of the last `window_s` seconds, or since the first note, as a part of one CPU."""
        if not self._notes:
            return 0.0
        last_s, after = self._notes[-1]
        first_s, before = next(note for note in self._notes if note[0] >= last_s - window_s)
        return (after - before) / (last_s - first_s) if last_s > first_s else 0.0


COSTLY_S: Final = 0.5  # CPU time of a recorder in a pause above which a new file after the pause is cheaper
_FOR_S: Final = 600.0  # time after which the recorder follows processes again, to see whether that has become cheap


class Pauses:
    """State of a recorder that pauses in each minute. `following`: it keeps its file open in the pause and follows new
    processes, which is too costly if many programs start."""

    def __init__(self) -> None:
        self.paused = self.following = False
        self._cpu_s, self._costly_until_s = 0.0, 0.0  # CPU time of the recorder as the pause began

    def begin(self, now_s: float, cpu_s: float) -> None:
        """Begin a pause, with the file open and new processes followed (`following`) if that was not costly in the last
        _FOR_S. `now_s`: monotonic s; `cpu_s`: CPU time of the recorder so far."""
        self.paused, self.following = True, now_s >= self._costly_until_s
        self._cpu_s = cpu_s

    def end(self, now_s: float, cpu_s: float) -> None:
        """End a pause; if following new processes in it took over COSTLY_S of CPU time, pauses of the next _FOR_S do
        without. `now_s`: monotonic s; `cpu_s`: CPU time of the recorder so far."""
        self.paused = False
        if self.following and cpu_s - self._cpu_s > COSTLY_S:
            self._costly_until_s = now_s + _FOR_S


MINUTE_S: Final = 60.0
LEAST_S: Final = 3.0
"""Shortest part of a minute that is recorded, whatever it costs."""
_SURPRISE: Final = 0.5  # bursts (CPU time that may be spent at once) by which one minute may overdraw the budget
_REPAID_S: Final = 600.0  # time in which an overdraft is compensated
_SMOOTHING: Final = 0.3  # weight of the last minute in the averages: its recordings are delivered in later minutes
_WHOLE: Final = 0.9  # part above which the whole minute is recorded: each begin and end of a file costs CPU time, too
_ROOM: Final = 0.8  # part of the budget below which whole minutes are recorded even during an overdraft
_UNPROVEN: Final = 6  # number of minutes after which the cost of whole minutes is known: segments are delivered by then
_PER_BPF: Final = 2.0  # least ratio of the CPU time of recording to that of its BPF programs; new processes increase it
_FORGOTTEN: Final = 0.98
"""Factor by which an increased ratio decreases each minute, so that whole minutes are tried again."""


class Duty:
    """Choice of the part of each minute that is recorded, by the CPU budget: `recorded_s` seconds from `begin_s` on."""

    def __init__(self) -> None:
        self.recorded_s = MINUTE_S  # MINUTE_S or more: the whole minute
        self.begin_s = 0.0  # s since the begin of the minute
        self._cost_s = self._seconds = self._before_s = 0.0  # averages: CPU time, recorded time; CPU time so far
        self._unproven, self._unproven_level_s = 0, 0.0  # minutes left to prove; level of the budget when they began
        self._per_bpf = _PER_BPF
        self._level_s = 0.0  # level of the budget when the minute began

    @property
    def is_whole(self) -> bool:
        """Return True if whole minutes are recorded."""
        return self.recorded_s >= MINUTE_S

    def ends_early(self, budget: CpuBudget) -> bool:
        """Return True if this minute has cost so much more than expected that the rest of it must not be recorded."""
        allowed = min(self._level_s, 0.0) - _SURPRISE * budget.bucket.limit
        return budget.is_counting and budget.bucket.level < allowed

    def adapt(self, budget: CpuBudget, recorded_s: float, bpf_share: float, segment_s: float) -> bool:
        """Choose the part of the next minute to record; return True if it changes between whole minutes and parts.
        `recorded_s`: recorded seconds of the past minute; `bpf_share`: part of a CPU that the BPF programs take while
        they record; `segment_s`: length of a segment when whole minutes are recorded."""
        self._unproven = max(0, self._unproven - 1)
        was_whole, spent = self.is_whole, budget.spent_s - self._before_s
        is_measured = was_whole and recorded_s >= MINUTE_S
        self._before_s, self._level_s = budget.spent_s, budget.bucket.level
        if not budget.is_counting:
            return False
        keep = 1 - _SMOOTHING if self._seconds else 0.0
        self._cost_s = keep * self._cost_s + (1 - keep) * spent
        self._seconds = keep * self._seconds + (1 - keep) * recorded_s
        self._per_bpf = max(_PER_BPF, _FORGOTTEN * self._per_bpf)
        if is_measured and bpf_share > 0:
            self._per_bpf = max(self._per_bpf, self._cost_s / (MINUTE_S * bpf_share))
        # A minute recorded in part has a begin and an end of a file, which may cost most.
        once_s = max(0.0, self._cost_s - self._per_bpf * bpf_share * self._seconds)
        expected_s = MINUTE_S * (self._per_bpf * bpf_share + once_s / segment_s)
        self.recorded_s = self._choose(budget, self._cost_s if is_measured else expected_s)
        self.begin_s = random.uniform(0, MINUTE_S - self.recorded_s)
        if was_whole == self.is_whole:
            return False
        self._unproven, self._unproven_level_s = (_UNPROVEN if self.is_whole else 0), min(0.0, self._level_s)
        return True

    def _choose(self, budget: CpuBudget, whole_s: float) -> float:
        """Return the seconds of a minute to record; `whole_s`: CPU time of a minute that is recorded as a whole."""
        level, limit = budget.bucket.level, budget.bucket.limit
        each = max(self._cost_s / self._seconds if self._seconds else 0.0, 1e-6)
        allowed = MINUTE_S * budget.free_part + (min(0.0, level - limit / 2) * MINUTE_S / _REPAID_S)
        room_s = max(allowed, _ROOM * MINUTE_S * budget.free_part)
        patient = self.is_whole and level > (self._unproven_level_s - limit / 2 if self._unproven else 0)
        if patient or whole_s <= room_s:
            return MINUTE_S
        part = max(LEAST_S, allowed / each)
        return MINUTE_S if part >= _WHOLE * MINUTE_S else part
