# SPDX-License-Identifier: Apache-2.0
"""Account for the agent's time, also over restarts: recorded time, missing time, and the causes.

    end of the last delivered segment ──> begin of the next: a gap, with its cause

Each segment is accounted once, in order, after its delivery. Time between two segments (the recorder did not
run, the spool was full, a file was damaged) is therefore a gap, even if nothing else noticed the loss. So the
times of segments and gaps add up to the time from the first segment to the last.

Marks say when recording went off, and why, and when it went on. They split a gap by causes, and tell the gap that
lasts, before the next segment is delivered."""

import functools
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from perf_offcpu.agent.journal import Problem
from perf_offcpu.agent.metrics import Metrics
from perf_offcpu.agent.spool import STATE, Spool, run_of
from perf_offcpu.files import read_kernel
from perf_offcpu.model.recording import Spans

VERSION: Final = 1
UNKNOWN: Final = "unknown"
BUDGET: Final = "budget"  # cause of gaps: the recorder pauses to keep to --max-cpu, which is its only reason to pause
STOPPED: Final = "stopped"  # no agent ran
ON: Final = ""  # in place of a cause: it is recorded
CLOCK_STEP_NS: Final = 100_000_000
LOOK_NS: Final = 60 * 10**9  # time of which marks are kept after its segments are delivered
_MARKS: Final = 4096  # largest number of marks: spool and state stay small where nothing can be delivered
_KEPT: Final = 64  # largest number of causes, and of origins
_AFTER: Final = "~"
"""Last character of the key of a gap: the key sorts between the names of the recordings around the gap."""


class Missing(NamedTuple):
    """Length of a time, and why it is in no segment; ON if it was recorded."""

    ns: int
    cause: str


class Mark(NamedTuple):
    """Time from which on nothing is recorded, and the cause; the cause `ON`: from which on it is recorded."""

    ns: int  # CLOCK_MONOTONIC
    cause: str


class Origin(NamedTuple):
    """Boot in which a recording was made, and the labels of the host at that time."""

    boot_id: str
    labels: dict[str, str] | None  # None: not known


class Ledger:
    """Account of segments and gaps, saved in file `STATE` of the spool; thread-safe. `say`: reports a failed write."""

    def __init__(self, spool: Spool, boot_id: str, say: Callable[[str], None] = lambda text: None) -> None:
        self._spool, self._boot_id, self._say = spool, boot_id, say
        self._lock = threading.RLock()
        state = _parsed(spool.read_state())
        self.metrics = Metrics(state["counters"])
        self.done: str = state["done"]  # name of the last recording that was accounted; "" none
        self.run: int = max(state["run"], spool.last_run())  # number of the last start of the recorder
        self._end_ns: int = state["end_ns"]  # end of that recording, CLOCK_MONOTONIC; 0 none
        self._end_utc_ns: int = state["end_utc_ns"]
        self._same_boot: bool = state["boot_id"] == boot_id
        self._first_run: int = state["first_run"] if self._same_boot else self.run + 1
        self._clocks: dict[str, tuple[int, int]] = state["clocks"]  # as of `clock_of`
        self._origins: dict[str, Origin] = state["origins"]  # number of the first run with an origin, as text → origin
        self._marks: list[Mark] = state["marks"] if self._same_boot else []
        if self._same_boot:  # a killed agent did not note its end
            ages_s = [spool.age_s(name) for name in spool.recordings()[-1:]]
            self.mark(STOPPED, max(state["saved_ns"], *(time.monotonic_ns() - int(age * 1e9) for age in ages_s), 1))
        else:
            self.mark(STOPPED)
        self._causes: dict[str, str] = state[
            "causes"
        ]  # key of a run, a recording, or the gap after it (_AFTER) → cause

    def is_of_this_boot(self, name: str) -> bool:
        """Return True if the recording `name` was made in this boot of the machine."""
        return run_of(name) >= self._first_run

    def end_before(self, name: str) -> int:
        """Return the end of the recorder's file before the recording `name`, CLOCK_MONOTONIC ns; 0 if not known."""
        same_run = self.done != "" and run_of(self.done) == run_of(name)
        dropped = any(self.done < key < name for key in self._causes)
        return self._end_ns if same_run and not dropped else 0

    def clock_of(self, name: str, now: tuple[int, int]) -> tuple[int, int]:
        """Return the clocks (UTC, CLOCK_MONOTONIC), ns, to use for the recording `name`, which has none: `now` of the
        first call with this name. A segment's name depends on them, and must be the same at a second delivery."""
        with self._lock:
            if name not in self._clocks:
                self._clocks[name] = now
                self.save()
            return self._clocks[name]

    def origin(self, name: str) -> Origin:
        """Return boot and host labels of the recording `name` (labels None: not known); later runs may have others."""
        with self._lock:
            runs = [run for run in self._origins if run <= name]
            return self._origins[max(runs)] if runs else Origin(self._boot_id, None)

    def begin_run(self, cause: str, labels: Mapping[str, str] | None = None) -> int:
        """Count another run of the recorder, and return its number. `cause`: of the gap since the last run; `labels`:
        labels of the host from now on, None: as before."""
        with self._lock:
            self.run += 1
            if labels is not None:
                self._note_origin(Origin(self._boot_id, dict(labels)))
            self.metrics.add("recorder_starts_total")
            self._note(f"{self.run:08}", cause)
            return self.run

    def pause(self, name: str, cause: str) -> None:
        """Note the cause of the gap after the recording `name`: the recorder paused."""
        with self._lock:
            self._note(f"{name}{_AFTER}", cause)

    def mark(self, cause: str, now_ns: int | None = None) -> None:
        """Note that from now on (`now_ns`, CLOCK_MONOTONIC) nothing is recorded, by `cause`; ON: it is recorded."""
        with self._lock:
            if not self._marks or self._marks[-1].cause != cause:
                self._marks.append(Mark(now_ns or time.monotonic_ns(), cause))
                del self._marks[:-_MARKS]

    def off(self, begin_ns: int, end_ns: int) -> dict[str, int]:
        """Return cause → ns in which nothing was recorded between two times (CLOCK_MONOTONIC), as noted by `mark`."""
        sums: dict[str, int] = {}
        with self._lock:
            for ns, cause in self._pieces(begin_ns, end_ns):
                if cause != ON:
                    sums[cause] = sums.get(cause, 0) + ns
        return sums

    def text(self) -> str:
        """Return the metrics in Prometheus' text format; a gap that has not ended is counted up to now."""
        with self._lock:
            is_known = self._end_ns and self._same_boot
            gaps = self.off(self._end_ns, time.monotonic_ns()) if is_known else {}
            return self.metrics.text({cause: ns / 1e9 for cause, ns in gaps.items()})

    def _pieces(self, begin_ns: int, end_ns: int) -> list[Missing]:
        """Split a time (CLOCK_MONOTONIC ns) where recording began or stopped, as noted by `mark`; return the pieces in
        order: length and why nothing was recorded, ON if it was."""
        pieces, at_ns, state = list[Missing](), begin_ns, ON
        for ns, cause in [*(mark for mark in self._marks if mark.ns < end_ns), Mark(end_ns, ON)]:
            if ns > at_ns:
                pieces.append(Missing(ns - at_ns, state))
                at_ns = ns
            state = cause
        return pieces

    def drop(self, name: str, cause: str) -> None:
        """Count the recording `name` as lost: it will not be delivered."""
        with self._lock:
            self.metrics.add("segments_lost_total", 1, cause)
            self._note(name, cause)

    def missing(self, name: str, begin_ns: int, utc_ns: int) -> list[Missing]:
        """Return the times missing between the last accounted segment and the recording `name`, which begins at
        `begin_ns` (CLOCK_MONOTONIC), in order. `utc_ns`: UTC minus CLOCK_MONOTONIC."""
        with self._lock:
            if not self._end_ns:
                return []
            if not self._same_boot:
                ns = begin_ns + utc_ns - self._end_utc_ns
                return [Missing(ns, self._cause_before(name))] if ns > 0 else []
            gaps, pieces = list[Missing](), self._pieces(self._end_ns, begin_ns)
            marked = [cause for _, cause in pieces]
            for number, ns in enumerate(piece.ns for piece in pieces):
                # ON: it was recorded, and lost; or the end of recording was noted late.
                near = [other for other in (*marked[number:], *reversed(marked[:number])) if other != ON]
                cause = marked[number] or self._cause_before(name, near[0] if near else "")
                if gaps and gaps[-1].cause == cause:
                    gaps[-1] = Missing(gaps[-1].ns + ns, cause)
                else:
                    gaps.append(Missing(ns, cause))
            return gaps

    def deliver(self, name: str, parts: Spans, utc_ns: int) -> None:
        """Account a delivered segment, the gap before it, and its pauses. `parts`: its recorded times, CLOCK_MONOTONIC
        ns; `utc_ns`: UTC minus CLOCK_MONOTONIC, 0 if not known."""
        with self._lock:
            self._account(name, parts, utc_ns)
            self.done = max(self.done, name)
            self._causes = {key: value for key, value in self._causes.items() if key > self.done}
            self._clocks = {key: value for key, value in self._clocks.items() if key > self.done}
            before = [mark for mark in self._marks if mark.ns < self._end_ns - LOOK_NS]
            self._marks = self._marks[max(0, len(before) - 1) :]
            self._forget_origins()

    def _account(self, name: str, parts: Spans, utc_ns: int) -> None:
        begin_ns, end_ns = parts[0][0], parts[-1][1]
        recorded_ns = sum(end - begin for begin, end in parts)
        for gap in self.missing(name, begin_ns, utc_ns):
            self.metrics.add("gap_seconds_total", gap.ns / 1e9, gap.cause)
        if self._end_ns:
            step_ns = self._end_ns + utc_ns - self._end_utc_ns
            if self._same_boot and abs(step_ns) >= CLOCK_STEP_NS:
                self.metrics.add("clock_steps_total")
        if len(parts) > 1:
            self.metrics.add("gap_seconds_total", (end_ns - begin_ns - recorded_ns) / 1e9, BUDGET)
        self.metrics.add("recorded_seconds_total", recorded_ns / 1e9)
        self.metrics.add("segments_total")
        self.metrics.set("last_segment_timestamp_seconds", (end_ns + utc_ns) / 1e9)
        self._end_ns, self._end_utc_ns, self._same_boot = end_ns, end_ns + utc_ns, True

    def save(self) -> None:
        """Write the account to the spool; a failure is reported by `say`."""
        with self._lock:
            state = {
                "version": VERSION,
                "boot_id": self._boot_id,
                "done": self.done,
                "run": self.run,
                "first_run": self._first_run,
                "end_ns": self._end_ns,
                "end_utc_ns": self._end_utc_ns,
                "saved_ns": time.monotonic_ns(),
                "marks": self._marks,
                "causes": self._causes,
                "clocks": self._clocks,
                "origins": self._origins,
                "counters": self.metrics.counters(),
            }
            try:
                self._spool.write(STATE, json.dumps(state, indent=1, sort_keys=True).encode())
            except OSError as problem:
                self._say(Problem(f"the account cannot be written: {problem.strerror}"))

    def _note(self, key: str, cause: str) -> None:
        self._causes[key] = cause
        for oldest in sorted(self._causes)[:-_KEPT]:
            del self._causes[oldest]

    def _note_origin(self, origin: Origin) -> None:
        """Note boot and host labels of this run, if they differ from the last run's; forget those not needed."""
        if not self._origins or self._origins[max(self._origins)] != origin:
            self._origins[f"{self.run:08}"] = origin
        self._forget_origins()

    def _forget_origins(self) -> None:
        """Forget boot and host labels of runs whose recordings are all delivered; keep the newest _KEPT."""
        before = sorted(run for run in self._origins if run <= self.done)[:-1]
        kept = sorted(self._origins.keys() - before)[-_KEPT:]
        self._origins = {run: self._origins[run] for run in kept}

    def _cause_before(self, name: str, marked: str = "") -> str:
        """Return the cause of the gap before the recording `name`: of the last recording lost in the gap, else `marked`
        (cause noted by `mark`, "" none), else of the last pause in the same run, else of the start of this run."""
        since = [key for key in sorted(self._causes) if self.done < key < name and "." in key]
        dropped = [key for key in since if not key.endswith(_AFTER)]
        paused = [key for key in since if key.endswith(_AFTER) and run_of(key) == run_of(name)]
        if marked and not dropped:
            return marked
        last = (dropped or paused or [f"{run_of(name):08}"])[-1]
        return self._causes.get(last, UNKNOWN)


def _parsed(text: bytes) -> dict[str, Any]:
    """Parse a saved account; return an empty one if the text is empty, damaged or of another version."""
    try:
        state: dict[str, Any] = json.loads(text) if text else {"version": VERSION}
        if state["version"] != VERSION:
            return _parsed(b"")
        numbers = {name: int(state.get(name, 0)) for name in ("run", "first_run", "end_ns", "end_utc_ns", "saved_ns")}
        texts = {name: str(state.get(name, "")) for name in ("boot_id", "done")}
        clocks = {name: (int(utc), int(mono)) for name, (utc, mono) in state.get("clocks", {}).items()}
        origins = {run: Origin(str(boot), _texts(labels)) for run, (boot, labels) in state.get("origins", {}).items()}
        counters = {name: float(value) for name, value in state.get("counters", {}).items()}
        causes = _texts(state.get("causes", {}))
        marks = [Mark(int(ns), str(cause)) for ns, cause in state.get("marks", [])]
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        return _parsed(b"")
    lists = {"clocks": clocks, "origins": origins, "counters": counters, "causes": causes, "marks": marks}
    return {**numbers, **texts, **lists}


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


@functools.cache
def boot_id() -> str:
    """Return the id of this boot of the machine (/proc/sys/kernel/random/boot_id)."""
    return read_kernel("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()
