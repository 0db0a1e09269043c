# SPDX-License-Identifier: Apache-2.0
"""Select the samples of a view. Selection comes before conversion: a converter writes every sample of its profile. An
event or cgroup that the recording does not have is a UsageError."""

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.offcpu import EVENT_NAME
from perf_offcpu.analysis.classes.classify import classify, of_idle_threads
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.selection.containers import container_of, is_container
from perf_offcpu.analysis.selection.states import STATES, state_codes
from perf_offcpu.analysis.selection.time_windows import Window, in_windows
from perf_offcpu.errors import UsageError
from perf_offcpu.model.columns import I32, I64, Bool, distinct, group, is_among
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SUM_FLAGS, Budget, SampleFlag
from perf_offcpu.structs import frozen

_SHOWN_CGROUPS = 10
_IDS = 1 << 31  # limit of ids of processes, threads and CPUs

_MODIFIERS = re.compile(r":[ukhGHpPSDIWebR]+$")
"""The modifiers that perf may append to an event's name (tools/perf/util/parse-events.l: modifier_event)."""


@frozen
class Selection:
    """Criteria for samples: a sample must match each given criterion, by any of its values."""

    comms: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    tids: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()  # for a wait the CPU on which the thread continued
    cgroups: tuple[str, ...] = ()  # paths, cgroups below them included, or ids
    containers: tuple[str, ...] = ()  # names or ids, as of `containers.is_container`
    windows: tuple[Window, ...] = ()  # spans of time; a wait is at its end
    idle: str = "show"  # `hide` leaves out idle threads, `only` all others; see `analysis.classes.classify`
    states: tuple[str, ...] = ()  # letters. This and the fields below choose among waits; other samples stay
    classes: tuple[WaitClass, ...] = ()
    min_ns: int = 0  # shorter waits are left out; a sum stays if it may hold a wait so long
    objects: tuple[str, ...] = ()  # patterns of names of wait objects: parts of them, with * and ?
    locks: tuple[int, ...] = ()  # addresses of futexes

    @property
    def is_of_waits(self) -> bool:
        """Return True if a criterion is on waits: state, class, length, object or lock."""
        return bool(self.states or self.classes or self.min_ns or self.objects or self.locks)


def select_samples(profile: Profile, selection: Selection) -> Profile:
    """Return the profile with the samples, of all events, that match. `losses` counts samples for which it is not known
    whether they match, and idle threads left out."""
    rows, idle, untimed = _chosen(profile, selection)
    selected, notes = profile.select(rows), {losses.UNTIMED: untimed}
    if selection.idle == "hide":
        waits = profile.select(idle & profile.is_offcpu()).samples
        notes[losses.IDLE_THREADS] = len(group(waits.pid, waits.tid)[0])
        notes[losses.IDLE_MS] = round(int(waits.period.sum()) / 1e6)
    notes[losses.KEPT_SUMS] = _undecided_sums(selected, selection.min_ns)
    if notes := {cause: count for cause, count in notes.items() if count}:
        selected = replace(selected, losses=profile.losses | notes)
    if selected.samples is profile.samples:
        return selected
    return replace(selected, budget=_budgets(profile, selected, selection))


def selected_rows(profile: Profile, selection: Selection) -> Bool:
    """Return bool[samples]: True for the samples that `select_samples` selects."""
    return _chosen(profile, selection)[0]


def _chosen(profile: Profile, selection: Selection) -> tuple[Bool, Bool, int]:
    """Return (rows, idle), bool[samples]: the samples that match; samples of idle threads, none if these are shown.
    Return, too, how many samples of chosen threads are in no window because they have no time."""
    samples, rows = profile.samples, _of_threads(profile, selection)
    idle, untimed = np.zeros_like(rows), 0
    if selection.windows:
        untimed = int((rows & (samples.time_ns < 0)).sum())
        rows &= in_windows(selection.windows, samples.time_ns, profile.meta.first_ns, profile.meta.last_ns)
    if selection.idle != "show" or selection.is_of_waits:
        chosen, idle[rows] = _of_waits(profile.select(rows), selection)
        rows[rows] = chosen
    return rows, idle, untimed


def _budgets(whole: Profile, selected: Profile, selection: Selection) -> Budget:
    """Return the budgets of threads with selected samples, and of threads without samples that match the selection."""
    budget = whole.budget
    pairs = thread_ids(budget.pid, budget.tid)
    rows = ~is_among(pairs, distinct(thread_ids(whole.samples.pid, whole.samples.tid)))
    rows &= selection.idle != "only"
    for column, numbers in ((budget.pid, selection.pids), (budget.tid, selection.tids)):
        if numbers:
            rows &= _is_any(column, numbers)
    if selection.comms:
        rows &= _is_any(whole.comms_at(budget.tid, budget.end_ns), map(whole.strings.find, selection.comms))
    rows |= is_among(pairs, distinct(thread_ids(selected.samples.pid, selected.samples.tid)))
    return budget.take(rows)


def thread_ids(pid: I64 | I32, tid: I64 | I32) -> I64:
    """Return int64[n]: one number for each (pid, tid), equal for equal pairs."""
    return (pid.astype(np.int64) << 32) + tid


def _of_threads(profile: Profile, selection: Selection) -> Bool:
    """Return bool[samples]: True if comm, pid, tid, CPU, cgroup and container match the selection."""
    samples = profile.samples
    rows = np.ones(len(samples), np.bool_)
    if selection.comms:
        rows &= _is_any(samples.comm, map(profile.strings.find, selection.comms))
    by_column = (samples.pid, selection.pids), (samples.tid, selection.tids), (samples.cpu, selection.cpus)
    for column, numbers in by_column:
        if numbers:
            rows &= _is_any(column, numbers)
    if selection.cgroups:
        rows &= _in_cgroups(profile, "cgroup", selection.cgroups, _cgroup_ids, profile.cgroups.values())
    if selection.containers:
        containers = {container_of(path) for path in profile.cgroups.values()} - {""}
        rows &= _in_cgroups(profile, "container", selection.containers, _container_ids, containers)
    return rows


def _is_any(column: NDArray[np.integer], numbers: Iterable[int]) -> Bool:
    return np.isin(column, np.array([number for number in numbers if 0 <= number < _IDS], np.int64))


def _in_cgroups(
    profile: Profile, kind: str, names: Sequence[str], ids_of: Callable[[Profile, str], list[int]], known: Iterable[str]
) -> Bool:
    """Return bool[samples]: True for the cgroups that `ids_of` returns for any of the names. Raise UsageError, with the
    names of all `known` cgroups or containers (`kind`), for a name that has none."""
    ids: list[int] = []
    for name in names:
        ids += (cgroups := ids_of(profile, name))
        if not cgroups:
            shown = ", ".join(sorted(known)[:_SHOWN_CGROUPS]) or "none has a name"
            raise UsageError(f"no {kind} '{name}' in {_source(profile)} (its {kind}s: {shown})")
    return np.isin(profile.samples.cgroup, np.array(ids, np.uint64))


def _container_ids(profile: Profile, name: str) -> list[int]:
    return [cgroup for cgroup, path in profile.cgroups.items() if is_container(path, name)]


def _cgroup_ids(profile: Profile, name: str) -> list[int]:
    """Return the ids of the cgroup `name`, a path or an id, and of all below it."""
    below = f"{name.rstrip('/')}/"
    ids = [cgroup for cgroup, path in profile.cgroups.items() if path == name or f"{path}/".startswith(below)]
    return [*ids, *(cgroup for cgroup in distinct(profile.samples.cgroup).tolist() if str(cgroup) == name)]


def _source(profile: Profile) -> str:
    return profile.meta.source or "the recording"


def _of_waits(profile: Profile, selection: Selection) -> tuple[Bool, Bool]:
    """Return (chosen, idle), bool[samples]. chosen: waits that match the criteria on waits, and all other samples; only
    of threads that `selection.idle` admits. idle: samples of idle threads; all False if idle threads are shown."""
    samples = profile.samples
    rows, idle = np.ones(len(samples), np.bool_), np.zeros(len(samples), np.bool_)
    if selection.states:
        rows &= np.array([state.letter in selection.states for state in STATES])[state_codes(samples)]
    waits = classify(profile) if selection.classes or selection.idle != "show" else None
    if selection.classes and waits is not None:
        rows &= np.isin(waits.wait_class, np.array(selection.classes, np.uint8))
    if selection.objects or selection.locks:
        rows &= _of_objects(profile, selection)
    if selection.min_ns:
        has_longest = samples.has(SUM_FLAGS) & (samples.longest_ns >= 0)
        longest = np.where(has_longest, samples.longest_ns, samples.length_ns())
        rows &= longest >= selection.min_ns
    rows |= ~profile.is_offcpu()
    if selection.idle != "show" and waits is not None:
        idle = of_idle_threads(profile, waits.for_work)
        rows &= idle == (selection.idle == "only")
    return rows, idle


def _of_objects(profile: Profile, selection: Selection) -> Bool:
    """Return bool[samples]: True if the wait's object matches the selection; False for sums, which have no object."""
    objects, strings = profile.objects, profile.strings
    chosen = np.zeros(len(objects) + 1, np.bool_)  # the last row: no object
    if selection.objects:
        patterns = [re.compile(fnmatch.translate(f"*{glob}*")) for glob in selection.objects]
        names = (strings[row] for row in objects.name.tolist())
        chosen[:-1] = [any(pattern.match(name) for pattern in patterns) for name in names]
    if selection.locks:
        addresses = np.array([lock for lock in selection.locks if lock < 1 << 64], np.uint64)
        is_lock = np.isin(objects.address, addresses) & (objects.address != 0)
        chosen[:-1] = is_lock & chosen[:-1] if selection.objects else is_lock
    return chosen[profile.samples.object]


def _undecided_sums(profile: Profile, min_ns: int) -> int:
    """Return the number of sums that may also hold waits below `min_ns`: of several waits or of an unknown number."""
    if not min_ns:
        return 0
    samples = profile.samples
    return int((samples.has(SUM_FLAGS) & ((samples.count > 1) | samples.has(SampleFlag.UNTIMED))).sum())


def select_events(profile: Profile, names: Sequence[str] = ()) -> Profile:
    """Return the profile with only the samples of the named events, with or without modifiers (`cycles` is also
    `cycles:u`); without names, of the default events (`event_rows`)."""
    return profile.select(np.isin(profile.samples.evsel, event_rows(profile, names)))


def event_rows(profile: Profile, names: Sequence[str] = ()) -> I32:
    """Return int32[k]: the rows in `profile.evsels` of the named events, ascending. Default: the off-cpu events of the
    recording; if it has none, the first event that has samples. Raise UsageError for a name that no event has."""
    return distinct(np.array(_named(profile, names) if names else _default(profile), np.int32))


def _named(profile: Profile, names: Sequence[str]) -> list[int]:
    event_names, rows = [event.name for event in profile.evsels], []
    for name in names:
        evsels = [row for row, event in enumerate(event_names) if name in (event, _MODIFIERS.sub("", event))]
        if not evsels:
            events = ", ".join(event_names) or "none"
            raise UsageError(f"no event '{name}' in {_source(profile)} (its events: {events})")
        rows += evsels
    return rows


def _default(profile: Profile) -> list[int]:
    """Return rows in evsels: off-cpu events, even without samples, since CPU samples must never be taken for waits;
    without an off-cpu event the first event that has samples."""
    by_name = {row for row, event in enumerate(profile.evsels) if event.name == EVENT_NAME}
    flagged = distinct(profile.samples.evsel[profile.is_offcpu()]).tolist()
    offcpu = sorted(by_name.union(flagged))
    evsel = profile.samples.evsel
    return offcpu or distinct(evsel[evsel >= 0])[:1].tolist()
