# SPDX-License-Identifier: Apache-2.0
"""Find the thread at the other end of a TCP connection, perhaps on another host: it waited for the same connection, so
that its rows of `samples` have the same two addresses, exchanged. Of several threads it is the one whose wait ended
nearest to the begin of the window (by the request), or began nearest to the end of the window (after the answer).

Clocks of two hosts are compared by pairs of window and peer: a request arrives a moment after the window begins, and
the thread waits again a moment before it ends. The offset is half way between both, as in NTP, and half of their
difference is its error. A host has the same clock until it boots."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from perf_offcpu.abi.offcpu import EVENT_NAME
from perf_offcpu.fleet.engine import records
from perf_offcpu.fleet.selection import Selection, in_hours
from perf_offcpu.fleet.tables import Tables
from perf_offcpu.model.recording import SUM_FLAGS
from perf_offcpu.structs import frozen

_NEAR_NS = 10**9  # longest time between a window and the wait of its peer for the request, by wrong clocks
_FAR_NS = 600 * 10**9  # and a wait of its peer for other requests
_CALL_NS = 100_000  # time between sending and waiting, or between a wake-up and its note
_TEXTS = "class object network local_address remote_address".split()
_ENDS = ["local_address", "remote_address"]
_THREAD = ["host_id", "boot_id", "tid", "pid", *_ENDS]
_COLUMNS = ["host_id", "boot_id", "pid", "tid", "comm", "time_ns", "off_ns", "runq_ns", "weight_ns", *_TEXTS]

Ends = tuple[str, str]
"""Addresses of the two ends of a connection, that of the waiting thread first."""


class Clock(NamedTuple):
    """Identity of a clock: a host from one boot to the next."""

    host_id: str
    boot_id: str


class Wait(NamedTuple):
    """A single wait of a thread, a row of table `samples`; times in ns since 1970 by the host's clock."""

    host_id: str
    boot_id: str
    pid: int
    tid: int
    comm: str
    time_ns: int  # its end
    off_ns: int  # its length
    runq_ns: int  # part of weight_ns
    weight_ns: int  # time that the row stands for: more than off_ns where waits were sampled by length
    wait_class: str
    object: str
    network: str
    local: str
    remote: str

    @property
    def begin_ns(self) -> int:
        """Return the begin of the wait."""
        return self.time_ns - self.off_ns

    @property
    def woken_ns(self) -> int:
        """Return the wake-up, the end of the time blocked."""
        return self.time_ns - round(self.off_ns * min(self.runq_ns / max(self.weight_ns, 1), 1))

    @property
    def scale(self) -> float:
        """Return weight_ns / off_ns: more than 1 if waits were sampled by length."""
        return self.weight_ns / self.off_ns

    @property
    def clock(self) -> Clock:
        """Return the clock by which the wait's times were taken."""
        return Clock(self.host_id, self.boot_id)

    @property
    def ends(self) -> Ends:
        """Return the (local, remote) addresses of the connection; ("", "") if the wait was for no connection."""
        return self.local, self.remote


class Threads(NamedTuple):
    """Names of a host and of the comm of some of its threads; printable."""

    host: str
    comm: str


@frozen
class Window:
    """Time in which the last of `peers`, or `threads` if there are none yet, waited for a connection's other end."""

    threads: Threads  # threads whose wait is followed from peer to peer
    network: str  # what TCP says of the wait of `threads` (`analysis.classes.network`)
    peers: tuple[Threads, ...]  # each waited for the next
    clock: Clock  # of begin_ns and end_ns
    ends: Ends  # of the connection, the waiting thread's first
    object: str  # name of the connection
    begin_ns: int
    end_ns: int  # the wake-up
    scale: float  # ns that a ns of the window stands for

    @property
    def weight(self) -> float:
        """Return the ns of waits for which the window stands: its length times `scale`."""
        return self.scale * (self.end_ns - self.begin_ns)


class Peer(NamedTuple):
    """A wait of the thread at the other end near a window, and the times between both; clocks are not corrected."""

    wait: Wait
    request_ns: int  # from the begin of the window to the wake-up nearest to it (by the request); may be negative
    answer_ns: int  # from the end of the window to the begin of a wait nearest to it (after the answer)


class Offset(NamedTuple):
    """Difference of two clocks."""

    ns: int  # add it to times of the first clock to get times of the second
    error_ns: int  # of `ns`; -1 if the clocks were not compared, and are taken as equal
    pairs: int  # number of windows from which it was computed


def single_waits(samples: Any) -> Any:
    """Filter table `samples` to rows that are one wait each; add `begin_ns`, replace nulls by 0 and ""."""
    is_single = (
        (samples.event == EVENT_NAME)
        & (samples.off_ns > 0)
        & (samples.weight_ns > 0)
        & ((samples.flags & int(SUM_FLAGS)) == 0)
    )
    texts = {name: samples[name].fill_null("") for name in _TEXTS}
    return samples.filter(is_single).mutate(
        runq_ns=samples.runq_ns.fill_null(0), begin_ns=samples.time_ns - samples.off_ns, **texts
    )


def fetch(tables: Tables, rows: Any) -> list[Wait]:
    """Run an Ibis expression made from `single_waits` and return its rows, in no order."""
    return [Wait(*row) for row in records(tables.engine.run(rows.select(_COLUMNS)), _COLUMNS)]


def _near(tables: Tables, wanted: Sequence[tuple[Any, ...]], keys: Sequence[str]) -> Any:
    """Return an Ibis table of the single waits that match a row (*values of `keys`, begin, end) of `wanted`: the same
    values, and overlap with the time from begin to end (ns)."""
    import ibis

    first, last = min(times[-2] for times in wanted), max(times[-1] for times in wanted)
    rows = single_waits(tables.table("samples"))
    rows = rows.filter(*in_hours(rows, Selection(since_ns=max(first, 0), until_ns=last + _FAR_NS)))
    types = {f"of_{name}": rows[name].type() for name in keys} | {"from_ns": "int64", "to_ns": "int64"}
    table = ibis.memtable(list(wanted), schema=ibis.schema(types))
    on = [rows[name] == table[f"of_{name}"] for name in keys]
    return rows.semi_join(table, [*on, rows.time_ns > table.from_ns, rows.begin_ns < table.to_ns])


def peers_of(tables: Tables, windows: Sequence[Window]) -> list[Peer | None]:
    """Find the peer of each window; None if no host recorded the other end of its connection, or several hosts did."""
    import ibis

    if not windows:
        return []
    others = _by_ends(fetch(tables, _near(tables, _times(windows, _NEAR_NS), _ENDS)))
    if alone := [window for window in windows if window.ends[::-1] not in others]:
        # Its waits are short, or were not drawn: any wait of the connection names the thread.
        rows = _near(tables, _times(alone, _FAR_NS), _ENDS).group_by(_THREAD)
        threads = rows.aggregate(comm=lambda rows: rows.comm.max(), time_ns=lambda rows: rows.time_ns.max())
        texts = {name: ibis.literal("") for name in ("class", "object", "network")}
        others |= _by_ends(fetch(tables, threads.mutate(off_ns=1, runq_ns=0, weight_ns=1, **texts)))
    return [others[window.ends[::-1]].nearest(window) if window.ends[::-1] in others else None for window in windows]


def _times(windows: Sequence[Window], around_ns: int) -> list[tuple[Any, ...]]:
    return [(*window.ends[::-1], window.begin_ns - around_ns, window.end_ns + around_ns) for window in windows]


def _by_ends(waits: Iterable[Wait]) -> dict[Ends, "_OtherEnd"]:
    of_ends: dict[Ends, list[Wait]] = {}
    for wait in waits:
        of_ends.setdefault(wait.ends, []).append(wait)
    return {ends: _OtherEnd(waits) for ends, waits in of_ends.items()}


class _OtherEnd:
    """All waits of the threads at one end of a connection, to look up the one near a window."""

    def __init__(self, waits: Sequence[Wait]) -> None:
        self._by_wakeup = sorted(waits, key=lambda wait: wait.woken_ns)
        self._by_begin = sorted(waits, key=lambda wait: wait.begin_ns)
        self._wakeups = [wait.woken_ns for wait in self._by_wakeup]
        self._begins = [wait.begin_ns for wait in self._by_begin]
        self._hosts = {wait.host_id for wait in waits}

    def nearest(self, window: Window) -> Peer | None:
        """Return the wait nearest to a window, and its distances; None if the address does not identify the host."""
        # Private addresses are in use in many places, and 127.0.0.1 in all.
        if len(self._hosts) > 1 or (_is_loopback(window.ends[0]) and self._by_begin[0].clock != window.clock):
            return None
        asked, request_ns = _nearest(self._by_wakeup, self._wakeups, window.begin_ns)
        after, answer_ns = _nearest(self._by_begin, self._begins, window.end_ns)
        wait = asked if abs(request_ns) <= abs(answer_ns) else after
        return Peer(wait, request_ns, answer_ns)


def _is_loopback(address: str) -> bool:
    return address.startswith(("127.", "[::1]"))


def _nearest(waits: Sequence[Wait], times: Sequence[int], ns: int) -> tuple[Wait, int]:
    """Return the wait whose time in `times` (sorted, of each wait) is nearest to `ns`, and that time minus `ns`."""
    after = bisect_left(times, ns)
    index = min(range(max(after - 1, 0), min(after + 1, len(times))), key=lambda index: abs(times[index] - ns))
    return waits[index], times[index] - ns


def offsets_of(windows: Sequence[Window], peers: Sequence[Peer | None]) -> dict[tuple[Clock, Clock], Offset]:
    """Estimate (clock of a window, clock of its peer) → offset, from the times between windows and the waits of their
    peers. Times longer than half a window belong to other requests and do not count."""
    distances: dict[tuple[Clock, Clock], tuple[list[int], list[int]]] = {}
    for window, peer in zip(windows, peers, strict=True):
        if peer is None:
            continue
        most = (window.end_ns - window.begin_ns) // 2
        of_pair = distances.setdefault((window.clock, peer.wait.clock), ([], []))
        for values, distance in zip(of_pair, (peer.request_ns, peer.answer_ns), strict=True):
            if abs(distance) <= most:
                values.append(distance)
    return {clocks: _offset(clocks, *of_pair) for clocks, of_pair in distances.items()}


def _offset(clocks: tuple[Clock, Clock], requests: Sequence[int], answers: Sequence[int]) -> Offset:
    pairs = min(len(requests), len(answers))
    if clocks[0] == clocks[1]:
        return Offset(0, 0, pairs)
    if not pairs:
        return Offset(0, -1, 0)
    # Threads do something else before they wait, now and then: quartiles.
    after, before = float(np.quantile(requests, 0.75)), float(np.quantile(answers, 0.25))
    return Offset(round((after + before) / 2), round(abs(after - before) / 2) + _CALL_NS, pairs)


def overlapping(tables: Tables, windows: Sequence[tuple[Window, Wait]]) -> Iterator[tuple[Window, Wait, int, int, int]]:
    """Yield (window, wait, begin, wake-up, end) for each wait of a peer that overlaps its window, with the ns cut to
    the window. `windows`: pairs of a window by the clock of the peer and any wait of the peer's thread."""
    if not windows:
        return
    wanted = [(*_thread(wait), window.begin_ns, window.end_ns) for window, wait in windows]
    of_thread: dict[tuple[Any, ...], list[Wait]] = {}
    for wait in fetch(tables, _near(tables, wanted, _THREAD[:3])):
        of_thread.setdefault(_thread(wait), []).append(wait)
    ends = {}
    for thread, waits in of_thread.items():
        waits.sort(key=lambda wait: wait.time_ns)
        ends[thread] = [wait.time_ns for wait in waits]
    for window, peer in windows:
        waits = of_thread.get(_thread(peer), [])
        for row in range(bisect_left(ends.get(_thread(peer), []), window.begin_ns), len(waits)):
            wait = waits[row]
            if wait.begin_ns >= window.end_ns:
                break
            begin, woken, end = (
                min(max(ns, window.begin_ns), window.end_ns) for ns in (wait.begin_ns, wait.woken_ns, wait.time_ns)
            )
            yield window, wait, begin, woken, end


def _thread(wait: Wait) -> tuple[str, str, int]:
    return wait.host_id, wait.boot_id, wait.tid
