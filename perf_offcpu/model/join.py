# SPDX-License-Identifier: Apache-2.0
"""Join Recordings, or Profiles, to one: rows one after the other, row ids renumbered. Each column declares the meaning
of its values (`columns.Domain`), so one function serves all tables. Equal strings, events and callchains become one
row; the rows of other tables are not merged. The callers sort the result: `decode.join` joins the recordings of one
host, `symbolize.load` the profiles of several hosts."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.attr import AttrFlag, SampleType
from perf_offcpu.binary.columnar import offsets_of
from perf_offcpu.model.chain_table import ChainTable
from perf_offcpu.model.columns import Bool, Renumber, Strings, tables_of, unambiguous
from perf_offcpu.model.coverage import Sampling, united
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Evsel, Meta, Recording, WaitObjects

Part = TypeVar("Part", Recording, Profile)
PID_STEP: Final = 10_000_000
"""Pids and tids of host k are increased by k times this number, in profiles of several hosts.

It exceeds all pids, which end at 4 194 304. It is decimal, so that the old pid is legible in the new one."""


def host_of(tids: NDArray[Any], meta: Meta) -> NDArray[Any]:
    """Return the host of each tid, an index in `meta.hosts`; 0 for unknown tids, and if there is one host only. Tids
    beyond those of all hosts (in damaged recordings) are the last host's."""
    hosts: NDArray[Any] = np.clip(tids // PID_STEP, 0, max(len(meta.hosts) - 1, 0))
    return hosts


def is_idle_task(tids: NDArray[Any]) -> Bool:
    """Return bool[n]: True for the tid of an idle task (0 on each host, so k * PID_STEP), which is no thread."""
    idle: Bool = tids % PID_STEP == 0
    return idle


_IDS = SampleType.IDENTIFIER | SampleType.ID | SampleType.STREAM_ID
"""Fields that identify the event of a sample, and hold nothing else."""


def to_rows(rows: NDArray[Any]) -> Renumber:
    """Return a function that replaces each row id `i` by `rows[i]`; -1 stays."""
    rows = np.append(rows.astype(np.int64), -1)
    return lambda ids: rows[ids].astype(ids.dtype)


def shifted(by: int) -> Renumber:
    """Return a function that adds `by` to ids; -1 stays -1, and sums that exceed the dtype become its largest value."""

    def change(ids: NDArray[Any]) -> NDArray[Any]:
        most = ids.dtype.type(np.iinfo(ids.dtype).max - by)
        return np.where(ids >= 0, np.minimum(ids, most) + ids.dtype.type(by), ids)

    return change if by else lambda ids: ids


def renumbered(part: Part, changes: Mapping[str, Renumber]) -> Part:
    """Return a recording or profile with `changes[domain]` applied to the columns whose values are of that `Domain`."""
    tables: dict[str, Any] = {name: table.renumbered(changes) for name, table in tables_of(part).items()}
    return dataclasses.replace(part, **tables)


def join(parts: Sequence[Part], nr_cpus: int) -> Part:
    """Join recordings, or profiles, one after the other; snapshots, unwound before, are dropped. `nr_cpus`: of all."""
    strings, evsels, chains = Strings(), dict[tuple[object, ...], tuple[int, Evsel]](), ChainTable()
    first: Counter[str] = Counter()
    done: list[Part] = []
    tables = [part.objects for part in parts if isinstance(part, Recording)]
    for number, part in enumerate(parts):
        text = to_rows(strings.intern_all(part.strings))
        event = [evsels.setdefault(_key(evsel), (len(evsels), evsel))[0] for evsel in part.evsels]
        changes = {"strings": text, "comm": text, "evsels": to_rows(np.array(event, np.int32))}
        changes |= {name: shifted(first[name]) for name in tables_of(part)}
        if isinstance(part, Recording):
            changes["callchains"] = to_rows(chains.add(part.callchains))
            changes["object_ids"] = _to_object_ids(tables, number)
        done.append(renumbered(part, changes))
        first.update({name: len(table) for name, table in tables_of(part).items()})
    kinds = {name: type(table) for name, table in tables_of(done[0]).items()}
    joined: dict[str, Any] = {name: kind.concat([getattr(part, name) for part in done]) for name, kind in kinds.items()}
    joined |= {"strings": strings, "evsels": [evsel for _, evsel in evsels.values()]}
    joined["losses"] = dict(sum((Counter(part.losses) for part in parts), Counter()))
    joined["loops"] = tuple(loop for part in parts for loop in part.loops)
    joined["cgroups"] = {id_: path for part in parts for id_, path in part.cgroups.items()}
    meta = joined["meta"] = _joined_meta([part.meta for part in parts], nr_cpus)
    if isinstance(parts[0], Recording):
        joined["callchains"], joined["perf_maps"] = chains.release(), dict[int, bytes]()
        for pid, lines in ((pid, lines) for part in parts for pid, lines in part.perf_maps.items()):
            joined["perf_maps"][pid] = joined["perf_maps"].get(pid, b"") + lines
    else:
        meta.hosts = tuple(part.meta.recorded for part in parts)
        ids = ((part.strings[row], id_) for part in parts for row, id_ in part.build_ids.items())
        joined["build_ids"] = unambiguous((strings.find(path), id_) for path, id_ in ids)
    return type(parts[0])(**joined)


def _to_object_ids(tables: Sequence[WaitObjects], number: int) -> Renumber:
    """Return a function from object ids of recording `number` to ids in the joined table, which are row + 1. Recordings
    may use one id for different objects, so an id means the object in the recording's own table; if it is not there, in
    the first other table that has it (it may be another file of the recording). Ids in no table become 0."""
    first = offsets_of(np.array([len(table) for table in tables], np.int64))

    def change(ids: NDArray[Any]) -> NDArray[Any]:
        joined_ids = np.zeros(len(ids), np.uint64)
        for other in sorted(range(len(tables)), key=lambda index: index != number):
            ids_before = tables[other].id
            place = np.searchsorted(ids_before, ids)
            hit = (joined_ids == 0) & (ids != 0) & (np.append(ids_before, np.uint64(0))[place] == ids)
            joined_ids[hit] = place[hit] + int(first[other]) + 1
        return joined_ids

    return change


def _key(evsel: Evsel) -> tuple[object, ...]:
    """Return the properties of an event; events with equal ones become one: name, event, fields of samples, period."""
    attr = evsel.attr
    period = 0 if attr.sample_type & SampleType.PERIOD else (attr.sample_period, attr.flags & AttrFlag.FREQ)
    counted = attr.type, attr.config, attr.config1, attr.config2
    return evsel.name, *counted, attr.sample_type & ~_IDS, attr.read_format, period


def _joined_meta(metas: Sequence[Meta], nr_cpus: int) -> Meta:
    """Return the meta of the joined parts; a text that differs between them becomes a list with commas."""
    clock = next((meta for meta in metas if meta.wall_clock_ns), metas[0])
    commands = dict.fromkeys(meta.cmdline for meta in metas if meta.cmdline)
    builds = {meta.kernel_build_id for meta in metas}
    names = ("os_release", "arch", "version", "cpu_desc", "source")
    texts: dict[str, Any] = {name: _listed([getattr(meta, name) for meta in metas]) for name in names}
    return Meta(
        **texts,
        hostname=_listed([meta.hostname for meta in metas], ","),
        cmdline=tuple(word for command in commands for word in (";", *command))[1:],
        nr_cpus=nr_cpus,
        clockid=clock.clockid,
        wall_clock_ns=clock.wall_clock_ns,
        wall_clock_at_ns=clock.wall_clock_at_ns,
        begin_ns=min((meta.begin_ns for meta in metas if meta.begin_ns), default=0),
        end_ns=max(meta.end_ns for meta in metas),
        sampling=joined_sampling([meta.sampling for meta in metas]),
        threshold_ns=max(meta.threshold_ns for meta in metas),
        first_ns=min((meta.first_ns for meta in metas if meta.first_ns >= 0), default=-1),
        last_ns=max(meta.last_ns for meta in metas),
        kernel_build_id=builds.pop() if len(builds) == 1 else "",
        parts=tuple(united(span for meta in metas for span in meta.recorded)),
    )


def _listed(texts: Sequence[str], comma: str = ", ") -> str:
    return comma.join(dict.fromkeys(filter(None, texts)))


def joined_sampling(parts: Sequence[Sampling]) -> Sampling:
    """Return the sampling of several recordings together: sums of the totals, the longest of each kind of period."""
    names = Sampling._fields
    longest = {name: max((getattr(part, name) for part in parts), default=0) for name in names if "period" in name}
    return Sampling(**{name: sum(getattr(part, name) for part in parts) for name in names} | longest)
