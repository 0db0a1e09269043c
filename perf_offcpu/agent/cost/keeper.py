# SPDX-License-Identifier: Apache-2.0
"""Keep a running agent to `--max-cpu`: measure its CPU time, and choose how much it records. As the cost approaches the
budget, first segments become longer, then a part of each minute is recorded; last, the sampling period rises."""

import time
from collections.abc import Callable
from typing import Final

from perf_offcpu.agent.config import AgentConfig
from perf_offcpu.agent.cost.budget import LEAST_S, MINUTE_S, RECENT_S, CpuBudget, Duty, Pauses
from perf_offcpu.agent.cost.parts import Cost
from perf_offcpu.agent.metrics import Metrics
from perf_offcpu.agent.recorder import PAUSE, RESUME, ROTATE, Recorder

LONGEST_SEGMENT_S: Final = 300.0
_WINDOW_S: Final = 240.0
_SHORTEST_PAUSE_S: Final = 1.0
_LONGER_ABOVE, _SHORTER_BELOW = 0.9, 0.4


COST_OF_SAMPLE_S: Final = 1e-4
"""CPU time of one sample, from the ring to the dataset, which a longer period saves for each sample not taken."""
MAX_RAISE: Final = 64
_LOWER_BELOW: Final = 0.6
_LEAST_S: Final = 600.0
_KNOWN_S: Final = 240.0  # least time over which the cost is measured before the period changes


class _Factor:
    """Base of a setting that is doubled and halved; `factor`: the chosen value divided by the configured one."""

    def __init__(self) -> None:
        self.factor, self._changed_s = 1, float("-inf")

    def _step(self, raised: bool, lowered: bool, now_s: float) -> bool:
        """Double `factor` if `raised`, else halve it if `lowered`, to 1 at least; return True and keep `now_s` if
        changed."""
        if not raised and not (lowered and self.factor > 1):
            return False
        self.factor = 2 * self.factor if raised else self.factor // 2
        self._changed_s = now_s
        return True


class SegmentLength(_Factor):
    """Length of segments, configured as `base_s`: longer ones if the budget is nearly spent, because each has a fixed
    cost. Begin and end of a file, reading it, and symbols of running programs are half of the CPU time of an agent with
    segments of one minute. Longer segments lose nothing."""

    def __init__(self, base_s: float) -> None:
        super().__init__()
        self.base_s = base_s

    @property
    def seconds(self) -> float:
        """Return the present length of segments, s."""
        return max(self.base_s, min(LONGEST_SEGMENT_S, self.base_s * self.factor))

    @property
    def is_longest(self) -> bool:
        """Return True if segments have their greatest length."""
        return self.seconds >= LONGEST_SEGMENT_S

    def adapt(self, budget: CpuBudget, now_s: float) -> bool:
        """Choose the length of the next segments; return True if it changed."""
        if not budget.is_counting or now_s - self._changed_s < 2 * self.seconds:
            return False
        share = budget.recent(max(_WINDOW_S, 2 * self.seconds)) / budget.part
        return self._step(share > _LONGER_ABOVE and not self.is_longest, share < _SHORTER_BELOW, now_s)


class Period(_Factor):
    """Sampling period, configured as `base_ns`: raised if samples take much of an overspent budget."""

    def __init__(self, base_ns: int) -> None:
        super().__init__()
        self.base_ns = base_ns

    @property
    def ns(self) -> int:
        """Return the present sampling period, ns."""
        return self.base_ns * self.factor

    def adapt(self, budget: CpuBudget, samples_per_s: float, now_s: float) -> bool:
        """Choose the period of the next segments; return True if it changed."""
        if not budget.is_counting or budget.noted_s < _KNOWN_S or now_s - self._changed_s < _LEAST_S:
            return False
        share, sampled = budget.recent() / budget.part, samples_per_s * COST_OF_SAMPLE_S / budget.part
        is_raised = share > 1 and sampled > 0.3 and self.factor < MAX_RAISE
        return self._step(is_raised, share + sampled < _LOWER_BELOW, now_s)


class BudgetKeeper:
    """Keeper of the CPU budget: chooses period, length of segments, and pauses. `say`: writes to the journal."""

    def __init__(self, config: AgentConfig, metrics: Metrics, say: Callable[[str], None]) -> None:
        self.pauses = Pauses()
        self.resumed_s = 0.0  # time.monotonic() at the end of the last pause; 0 none
        self._config, self._metrics, self._say = config, metrics, say
        self._cost, self._budget = Cost(), CpuBudget(config.max_cpu)
        self.bpf = self._cost.bpf
        self.period, self.length = Period(config.period_ns), SegmentLength(config.segment_s)
        self._duty, self._minute_s, self._recorded_s = Duty(), time.monotonic(), 0.0
        self._began_s, self._since_s = self._minute_s, 0.0  # begin of the agent; of recording in this minute, 0 none
        self._is_over = self._is_partial = False  # the part of this minute is recorded; not whole minutes are
        metrics.set("recorded_part", 1)

    def change(self, config: AgentConfig) -> None:
        """Use another configuration from now on."""
        before, self._config = self._config, config
        self._budget.change(config.max_cpu)
        self.period = self.period if before.period_ns == config.period_ns else Period(config.period_ns)
        self.length = SegmentLength(config.segment_s)

    def measure(self, recorder: Recorder | None) -> None:
        """Measure CPU time and memory of all parts of the agent; account them, and set their metrics."""
        metrics, cost = self._metrics, self._cost
        cost.measure(recorder)
        parts, now = cost.parts(), time.monotonic()
        self._budget.note(sum(parts.values()), now)
        if not self._budget.is_counting and now - self._began_s > RECENT_S:  # no segment can be delivered
            self._budget.begin(now)
        for part, seconds in parts.items():
            metrics.set("cpu_seconds_total", seconds, part)
        for part, size in cost.memory(recorder).items():
            metrics.set("resident_bytes", size, part)
        metrics.set("cpu_share", self._budget.recent())
        metrics.set("cpu_share_limit", self._config.max_cpu)

    def after_segment(self, samples: float, seconds: float, recorder: Recorder | None) -> None:
        """Choose length and period of the next segments, after one with `samples` in `seconds` was delivered."""
        now, budget = time.monotonic(), self._budget
        if not budget.is_counting:
            budget.begin(now)
        if self.length.adapt(budget, now):
            self._say(f"--max-cpu: segments of {self.length.seconds:.0f} s from here on")
            return
        if not self.length.is_longest and self.period.factor == 1:
            return  # longer segments first: they lose nothing
        before = self.period.ns
        if self._duty.is_whole and self.period.factor == 1:
            return  # a part of each minute next: it is recorded as before
        samples *= min(1.0, self._duty.recorded_s / MINUTE_S)
        if seconds > 0 and self.period.adapt(budget, samples / seconds, now):
            word = "raised" if self.period.ns > before else "lowered"
            self._metrics.add("budget_raises_total", float(self.period.ns > before))
            self._say(f"--max-cpu: the period is {word} to {self.period.ns / 1e6:g} ms")
            self._metrics.set("period_seconds", self.period.ns / 1e9)
            if recorder is not None:
                recorder.command(f"period {self.period.ns}ns")

    def keep_duty(self, now: float, recorder: Recorder | None) -> float:
        """Pause or resume the recorder, to record the chosen part of this minute; return when to call again, monotonic
        s."""
        is_recording = recorder is not None and recorder.is_recording and not self.pauses.paused
        self._since_s = (self._since_s or now) if is_recording else 0.0
        if now >= self._minute_s + MINUTE_S:
            self._begin_minute(now)
        duty, end_s = self._duty, self._minute_s + MINUTE_S
        begin_s, recorded_s = self._minute_s + duty.begin_s, self._recorded(now)
        if self.pauses.paused:
            if not self._is_over and now >= begin_s:
                self._end_pause(now, recorder)
            return end_s if self._is_over else begin_s
        early = duty.ends_early(self._budget) and recorded_s >= LEAST_S
        self._is_over = early or recorded_s >= duty.recorded_s < MINUTE_S
        if self._is_over or now < begin_s - _SHORTEST_PAUSE_S:
            self._begin_pause(now, recorder)
            return end_s if self._is_over else begin_s
        return min(end_s, now + max(0.0, duty.recorded_s - recorded_s)) if is_recording else end_s

    def _recorded(self, now: float) -> float:
        """Return the seconds of this minute that have been recorded."""
        return self._recorded_s + (now - self._since_s if self._since_s else 0.0)

    def _begin_minute(self, now: float) -> None:
        recorded_s, self._recorded_s, self._minute_s, self._is_over = self._recorded(now), 0.0, now, False
        self._since_s = now if self._since_s else 0.0
        self._duty.adapt(self._budget, recorded_s, self.bpf.share(), self.length.seconds)
        if recorded_s < LEAST_S and not self.pauses.paused:
            self._duty.begin_s = 0.0  # the recorder was starting
        self._metrics.set("recorded_part", min(1.0, self._duty.recorded_s / MINUTE_S))
        if self._is_partial and self._duty.is_whole:
            self._is_partial = False
            self._say(f"--max-cpu {self._config.max_cpu:.3%}: whole minutes are recorded again")

    def _begin_pause(self, now: float, recorder: Recorder | None) -> None:
        if not self._is_partial:
            self._is_partial = True
            self._say(
                f"--max-cpu {self._config.max_cpu:.3%}: a part of each minute is recorded, at least {LEAST_S:g} s"
            )
        self._recorded_s, self._since_s = self._recorded(now), 0.0
        self._metrics.add("budget_pauses_total")
        self.pauses.begin(now, recorder.cpu_s() if recorder else 0.0)
        if recorder is not None:
            recorder.command(PAUSE)
            if not self.pauses.following:
                recorder.command(ROTATE)

    def _end_pause(self, now: float, recorder: Recorder | None) -> None:
        self.pauses.end(now, recorder.cpu_s() if recorder else 0.0)
        self.resumed_s = now
        if recorder is not None:
            recorder.command(RESUME)
