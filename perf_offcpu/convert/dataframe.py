# SPDX-License-Identifier: Apache-2.0
"""Convert a Profile to a data frame: one row a sample, names instead of numbers, unknown values missing.

pandas or polars makes it; neither is needed for anything else.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.classify import classify
from perf_offcpu.analysis.evidence.holders import holders_of
from perf_offcpu.analysis.states import STATES, state_codes
from perf_offcpu.analysis.wait_classes import WaitClass
from perf_offcpu.callpaths.tree import build_paths
from perf_offcpu.convert.encode.text_columns import path_texts
from perf_offcpu.convert.options import Options
from perf_offcpu.decode.tasks.lookup import rows_at
from perf_offcpu.errors import UsageError
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SUM_FLAGS
from perf_offcpu.model.strings import Strings
from perf_offcpu.structs import mutable
from perf_offcpu.text import printable

COLUMNS = {
    "time_ns": "time of the sample, for a wait its end; ns of the recording's clock",
    "event": "name of the event",
    "period": "weight: ns of off-cpu time, or what the event counts",
    "comm": "name of the thread",
    "pid": "process (tgid)",
    "tid": "thread",
    "cpu": "CPU; for a wait the one on which the thread went on",
    "offcpu": "whether it is a wait, or a sum of waits",
    "sum": "whether it is a sum of waits",
    "count": "number of waits",
    "longest_ns": "the longest of them",
    "switch_out_ns": "begin of the (first) wait",
    "wakeup_ns": "when the thread was woken",
    "runq_ns": "part of the period between wake-up and running",
    "state": "task state while waiting, a letter as in ps",
    "wait_class": "what was waited for (Documentation/wait-classes.md)",
    "syscall": "system call waited in",
    "object": "what exactly was waited for (Documentation/wait-objects.md)",
    "object_kind": "file, socket, pipe, futex, …",
    "holder_tid": "thread that held the lock when the wait began; if still blocked, at the end",
    "asked_ns": "time after which the system call was to end by itself",
    "waker_pid": "process of the thread that woke it",
    "waker_tid": "thread that woke it",
    "waker_comm": "its name",
    "cgroup": "path of the cgroup, its id where the path is not known",
    "stack": "functions, root first, separated by semicolons",
}
"""Name → meaning of the columns, in order."""

_NUMBERS = (
    "pid tid cpu time_ns switch_out_ns wakeup_ns runq_ns longest_ns asked_ns waker_pid waker_tid".split()
)
"""Columns of ProfileSamples that are taken as they are; -1 means: not known."""


@mutable
class Texts:
    """A column of n texts: the distinct texts, and int64[n], the text of each row; -1 for none."""

    texts: list[str]
    codes: I64


def to_dataframe(profile: Profile, library: str = "") -> Any:
    """Return the samples of a profile as a data frame with the columns COLUMNS.

    Args:
        library: "pandas" or "polars"; "": the first of them that is installed.

    Raises:
        UsageError: it is not installed.
    """
    makers = {"pandas": _pandas, "polars": _polars}
    wanted = [library] if library else list(makers)
    found = [name for name in wanted if name in makers and importlib.util.find_spec(name)]
    if not found:
        raise UsageError(f"a data frame needs {' or '.join(wanted)}: install it for this Python")
    return makers[found[0]](dict(_columns(profile)))


def _columns(profile: Profile) -> Iterator[tuple[str, Texts | tuple[NDArray[Any], Bool | None]]]:
    """Return the columns: texts, or (values, which are unknown)."""
    samples, waits = profile.samples, classify(profile)
    offcpu = profile.is_offcpu()
    made: dict[str, Any] = {
        "event": Texts([printable(event.name) for event in profile.evsels], samples.evsel.astype(np.int64)),
        "period": (samples.period, None),
        "comm": _named(samples.comm, profile.strings),
        "offcpu": (offcpu, None),
        "sum": (samples.has(SUM_FLAGS), None),
        "count": (samples.count, None),
        "state": _states(profile),
        "wait_class": Texts([one.label for one in WaitClass], _only(offcpu, waits.wait_class)),
        "syscall": Texts(list(map(printable, waits.syscall_names)), _only(waits.syscall > 0, waits.syscall)),
        "object": _objects(profile),
        "object_kind": _kinds(profile),
        "holder_tid": (held := holders_of(profile).held, held < 0),
        "waker_comm": _waker_comms(profile),
        "cgroup": _cgroups(profile),
        "stack": _stacks(profile),
    }
    for name in COLUMNS:
        values = getattr(samples, name) if name in _NUMBERS else None
        yield name, made[name] if values is None else (values, values == -1)


def _only(known: Bool, codes: NDArray[Any]) -> I64:
    return np.where(known, codes.astype(np.int64), -1)


def _merged(texts: Sequence[str], codes: I64, known: Bool | None = None) -> Texts:
    """Return a column in which equal texts are one, with no text where not known."""
    place: dict[str, int] = {}
    of = np.array([*(place.setdefault(text, len(place)) for text in texts), -1], np.int64)[codes]
    return Texts(list(place), of if known is None else _only(known, of))


def _named(column: NDArray[Any], strings: Strings, known: Bool | None = None) -> Texts:
    rows, of = np.unique(column, return_inverse=True)
    return _merged([printable(strings[row]) for row in rows.tolist()], of.astype(np.int64), known)


def _states(profile: Profile) -> Texts:
    codes, of = np.unique(state_codes(profile.samples), return_inverse=True)
    letters = [STATES[code].letter for code in codes.tolist()]
    return _merged(letters, of, np.array(letters, np.str_)[of] != "")


def _waker_comms(profile: Profile) -> Texts:
    samples, comms = profile.samples, profile.comms
    row = rows_at(comms.tid, comms.begin_ns, samples.waker_tid, samples.wakeup_ns)
    known = (row >= 0) & (samples.waker_tid >= 0)
    return _named(np.append(comms.comm, 0)[np.where(known, row, -1)], profile.strings, known)


def _objects(profile: Profile) -> Texts:
    object_, names = profile.samples.object, np.append(profile.objects.name, 0)
    return _named(names[object_], profile.strings, object_ >= 0)


def _kinds(profile: Profile) -> Texts:
    names = {int(kind): kind.name.lower() for kind in ObjectKind}
    kinds, of = np.unique(np.append(profile.objects.kind, 0)[profile.samples.object], return_inverse=True)
    texts = [names.get(kind, names[0]) for kind in kinds.tolist()]
    return _merged(texts, of.astype(np.int64), profile.samples.object >= 0)


def _cgroups(profile: Profile) -> Texts:
    ids, of = np.unique(profile.samples.cgroup, return_inverse=True)
    names = [printable(profile.cgroups.get(number, str(number))) for number in ids.tolist()]
    known = (profile.samples.cgroup != 0) | np.bool_(0 in profile.cgroups)
    return _merged(names, of.astype(np.int64), known)


def _stacks(profile: Profile) -> Texts:
    tree = build_paths(profile, Options())
    nodes, of = np.unique(tree.of_sample, return_inverse=True)
    # The root of each path is the comm, which has a column of its own.
    texts = [text.partition(";")[2] for text in path_texts(tree, nodes.astype(np.int64))]
    return _merged(texts, of.astype(np.int64))


def _pandas(columns: dict[str, Any]) -> Any:
    import pandas as pd

    made: dict[str, Any] = {}
    for name, column in columns.items():
        if isinstance(column, Texts):
            made[name] = pd.Categorical.from_codes(column.codes, column.texts)
        else:
            values, unknown = column
            integers = pd.arrays.IntegerArray
            made[name] = values if unknown is None else integers(values.astype(np.int64), unknown)
    return pd.DataFrame(made)


def _polars(columns: dict[str, Any]) -> Any:
    import polars as pl

    made = []
    for name, column in columns.items():
        if isinstance(column, Texts):
            texts = pl.Series(name, [*column.texts, None], pl.String)
            codes = np.where(column.codes < 0, len(column.texts), column.codes)
            made.append(texts.gather(codes).cast(pl.Categorical))
        else:
            values, unknown = column
            series = pl.Series(name, values)
            made.append(series if unknown is None else series.set(pl.Series(unknown), None))
    return pl.DataFrame(made)
