# SPDX-License-Identifier: Apache-2.0
"""Follow waits for TCP connections to the process at the other end, maybe on another host, and tell what its thread did
during the wait. If that thread waited for a connection in turn, this wait is followed, too. Not found are processes in
no recording or behind NAT or a proxy, and worker threads whose connection another thread reads: the reader is seen to
wait for the same connection. `path` prints a sentence on the heaviest step and a table."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.fleet.engine import records
from perf_offcpu.fleet.peers import (
    Clock,
    Offset,
    Threads,
    Wait,
    Window,
    fetch,
    offsets_of,
    overlapping,
    peers_of,
    single_waits,
)
from perf_offcpu.fleet.queries import Selected, host_names
from perf_offcpu.fleet.report import Head
from perf_offcpu.fleet.text import head, hours
from perf_offcpu.report import style as say
from perf_offcpu.report.style import Column, Style
from perf_offcpu.report.tables import coloured_table
from perf_offcpu.report.verdict.text import wrapped
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable

MOST = 5000  # number of waits that are followed; of more, some are drawn by their length
_PRIME = 1_000_003
RUNNING, CONNECTION, NO_PEER, CLOCKS = "running", "connection", "unknown peer", "clocks"
"""States of a peer that are no wait class: it ran, or its waits were too short to be recorded; it waited for the same
connection; no recording has it; the error of the clocks is too large for so short a wait."""
_MOST_HOPS = 4
_CLEAR = 4  # a window is followed if it is this many times as long as the error of the clocks


class Step(NamedTuple):
    """Row of `fleet path`: what the last of a chain of `peers` did, while `threads` waited for the first one."""

    threads: Threads
    network: str  # what TCP says of their wait (`analysis.classes.network`)
    peers: tuple[Threads, ...]  # each waited for the next; () if the first is not known
    doing: str  # label of a wait class, "" unknown; or RUNNING, CONNECTION, NO_PEER, CLOCKS
    object: str  # object for which the last peer waited; "" not known; printable


class ClockPair(NamedTuple):
    """Difference of the clocks of two hosts."""

    hosts: tuple[str, str]  # names
    offset: Offset  # clock of the second minus clock of the first


@frozen
class FleetPath:
    """Time that threads waited for TCP peers, divided by the state of the last peer of each chain; ns."""

    weight: int  # of all waits, without waiting for a CPU afterwards
    waits: int
    followed: int  # number of waits that were followed, and stand for all
    steps: list[tuple[Step, int]]  # largest first; they add up to `weight`
    clocks: list[ClockPair]  # of different hosts
    uncertain: int  # time that may belong to other steps, as clocks were compared with an error


def path_of(selected: Selected) -> FleetPath:
    """Sum the waits of the selected threads for TCP peers by what these peers did meanwhile. Only waits with a network
    cause (`analysis.classes.network`) are followed; waits of servers for requests have none."""
    samples, tables = selected.samples, selected.tables
    rows = single_waits(samples.filter(samples.network.notnull(), samples.remote_address.notnull()))
    weights = {name: rows[f"{name}_ns"].cast("decimal(38, 0)").sum().fill_null(0) for name in ("weight", "runq")}
    sums = tables.engine.run(rows.aggregate(waits=rows.count(), **weights))
    ((waits, weight, queued),) = records(sums, ("waits", "weight", "runq"))
    step_ns = weight // MOST if waits > MOST else 0
    follower = _Follower(selected)
    windows = [follower.begin(wait, step_ns) for wait in fetch(tables, drawn(rows, step_ns))]
    followed = len(windows)
    for _ in range(_MOST_HOPS):
        windows = follower.follow(windows)
    for window in windows:
        follower.add(window, WaitClass.NETWORK.label, window.object, window.weight)
    scale = (weight - queued) / (sum(follower.steps.values()) or 1)
    steps = [(step, round(ns * scale)) for step, ns in follower.steps.items() if ns * scale >= 1]
    steps.sort(key=lambda row: (-row[1], row[0]))
    uncertain = round(follower.uncertain * scale)
    return FleetPath(int(weight - queued), waits, followed, steps, follower.clocks(), uncertain)


def drawn(rows: Any, step_ns: int) -> Any:
    """Draw rows of an Ibis table of waits, each with probability weight_ns / `step_ns` (at most 1); all if that is 0.
    The draw is by a hash of time and tid, so that a repeated query draws the same rows."""
    if not step_ns:
        return rows
    position = (rows.time_ns % _PRIME * 7919 + rows.tid.cast("int64") * 104729) % _PRIME
    return rows.filter(position.cast("float64") / _PRIME * float(step_ns) < rows.weight_ns.cast("float64"))


class _Part(NamedTuple):
    """Wait of a peer within a window, by the clock of the peer."""

    window: Window
    doing: str  # as of `Step`
    object: str
    weight: float  # ns
    further: Window | None = None  # window of the peer's own wait for a connection, to be followed


class _Follower:
    """Follows waits for connections (`Window`) from peer to peer, and sums their time by `Step`."""

    def __init__(self, selected: Selected) -> None:
        self._tables, self._names = selected.tables, host_names(selected)
        self._offsets: dict[tuple[Clock, Clock], Offset] = {}
        self.steps = defaultdict[Step, float](float)
        self.uncertain = 0.0

    def begin(self, wait: Wait, step_ns: int) -> Window:
        """Return the window of a wait, without peers; it stands for `step_ns` or more, as `drawn` keeps one of
        several."""
        scale = wait.scale * max(step_ns / wait.weight_ns, 1)
        facts = wait.clock, wait.ends, wait.object, wait.begin_ns, wait.woken_ns, scale
        return Window(self._threads(wait), printable(wait.network), (), *facts)

    def add(self, window: Window, doing: str, object_: str, ns: float) -> None:
        """Add `ns` to the step in which the window's last peer was in state `doing`, at object `object_`."""
        self.steps[Step(window.threads, window.network, window.peers, doing, printable(object_))] += ns

    def clocks(self) -> list[ClockPair]:
        """Return the differences of the clocks of different hosts, by names of hosts."""
        named = {
            (self._name(one.host_id), self._name(other.host_id)): offset
            for (one, other), offset in self._offsets.items()
            if one != other
        }
        return [ClockPair(*pair) for pair in sorted(named.items())]

    def follow(self, windows: Sequence[Window]) -> list[Window]:
        """Sum what the peers did during `windows`; return windows of the peers' own waits for connections."""
        peers = peers_of(self._tables, windows)
        offsets = offsets_of(windows, peers)
        self._offsets |= offsets
        moved: list[tuple[Window, Wait]] = []
        for window, peer in zip(windows, peers, strict=True):
            offset = offsets[window.clock, peer.wait.clock] if peer else None
            if not peer or not offset:
                self.add(window, NO_PEER, window.object, window.weight)
            elif window.end_ns - window.begin_ns < _CLEAR * offset.error_ns:
                self.add(window, CLOCKS, "", window.weight)
            else:
                self.uncertain += min(2 * max(offset.error_ns, 0) * window.scale, window.weight)
                moved.append((self._at_peer(window, peer.wait, offset.ns), peer.wait))
        return self._divide(moved)

    def _divide(self, windows: Sequence[tuple[Window, Wait]]) -> list[Window]:
        """Sum the waits of peers in (window, wait of the peer) by step, the rest of the window as running; return the
        windows to be followed further. Sampled waits of peers may stand for more time than the windows: then the waits
        in a chain are scaled down to fit."""
        weight_of_step, explained = defaultdict[Step, float](float), defaultdict[Step, float](float)
        parts = list(self._parts(windows))
        for window, _ in windows:
            weight_of_step[_running(window)] += window.weight
        for part in parts:
            explained[_running(part.window)] += part.weight
        further: list[Window] = []
        for part in parts:
            step = _running(part.window)
            scale = min(weight_of_step[step] / explained[step], 1.0) if explained[step] else 1.0
            if part.further:
                further.append(replace(part.further, scale=part.further.scale * scale))
            else:
                self.add(part.window, part.doing, part.object, part.weight * scale)
        for step, weight in weight_of_step.items():
            self.steps[step] += max(weight - explained[step], 0)
        return further

    def _parts(self, windows: Sequence[tuple[Window, Wait]]) -> Iterator[_Part]:
        for window, wait, begin_ns, woken_ns, end_ns in overlapping(self._tables, windows):
            scale = window.scale * wait.scale
            blocked, queued = scale * (woken_ns - begin_ns), scale * (end_ns - woken_ns)
            if queued:
                yield _Part(window, WaitClass.RUNQUEUE.label, "", queued)
            if not blocked:
                continue
            if wait.ends == window.ends:
                yield _Part(window, CONNECTION, "", blocked)
            elif wait.network and wait.remote:
                facts = wait.clock, wait.ends, wait.object, begin_ns, woken_ns, scale
                further = Window(window.threads, window.network, window.peers, *facts)
                yield _Part(window, "", "", blocked, further)
            else:
                yield _Part(window, wait.wait_class, wait.object, blocked)

    def _at_peer(self, window: Window, peer: Wait, offset_ns: int) -> Window:
        """Return a window with a peer appended, by its clock (times + `offset_ns`) and ends of the connection."""
        return replace(
            window,
            peers=(*window.peers, self._threads(peer)),
            clock=peer.clock,
            ends=peer.ends,
            begin_ns=window.begin_ns + offset_ns,
            end_ns=window.end_ns + offset_ns,
        )

    def _threads(self, wait: Wait) -> Threads:
        return Threads(self._name(wait.host_id), printable(wait.comm))

    def _name(self, host_id: str) -> str:
        return self._names.get(host_id) or printable(host_id)


def _running(window: Window) -> Step:
    """Return the `Step` of the time in which a window's last peer ran, or its waits were too short to be recorded."""
    return Step(window.threads, window.network, window.peers, RUNNING, "")


_MOST_CLOCKS = 3
_DOING = {
    RUNNING: "ran, or waited too shortly",
    CONNECTION: "waited for this connection",
    NO_PEER: "not recorded",
    CLOCKS: "not known: the clocks differ",
    WaitClass.RUNQUEUE.label: "waited for a CPU",
    "": "waited: not known",
}
_ADVICE = {
    RUNNING: "ran, or waited for times too short to be recorded",
    CONNECTION: "waited for the same connection: the request was on its way, or another thread worked for it",
    NO_PEER: "the other end is in no recording: a proxy, NAT, a host without an agent, or a thread that waits briefly",
    CLOCKS: "the waits are too short for the difference of the clocks",
    WaitClass.RUNQUEUE.label: "waited for a CPU",
}


def path(followed: FleetPath, facts: Head, style: Style, limit: int | None) -> Iterator[str]:
    """Yield the lines of `fleet path`, at most `limit` steps (None: all)."""
    yield from head(facts, style)
    if not followed.steps:
        yield say.comment("No wait for a TCP connection is in the selection whose cause is known.")
        return
    sums = _of_all_objects(followed)
    yield from say.section(_first_sentence(followed, *sums[0]), style)
    for step in [step for step, _ in sums if step.peers and step.doing not in _DOING][:1]:
        last = step.peers[-1]
        words = f"--host {last.host} --comm {last.comm} --class {step.doing}"
        yield say.comment(f"Next: perf-offcpu fleet top {facts.source} {words}")
    yield from map(say.comment, wrapped(_remarks(followed)))
    yield say.comment("")
    shown = followed.steps[:limit]
    columns = [
        say.shares((ns for _, ns in shown), followed.weight),
        Column("Time", [hours(ns) for _, ns in shown]),
        say.names("Threads", (_name(step.threads) for step, _ in shown)),
        say.names("TCP", (step.network for step, _ in shown), spare=1),
        say.names("Waited for", (_names(step) for step, _ in shown)),
        say.names("Which", (_DOING.get(step.doing, f"waited: {step.doing}") for step, _ in shown)),
        say.names("Object", (step.object for step, _ in shown)),
    ]
    yield from coloured_table(columns, style)
    left = followed.weight - sum(ns for _, ns in shown)
    yield from say.more_rows((len(followed.steps) - len(shown), left), "row", facts.unit, style)


def _of_all_objects(followed: FleetPath) -> list[tuple[Step, Counter[str]]]:
    """Sum the steps over objects and network causes; return (step without these, ns by object), the largest first."""
    sums: dict[Step, Counter[str]] = {}
    for step, ns in followed.steps:
        sums.setdefault(step._replace(network="", object=""), Counter())[step.object] += ns
    return sorted(sums.items(), key=lambda row: -row[1].total())


def _first_sentence(followed: FleetPath, step: Step, objects: Counter[str]) -> str:
    """Return the sentence on the largest `step` and the object with most of its time (`objects`: ns by object)."""
    (object_, most), *_ = objects.most_common(1)
    others = " and others" if any(other.threads != step.threads for other, _ in followed.steps) else ""
    share = f"{round(100 * objects.total() / followed.weight)} % of {hours(followed.weight)}"
    cause = _ADVICE.get(step.doing, f"waited: {step.doing or say.NOT_KNOWN}")
    if 2 * most > objects.total() and object_ not in ("", step.doing):
        cause += f" ({'mostly ' if len(objects) > 1 else ''}{object_})"
    if step.peers and step.doing not in (NO_PEER, CLOCKS):
        above = "".join(f", for {_name(peer)}," for peer in step.peers[-2:-1])
        cause = f"{_name(step.peers[-1])}{above} {cause}"
    return f"{share} that {_name(step.threads)}{others} waited for TCP connections, {cause}"


def _remarks(followed: FleetPath) -> Iterator[str]:
    """Yield sentences on unknown peers, differences of clocks, and shares that are estimates."""
    unknown = sum(ns for step, ns in followed.steps if step.doing == NO_PEER)
    if unknown:
        yield f"Unknown peers: {say.share(unknown, followed.weight)}."
    unlike = sorted(followed.clocks, key=lambda pair: -max(abs(pair.offset.ns), pair.offset.error_ns))
    for (one, other), offset in unlike[:_MOST_CLOCKS]:
        if offset.error_ns < 0:
            yield f"Clocks of {one} and {other}: not compared, taken as equal."
        else:
            numbers = f"{offset.ns / 1e6:+.3f} ms, give or take {offset.error_ns / 1e6:.3f} ms"
            yield f"Clock of {other} against that of {one}: {numbers}, by {say.plural(offset.pairs, 'request')}."
    if unlike[_MOST_CLOCKS:]:
        yield f"Clocks of {len(unlike) - _MOST_CLOCKS} more pairs of hosts differ less (--json)."
    if followed.uncertain:
        yield f"Up to {say.share(followed.uncertain, followed.weight)} may belong to other rows for that."
    if followed.followed < followed.waits:
        yield f"{followed.followed} of {followed.waits} waits were drawn by their length: shares are estimates."


def _name(threads: Threads) -> str:
    return f"{threads.comm} on {threads.host}"


def _names(step: Step) -> str:
    """Return the chain of peers, each waiting for the next, as text: `A → B`."""
    return " → ".join(map(_name, step.peers)) or say.NOT_KNOWN
