# SPDX-License-Identifier: Apache-2.0
"""Choose the part of each minute to record, if whole minutes would cost more CPU time than `--max-cpu`.

On a busy machine recording may cost several times the budget: the BPF programs run at each context switch. A
pause until the budget has recovered would leave out half an hour, perhaps the one that matters later. So a
part of each minute is recorded, and the rest of it is a gap with the cause `budget`.

A file may stay open over a pause. Otherwise it ends with the pause and a new one begins after it, which has
to be described, read and symbolized, too: about half a second of CPU time. Where programs start all the time,
following them costs more than that.
"""

from __future__ import annotations

from typing import Final

from perf_offcpu.agent.budget.cpu import CpuBudget

COSTLY_S: Final = 0.5
"""CPU time of a recorder in a pause from which on a file for each part of a minute is cheaper."""
_FOR_S: Final = 600.0
"""Time after which the recorder follows processes again, to see whether that has become cheap."""


class Pauses:
    """The pauses of a recorder.

    Attributes:
        paused: recording is off until the next minute.
        following: the recorder follows processes meanwhile.
    """

    def __init__(self) -> None:
        self.paused = self.following = False
        self._cpu_s, self._costly_until_s = 0.0, 0.0

    def begin(self, now_s: float, cpu_s: float, is_short: bool) -> None:
        """Begin a pause.

        Args:
            cpu_s: CPU time of the recorder up to now.
            is_short: it ends with the minute.
        """
        self.paused, self.following = True, is_short and now_s >= self._costly_until_s
        self._cpu_s = cpu_s

    def look(self, now_s: float, cpu_s: float) -> None:
        """Note at the end of a minute the CPU time of following processes; arguments as of `begin`."""
        if self.following and cpu_s - self._cpu_s > COSTLY_S:
            self._costly_until_s = now_s + _FOR_S
        self._cpu_s = cpu_s


MINUTE_S: Final = 60.0
LEAST_S: Final = 3.0
"""Shortest part of a minute, unless the budget is overdrawn by more than `DEEPEST` bursts: then none."""
DEEPEST: Final = 2.0
"""Number of bursts; a burst is the CPU time that may be spent at once."""
_SURPRISE: Final = 0.5
"""Number of bursts by which one minute may overdraw the budget."""
_REPAID_S: Final = 600.0
"""Time in which an overdraft is compensated."""
_SMOOTHING: Final = 0.3
"""Weight of the last minute in the averages: its recordings are delivered later, in others."""
_WHOLE: Final = 0.9
"""Part above which the whole minute is recorded: each begin and end of a file costs CPU time, too."""
_ROOM: Final = 0.8
"""Part of the budget below which whole minutes are recorded even during an overdraft."""
_UNPROVEN: Final = 6
"""Number of minutes after which the cost of whole minutes is known: segments are delivered by then."""
_PER_BPF: Final = 2.0
"""Least ratio of the CPU time of recording to that of its BPF programs; new processes increase it."""
_FORGOTTEN: Final = 0.98
"""Factor by which an increased ratio decreases each minute, so that whole minutes are tried again."""


class Duty:
    """The part of each minute that is recorded.

    Attributes:
        recorded_s: seconds of each minute, from its start on, that are recorded; `MINUTE_S` or more: all.
    """

    def __init__(self) -> None:
        self.recorded_s = MINUTE_S
        self._cost_s, self._seconds, self._before_s = 0.0, 0.0, 0.0
        self._unproven = 0  # minutes
        self._per_bpf = _PER_BPF
        self._level_s = 0.0  # of the budget when the minute began

    @property
    def is_whole(self) -> bool:
        """Return whether whole minutes are recorded."""
        return self.recorded_s >= MINUTE_S

    def ends_early(self, budget: CpuBudget) -> bool:
        """Return whether the rest of this minute must be left out: it costs much more than was expected."""
        allowed = min(self._level_s, 0.0) - _SURPRISE * budget.limit_s
        return budget.is_counting and budget.level_s < allowed

    def adapt(self, budget: CpuBudget, recorded_s: float, bpf_share: float, segment_s: float) -> bool:
        """Choose the part at the end of a minute.

        Args:
            recorded_s: seconds of this minute that were recorded.
            bpf_share: part of a CPU that the BPF programs take while they record.
            segment_s: length of a segment when whole minutes are recorded.

        Returns:
            Whether pauses begin or end with this choice.
        """
        self._unproven = max(0, self._unproven - 1)
        was_whole, spent = self.is_whole, budget.spent_s - self._before_s
        is_measured = was_whole and recorded_s >= MINUTE_S
        self._before_s, self._level_s = budget.spent_s, budget.level_s
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
        if was_whole == self.is_whole:
            return False
        self._unproven = _UNPROVEN if self.is_whole else 0
        return True

    def _choose(self, budget: CpuBudget, whole_s: float) -> float:
        """Return the seconds to record; `whole_s` is the CPU time of a minute of which all is recorded."""
        level, limit = budget.level_s, budget.limit_s
        if level < -DEEPEST * limit:
            return 0.0
        each = max(self._cost_s / self._seconds if self._seconds else 0.0, 1e-6)
        allowed = MINUTE_S * budget.part + (min(0.0, level - limit / 2) * MINUTE_S / _REPAID_S)
        room_s = max(allowed, _ROOM * MINUTE_S * budget.part)
        patient = self.is_whole and level > (-limit / 2 if self._unproven else 0)
        if patient or whole_s <= room_s:
            return MINUTE_S
        part = max(LEAST_S, allowed / each)
        return MINUTE_S if part >= _WHOLE * MINUTE_S else part
