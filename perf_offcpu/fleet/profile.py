# SPDX-License-Identifier: Apache-2.0
"""Make a Profile from sums of samples, so that report and converters can show stacks of a dataset. A row of the profile
is a group of samples with the same comm, stack, state, system call, class and marks."""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from perf_offcpu.abi.attr import Attr
from perf_offcpu.abi.counters import TASK_EVENT
from perf_offcpu.abi.offcpu import EVENT_NAME, SYSCALL_NONE, SYSCALL_UNKNOWN
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.syscalls import syscall_names
from perf_offcpu.abi.task_state import TaskState, state_letter
from perf_offcpu.callpaths.options import PathOptions
from perf_offcpu.callpaths.tree import PathTree, build_paths
from perf_offcpu.dataset.dataset import HOUR_NS
from perf_offcpu.errors import UsageError
from perf_offcpu.fleet.tables import Tables
from perf_offcpu.model.callchains import Ragged, build_stack_tree
from perf_offcpu.model.columns import Strings
from perf_offcpu.model.profile import Frames, Profile, ProfileSamples, Stacks
from perf_offcpu.model.recording import Evsel, Meta, SampleFlag

KEYS = ("event", "comm", "stack", "state", "class", "syscall", "marks")
"""Keys of `queries` by which the samples of a profile are summed."""
_LOST_FRAMES = SampleFlag.TRUNCATED | SampleFlag.NO_USER_STACK | SampleFlag.NO_KERNEL_STACK | SampleFlag.UNMERGED
MARKS = SampleFlag.OFFCPU | SampleFlag.PREEMPTED | SampleFlag.THROTTLED | _LOST_FRAMES
"""Flags that change how a stack is shown."""
_CLOCKS = frozenset({EVENT_NAME, TASK_EVENT, "cpu-clock", "task-clock"})
_STATES = {
    state_letter(state): int(state)
    for state in (TaskState.UNINTERRUPTIBLE | TaskState.NOLOAD, *reversed(TaskState), TaskState(0))
}
"""State letter → the simplest raw task state (TASK_* bits) that has the letter."""
_EPOCH = datetime.date(1970, 1, 1)
_MOST = 1 << 62
_MOST_FRAMES = 1024  # largest depth of a stack, as in `unwind.step`
_FEW = 1000  # largest number of ids that are written into a query; more are joined as a table


def unit_of(events: Iterable[str]) -> str:
    """Return the unit of weights: "ns" if all events count time, else ""; raise UsageError for several units."""
    units = {"ns" if name.partition(":")[0] in _CLOCKS else "": name for name in events}
    if len(units) > 1:
        raise UsageError(f"weights of {' and '.join(units.values())} do not add up: choose one with --event")
    return next(iter(units), "ns")


def profile_of(tables: Tables, groups: Mapping[str, Sequence[Any]], title: str) -> Profile:
    """Make a profile of columns (KEYS, weight, waits, first_ns), a sample a row; UsageError if weights sum to 2^62."""
    if sum(groups["weight"]) >= _MOST:
        raise UsageError(
            "the selected time is more than a picture can hold (146 years of waiting): "
            "choose fewer hosts, a shorter time, or --idle hide"
        )
    strings = Strings()
    chains, frames = _stacks(tables, groups, strings)
    parent, frame, stack = build_stack_tree(chains)
    events = list(dict.fromkeys(groups["event"]))
    samples = ProfileSamples.filled(
        len(groups["stack"]),
        stack=stack,
        period=np.array(groups["weight"], np.int64),
        count=np.array(groups["waits"], np.int64),
        comm=strings.intern_all(groups["comm"]),
        evsel=[events.index(name) for name in groups["event"]],
        flags=np.array(groups["marks"], np.uint32),
        state=[_STATES.get(letter, -1) for letter in groups["state"]],
        syscall=_syscalls(groups["syscall"]),
    )
    evsels, meta = [Evsel(name, Attr(), unit_of([name])) for name in events], Meta(source=title)
    stacks = Stacks(parent, frame)
    return Profile(samples=samples, stacks=stacks, frames=frames, strings=strings, evsels=evsels, meta=meta)


def tree_of(
    tables: Tables, comms: Sequence[str], stacks: Sequence[int], first_ns: Sequence[int], marks: Sequence[int]
) -> PathTree:
    """Return the call tree of n stacks (ids) below their comms; its samples are the n rows. `first_ns`: time of any
    sample with the stack, as the folder of its hour holds the frames; `marks`: flags in MARKS."""
    rows = len(stacks)
    groups: dict[str, Sequence[Any]] = {"comm": comms, "stack": stacks, "first_ns": first_ns, "marks": marks}
    groups |= {"event": [EVENT_NAME] * rows, "weight": [0] * rows, "waits": [0] * rows}
    groups |= {"state": [""] * rows, "syscall": [""] * rows}
    return build_paths(profile_of(tables, groups, ""), PathOptions())


def _syscalls(names: Sequence[str]) -> list[int]:
    numbers = {name: number for number, name in syscall_names("x86_64").items()} | {"": SYSCALL_NONE}
    return [numbers.get(name, SYSCALL_UNKNOWN) for name in names]


def _stacks(tables: Tables, groups: Mapping[str, Sequence[Any]], strings: Strings) -> tuple[Ragged, Frames]:
    """Read the stacks of the groups: return the chain of each group as rows of the table of frames, leaf first, and
    that table. Missing stacks and frames are left out."""
    ids = sorted({id_ for id_ in groups["stack"] if id_})
    hours = sorted({ns // HOUR_NS for ns, id_ in zip(groups["first_ns"], groups["stack"], strict=True) if id_})
    stacks = _by_id(tables, "stacks", "stack_id", ["frame_ids"], ids, hours)
    chain_of = dict(zip(stacks["stack_id"], stacks["frame_ids"], strict=True))
    used = sorted({id_ for chain in chain_of.values() for id_ in chain if id_ is not None})
    columns = ["symbol", "dso", "file", "line", "inlined", "kernel", "address"]
    frames = _by_id(tables, "frames", "frame_id", columns, used, hours)
    row_of = {id_: row for row, id_ in enumerate(frames["frame_id"])}
    chains = [[row_of[id_] for id_ in chain_of.get(stack, ()) if id_ in row_of] for stack in groups["stack"]]
    return Ragged.from_lists(chains), Frames.filled(
        len(row_of),
        symbol=strings.intern_all(frames["symbol"]),
        dso=strings.intern_all(frames["dso"]),
        address=np.array(frames["address"], np.int64).view(np.uint64),
        file=strings.intern_all(frames["file"]),
        line=frames["line"],
        inline_depth=np.array(frames["inlined"], np.int32),
        cpumode=[CpuMode.KERNEL if kernel else CpuMode.USER for kernel in frames["kernel"]],
    )


def _by_id(
    tables: Tables, name: str, key: str, columns: list[str], ids: list[int], hours: list[int]
) -> dict[str, list[Any]]:
    """Return `key` and `columns` of the rows of table `name` whose `key` is in `ids`, each id once, sorted. Only the
    folders of `hours` (since 1970) are read."""
    import ibis

    table = tables.table(name)
    if not ids:
        return {column: [] for column in [key, *columns]}
    days: dict[datetime.date, list[int]] = {}
    for hour in hours:
        days.setdefault(_EPOCH + datetime.timedelta(days=hour // 24), []).append(hour % 24)
    within = ((table.date == ibis.date(day)) & table.hour.isin(of_day) for day, of_day in days.items())
    table = table.filter(ibis.or_(*within))
    if len(ids) <= _FEW:
        table = table.filter(table[key].isin(ids))
    else:
        wanted = ibis.memtable({"id": ids}, schema=ibis.schema({"id": "int64"}))
        table = table.semi_join(wanted, table[key] == wanted.id)
    kept = {column: table[column].arbitrary() for column in columns if column != "frame_ids"}
    if "frame_ids" in columns:  # a list of millions of equal frames takes a kilobyte in a file
        kept["frame_ids"] = table.frame_ids[:_MOST_FRAMES].arbitrary()
    return tables.engine.run(table.group_by(key).aggregate(**kept).order_by(key))  # the same picture each time
