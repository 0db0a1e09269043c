# SPDX-License-Identifier: Apache-2.0
"""Join several recordings: of one host to one Recording, of several hosts next to each other.

A *host* here is a machine from one boot to the next: ids of processes, CPUs, cgroups and kernel addresses
hold only within one. Two recordings are of the same host if host name, kernel release and place of the kernel
in memory (KASLR moves it at each boot) agree, and their offsets to the wall clock, if known, too.

*Clock*: recordings of one host and one clock need no change. Other recordings are moved to CLOCK_REALTIME by
their CLOCK_DATA (`perf record -k mono`, and all of this project's), or on request so that all begin with the first.

Recordings of one host become one: a process in two of them is one process, a wait that went on from one file
of `record --switch-output` into the next counts once. Names, maps and processes that a recording found at its
begin hold from then on, so that a reused pid is not mistaken. Hosts stay apart until their addresses are
named, each by its own kernel and files (`symbolize.load`)."""

import dataclasses
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perf_offcpu.decode.continued import joined_budget, repeats, seen_again, without_continued
from perf_offcpu.errors import UsageError
from perf_offcpu.model.columns import I64, Renumber, group
from perf_offcpu.model.join import join, renumbered, to_rows
from perf_offcpu.model.lookup import KERNEL_SPACE, kernel_map
from perf_offcpu.model.recording import Comms, KernelSymbols, Maps, Meta, Recording, Tasks
from perf_offcpu.structs import frozen

CLOCK_REALTIME = 0
_SAME_BOOT_NS = 10 * 10**9  # most that the wall clock may have been set between two recordings of one boot
_MOST_CPUS = 1 << 16  # more than Linux has: a damaged recording may name any number, and those of all hosts add up
_SECOND = 10**9
_LAST_NS = 2**63 - 1


@frozen
class JoinOptions:
    """Says how recordings are joined."""

    apart: bool = False  # take every recording to be of a host of its own
    # all recordings begin at the same moment, whatever their clocks say; implies `apart`, because a process
    # that is in two of them would be in two places at once
    from_start: bool = False
    prefix: bool = True  # let comms and cgroups begin with the host's name, if there are several hosts


class Host(NamedTuple):
    """Holds the name of a host, the number of its CPUs, and its recordings joined to one."""

    name: str
    cpus: int
    recording: Recording


class _Span(NamedTuple):
    begin: int  # first time of a recording, ns on its own clock; 0 if it has no times
    end: int  # last time, likewise


def join_by_host(recordings: Sequence[Recording], options: JoinOptions | None = None) -> list[Host]:
    """Join the recordings of each host, and put all on one clock; hosts in order of their first recordings.
    `recordings`: without snapshots of user stacks, which unwinding has replaced by callchains. Raises UsageError:
    architectures differ, or a clock is not known."""
    options = options or JoinOptions()
    metas = [recording.meta for recording in recordings if recording.meta.arch]
    if strangers := [meta for meta in metas if meta.arch != metas[0].arch]:
        archs = " and ".join(sorted((strangers[0].arch, metas[0].arch)))
        raise UsageError(f"{metas[0].source} and {strangers[0].source} are of {archs} machines")
    spans = [_span(recording) for recording in recordings]
    walls = [_wall_offset(recording.meta, span) for recording, span in zip(recordings, spans, strict=True)]
    hosts = _rows_by_host(recordings, walls, apart=options.apart or options.from_start)
    clockid, deltas = _clock(recordings, spans, walls, one_host=len(hosts) == 1, options=options)
    return [_host([(recordings[row], deltas[row], spans[row].begin) for row in rows], clockid) for rows in hosts]


def _host(parts: list[tuple[Recording, int, int]], clockid: int) -> Host:
    """Join the recordings of one host; a part is (recording, ns to add to its times, its begin before the addition)."""
    begins = [begin + delta for _, delta, begin in parts]
    # Tasks and maps that a later recording found at its begin are known from then on only.
    since = [begin - 1 if begin > min(begins) else 0 for begin in begins]
    moved = [_moved(part, delta, start, clockid) for (part, delta, _), start in zip(parts, since, strict=True)]
    cpus = max(part.meta.nr_cpus or int(part.samples.cpu.max(initial=-1)) + 1 for part in moved)
    cpus = min(cpus, _MOST_CPUS)
    name = moved[0].meta.hostname or os.path.basename(moved[0].meta.source)
    return Host(name, cpus, moved[0] if len(moved) == 1 else _joined(moved, since, cpus))


def _span(recording: Recording) -> _Span:
    meta, tasks = recording.meta, recording.tasks
    own = np.array([meta.begin_ns, meta.end_ns, meta.first_ns, meta.last_ns], np.int64)
    times = np.concatenate([own, tasks.begin_ns, tasks.end_ns, recording.comms.begin_ns, recording.spaces.begin_ns])
    times = times[times > 0]
    return _Span(int(times.min()), int(times.max())) if len(times) else _Span(0, 0)


def _wall_offset(meta: Meta, span: _Span) -> int | None:
    """Return the offset from a recording's times to CLOCK_REALTIME, ns; None if it is not known. A recorder notes both
    clocks as it begins. If its note is later than all that it recorded, it ran in a time namespace: clock_gettime() is
    shifted there, the kernel's own times are not."""
    offset = meta.wall_clock_ns - meta.wall_clock_at_ns
    is_shifted = meta.wall_clock_at_ns > span.end + _SECOND > _SECOND
    return None if not meta.wall_clock_ns or is_shifted or abs(offset) > _LAST_NS // 2 else offset


def _rows_by_host(recordings: Sequence[Recording], walls: list[int | None], *, apart: bool) -> list[list[int]]:
    hosts: list[list[int]] = []
    for row, recording in enumerate(recordings):
        same = (rows for rows in hosts if _is_same_boot(recordings[rows[0]], recording, (walls[rows[0]], walls[row])))
        rows = None if apart else next(same, None)
        if rows is None:
            hosts.append([row])
        else:
            rows.append(row)
    return hosts


def _is_same_boot(recording: Recording, other: Recording, walls: tuple[int | None, int | None]) -> bool:
    for name in ("hostname", "os_release", "kernel_build_id"):  # missing in recordings of killed recorders
        if len({getattr(recording.meta, name), getattr(other.meta, name)} - {""}) > 1:
            return False
    texts = kernel_map(recording).address, kernel_map(other).address
    if texts[0] != texts[1] if all(texts) else not (recording.meta.hostname and other.meta.hostname):
        return False  # another boot, or no evidence for the same one
    if recording.meta.clockid == other.meta.clockid and walls[0] is not None and walls[1] is not None:
        return abs(walls[0] - walls[1]) < _SAME_BOOT_NS
    return True


def _clock(
    recordings: Sequence[Recording], spans: list[_Span], walls: list[int | None], one_host: bool, options: JoinOptions
) -> tuple[int, list[int]]:
    """Return (clockid of all recordings after the move, ns to add to the times of each recording)."""
    clocks = [recording.meta.clockid for recording in recordings]
    if options.from_start:
        return clocks[0], [spans[0].begin - span.begin for span in spans]
    if one_host and len(set(clocks)) == 1:
        return clocks[0], [0] * len(recordings)
    for recording, wall in zip(recordings, walls, strict=True):
        if wall is None:
            raise UsageError(
                f"{recording.meta.source}: its times cannot be put next to those of another clock or host, because "
                "it does not say what time it was (perf record -k mono does, outside of time namespaces): "
                "use --from-start to let all begin at once"
            )
    return CLOCK_REALTIME, [wall or 0 for wall in walls]


def _moved(recording: Recording, delta: int, since: int, clockid: int) -> Recording:
    """Return a recording with `delta` ns added to its times, and clock `clockid`. Rows that are valid from 0
    on, from before the recording, become valid from `since` (ns) on."""
    later = _later(delta)

    def begins(times: I64) -> I64:
        return np.where(times == 0, np.int64(since), later(times))

    meta = recording.meta
    names = ("begin_ns", "end_ns", "first_ns", "last_ns")
    times = later(np.array([getattr(meta, name) for name in names], np.int64)).tolist()
    meta = dataclasses.replace(
        meta,
        clockid=clockid,
        wall_clock_at_ns=meta.wall_clock_at_ns + delta if meta.wall_clock_ns else 0,
        parts=tuple((begin + delta, end + delta) for begin, end in meta.parts),
        **dict(zip(names, times, strict=True)),
    )
    moved = renumbered(recording, {"time": later, "since": begins}) if delta or since else recording
    return moved.replaced(meta=meta)


def _later(delta: int) -> Renumber:
    """Return a function that adds `delta` to int64 times, clipped to 1 … 2^63 - 1; 0 and -1, no times, stay."""

    def change(times: I64) -> I64:
        low, high = (1 - delta, _LAST_NS) if delta < 0 else (1, _LAST_NS - delta)
        return np.where(times > 0, np.clip(times, low, high) + delta, times)

    return change


def _joined(recordings: list[Recording], since: list[int], cpus: int) -> Recording:
    """Join recordings of one host and clock; since[i]: begin_ns of the tasks that recording i found at its begin."""
    joined = join(recordings, cpus)
    budget, borders = joined_budget([joined.budget])
    samples = seen_again(without_continued(joined.samples, borders, joined.meta.end_ns))
    # Stable: samples of one time stay in the order of the recordings; those without time come first.
    samples.reorder(np.argsort(samples.time_ns, kind="stable"))
    first, row_of = group(*(getattr(joined.dsos, name) for name in joined.dsos.columns))
    deferred = joined.deferred
    return joined.replaced(
        samples=samples,
        budget=budget,
        tasks=_lives(joined.tasks, np.array([0, *since], np.int64)),
        comms=_names(joined.comms),
        dsos=joined.dsos.take(first),
        maps=_maps(joined.maps).renumbered({"dsos": to_rows(row_of)}),
        deferred=deferred.take(np.argsort(deferred.time_ns, kind="stable")),
        kernel_symbols=_symbols(joined.kernel_symbols),
    )


def _lives(tasks: Tasks, since: I64) -> Tasks:
    """Merge the rows that several recordings have for one life of a thread: consecutive rows of one tid and pid with
    the same begin, or where the later begins with its recording (a time in `since`), and the earlier had not ended."""
    tasks = tasks.take(np.lexsort((tasks.begin_ns, tasks.tid)))
    begin, end = tasks.begin_ns, tasks.end_ns
    is_begin = np.isin(begin[1:], since) & ((end[:-1] < 0) | (end[:-1] > begin[1:]))
    is_same = (is_begin | (begin[1:] == begin[:-1])) & (tasks.tid[1:] == tasks.tid[:-1])
    is_same &= tasks.pid[1:] == tasks.pid[:-1]
    first = np.flatnonzero(np.append(True, ~is_same)[: len(tasks)])
    return tasks.take(first).with_columns(end_ns=np.maximum.reduceat(end, first) if len(first) else end)


def _names(comms: Comms) -> Comms:
    comms = comms.take(np.lexsort((comms.begin_ns, comms.tid)))
    return comms.take(~repeats((comms.tid, comms.tid), (comms.pid, comms.pid), (comms.comm, comms.comm)))


def _maps(maps: Maps) -> Maps:
    """Return the mappings by (space, start), without kernel mappings that begin below the end of one before them."""
    is_kernel = maps.space == KERNEL_SPACE
    kernel, others = maps.take(is_kernel), maps.take(~is_kernel)
    kernel = kernel.take(np.argsort(kernel.start, kind="stable"))
    is_free = np.ones(len(kernel), np.bool_)
    is_free[1:] = kernel.start[1:] >= np.maximum.accumulate(kernel.end)[:-1]
    return Maps.concat([kernel.take(is_free), others])


def _symbols(symbols: KernelSymbols) -> KernelSymbols:
    """Return the symbols sorted by address; where several recordings name one address, the last one's symbol."""
    symbols = symbols.take(np.argsort(symbols.start, kind="stable"))
    is_last = np.append(~repeats((symbols.start, symbols.start))[1:], True)[: len(symbols)]
    return symbols.take(is_last)
