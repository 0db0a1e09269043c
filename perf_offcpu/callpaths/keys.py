# SPDX-License-Identifier: Apache-2.0
"""Columns of samples and the texts of their values, for each key of `report --sort`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.offcpu import SYSCALL_NONE
from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.classes.classify import Waits
from perf_offcpu.analysis.classes.network import LABELS, network_of
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.selection.containers import container_of
from perf_offcpu.analysis.selection.states import STATES, state_codes
from perf_offcpu.analysis.times.wakeups import INTERRUPT
from perf_offcpu.callpaths.options import Name, NameKind, PathOptions
from perf_offcpu.callpaths.tree import name_frames
from perf_offcpu.model.columns import I64, Bool, Strings, distinct
from perf_offcpu.model.join import is_idle_task
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SUM_FLAGS, SampleFlag
from perf_offcpu.structs import mutable
from perf_offcpu.text import MISSED_STACK, UNKNOWN, id_text, printable, thread_label

_INTERRUPT, _IDLE_TASK, _SUM, _NO_OBJECT = -1, -2, -3, -4
"""Values of a column that are no rows of strings: wakers that are no threads, sums, missing objects."""
NO_OBJECT = "[none]"  # shown where a wait has no object: a page fault, the run queue, a system call that names none

Label = Callable[[int], str]  # row of the samples → text of its value


def column_of(key: str, profile: Profile, waits: Waits) -> tuple[I64, Label]:
    """Return int64[samples], equal for equal values of a sort key, and a function: sample row → text of its value."""
    samples, strings = profile.samples, profile.strings
    simple: dict[str, tuple[NDArray[np.integer], Label]] = {
        "comm": (samples.comm, lambda row: thread_label(strings[samples.comm[row]])),
        "pid": (samples.pid, lambda row: id_text(samples.pid[row])),
        "tid": (samples.tid, lambda row: id_text(samples.tid[row])),
        "cpu": (samples.cpu, lambda row: id_text(samples.cpu[row])),
        "event": (samples.evsel, lambda row: printable(profile.evsels[samples.evsel[row]].name)),
        "class": (waits.wait_class, lambda row: WaitClass(waits.wait_class[row]).label),
        "cgroup": (samples.cgroup.view(np.int64), lambda row: cgroup_label(profile, int(samples.cgroup[row]))),
    }
    if key == "container":
        return _container(profile)
    if key in simple:
        column, label = simple[key]
        return column.astype(np.int64), label
    made = {"symbol": _leaf, "dso": _leaf_dso, "state": _state, "waker": _waker, "object": object_column}
    return made[key](profile) if key in made else _syscall(profile, waits)


def cgroup_label(profile: Profile, cgroup: int) -> str:
    """Return the path of a cgroup, printable; its id in decimal if the path is not known, UNKNOWN for id 0."""
    path = profile.cgroups.get(cgroup)
    return printable(path) if path is not None else str(cgroup) if cgroup else UNKNOWN


def _container(profile: Profile) -> tuple[I64, Label]:
    """Return column and labels, as `column_of`, of names of containers and services, by the paths of cgroups."""
    values, row_of = np.unique(profile.samples.cgroup, return_inverse=True)
    names = [container_of(profile.cgroups.get(cgroup, "")) for cgroup in values.tolist()]
    labels, column = np.unique([printable(name) or UNKNOWN for name in names], return_inverse=True)
    column = column[row_of].astype(np.int64)
    return column, lambda row: str(labels[column[row]])


def _leaf_frames(profile: Profile) -> I64:
    """Return int64[samples]: the row in frames of the innermost frame; -1 for a sample without a stack."""
    return np.append(profile.stacks.frame, -1).astype(np.int64)[profile.samples.stack]


def symbol_label(name: Name) -> str:
    """Return a function as perf report shows it, `[k] NAME` or `[.] NAME`; a mark such as `[truncated]` has blanks."""
    letters = {NameKind.KERNEL: "[k]", NameKind.MARK: "   "}
    return f"{letters.get(name.kind, '[.]')} {name.label}"


def _leaf(profile: Profile) -> tuple[I64, Label]:
    frame = _leaf_frames(profile)
    rows = distinct(frame[frame >= 0])
    names, name_of = name_frames(profile, rows, PathOptions())
    name = np.full(len(profile.frames) + 1, len(names), np.int64)
    name[rows] = name_of
    column = name[frame]
    labels = [*map(symbol_label, names), f"    {MISSED_STACK}"]
    return column, lambda row: labels[column[row]]


def _leaf_dso(profile: Profile) -> tuple[I64, Label]:
    dso = np.append(profile.frames.dso.astype(np.int64), -1)[_leaf_frames(profile)]
    return dso, lambda row: printable(profile.strings[dso[row]]) or UNKNOWN if dso[row] >= 0 else UNKNOWN


def _state(profile: Profile) -> tuple[I64, Label]:
    letters, rank = np.unique([state.letter or "?" for state in STATES], return_inverse=True)
    column = rank[state_codes(profile.samples)]
    return column, lambda row: str(letters[column[row]])


def _waker(profile: Profile) -> tuple[I64, Label]:
    """Return column and labels, as `column_of`, of wakers' comms. All interrupts are one value; sums have no waker."""
    samples = profile.samples
    column = profile.comms_at(samples.waker_tid, samples.wakeup_ns)
    column[is_idle_task(samples.waker_tid)] = _IDLE_TASK
    column[samples.waker_tid < 0] = 0
    column[(samples.waker_tid < 0) & samples.has(SUM_FLAGS)] = _SUM
    column[samples.has(SampleFlag.WAKER_INTERRUPT)] = _INTERRUPT
    marks = {_INTERRUPT: INTERRUPT, _IDLE_TASK: "[idle task]", _SUM: "(sum)"}
    return column, lambda row: marks.get(int(column[row])) or thread_label(profile.strings[column[row]])


def object_column(profile: Profile, *, lasting: bool = False) -> tuple[I64, Label]:
    """Return column and labels, as `column_of`, of objects; `lasting`: names without addresses and ids, to compare."""
    samples, objects, strings = profile.samples, profile.objects, profile.strings
    named, names = samples.object >= 0, objects.stable if lasting else objects.name
    column = np.append(names, 0).astype(np.int64)[samples.object]
    column[~named] = np.where(samples.has(SUM_FLAGS), _SUM, _NO_OBJECT)[~named]
    marks = {_SUM: "(sum)", _NO_OBJECT: NO_OBJECT}
    return column, lambda row: marks.get(int(column[row])) or printable(strings[column[row]]) or UNKNOWN


def _syscall(profile: Profile, waits: Waits) -> tuple[I64, Label]:
    column = np.where(profile.samples.syscall == SYSCALL_NONE, -1, waits.syscall.astype(np.int64))
    return column, lambda row: "[none]" if column[row] < 0 else waits.syscall_names[column[row]] or UNKNOWN


@mutable
class Texts:
    """Column of n texts: the distinct ones, and `codes`, int64[n]: index in `texts` of each row's text, -1 for none."""

    texts: list[str]
    codes: I64


def sample_texts(profile: Profile, waits: Waits) -> dict[str, Texts]:
    """Return column name (see `convert.dataframe.COLUMNS`) → texts of all samples."""
    samples, offcpu = profile.samples, profile.is_offcpu()
    events = [event.name for event in profile.evsels]
    network = network_of(profile, waits).cause
    has_object, has_cgroup = samples.object >= 0, (samples.cgroup != 0) | np.bool_(0 in profile.cgroups)
    kinds = {int(kind): kind.name.lower() for kind in ObjectKind}
    kind, object_ = (np.append(column, 0)[samples.object] for column in (profile.objects.kind, profile.objects.name))
    return {
        "event": merged([*map(printable, events)], samples.evsel.astype(np.int64)),
        "comm": named(samples.comm, profile.strings),
        "state": _states(profile),
        "wait_class": Texts([wait_class.label for wait_class in WaitClass], _only(offcpu, waits.wait_class)),
        "syscall": Texts(list(map(printable, waits.syscall_names)), _only(waits.syscall > 0, waits.syscall)),
        "object": named(object_, profile.strings, has_object),
        "object_kind": _by_value(kind, lambda number: kinds.get(number, kinds[0]), has_object),
        "network": merged(LABELS, network.astype(np.int64), network > 0),
        "waker_comm": _waker_comms(profile),
        "cgroup": _by_value(samples.cgroup, lambda number: profile.cgroups.get(number, str(number)), has_cgroup),
    }


def _only(has_value: Bool, codes: NDArray[Any]) -> I64:
    return np.where(has_value, codes.astype(np.int64), -1)


def merged(texts: Sequence[str], codes: I64, has_value: Bool | None = None) -> Texts:
    """Return the column of `texts[codes[i]]`, equal texts once; rows where `has_value` (bool[n]) is False have none."""
    place: dict[str, int] = {}
    place_of = np.array([*(place.setdefault(text, len(place)) for text in texts), -1], np.int64)[codes]
    return Texts(list(place), place_of if has_value is None else _only(has_value, place_of))


def named(column: NDArray[Any], strings: Strings, has_value: Bool | None = None) -> Texts:
    """Return the column of `strings[column[i]]`, printable; rows where `has_value` (bool[n]) is False have none."""
    return _by_value(column, strings.__getitem__, has_value)


def _by_value(column: NDArray[Any], text_of: Callable[[int], str], has_value: Bool | None) -> Texts:
    values, inverse = np.unique(column, return_inverse=True)
    return merged([printable(text_of(value)) for value in values.tolist()], inverse.astype(np.int64), has_value)


def _states(profile: Profile) -> Texts:
    codes, inverse = np.unique(state_codes(profile.samples), return_inverse=True)
    letters = [STATES[code].letter for code in codes.tolist()]
    return merged(letters, inverse, np.array(letters, np.str_)[inverse] != "")


def _waker_comms(profile: Profile) -> Texts:
    samples, comms = profile.samples, profile.comms
    row = rows_at(comms.tid, comms.begin_ns, samples.waker_tid, samples.wakeup_ns)
    is_known = (row >= 0) & (samples.waker_tid >= 0)
    return named(np.append(comms.comm, 0)[np.where(is_known, row, -1)], profile.strings, is_known)
