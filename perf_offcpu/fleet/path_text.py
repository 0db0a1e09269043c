# SPDX-License-Identifier: Apache-2.0
"""Print what peers did while threads waited for them: one sentence on the heaviest step, then a table."""

from collections import Counter
from collections.abc import Iterator

from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.fleet.path import CLOCKS, CONNECTION, NO_PEER, RUNNING, FleetPath, Step
from perf_offcpu.fleet.peers import Threads
from perf_offcpu.fleet.report import Head
from perf_offcpu.fleet.text import head, hours
from perf_offcpu.report import style as say
from perf_offcpu.report.style import Column, Style
from perf_offcpu.report.tables import coloured_table
from perf_offcpu.report.verdict.text import wrapped

_MOST_CLOCKS = 3
_CLASS = "waited: {}"
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
    """Return the lines of `fleet path`."""
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
        Column("Share", [say.share(ns, followed.weight) for _, ns in shown]),
        Column("Time", [hours(ns) for _, ns in shown]),
        Column("Threads", [_name(step.threads) for step, _ in shown], left=True),
        Column("TCP", [step.network for step, _ in shown], left=True, spare=1),
        Column("Waited for", [_names(step) for step, _ in shown], left=True),
        Column("Which", [_DOING.get(step.doing, _CLASS.format(step.doing)) for step, _ in shown], left=True),
        Column("Object", [step.object for step, _ in shown], left=True),
    ]
    yield from coloured_table(columns, style)
    left = followed.weight - sum(ns for _, ns in shown)
    yield from say.more_rows((len(followed.steps) - len(shown), left), "row", facts.unit, style)


def _of_all_objects(followed: FleetPath) -> list[tuple[Step, Counter[str]]]:
    """Return the steps without object and cause, the largest first, and the ns of each by object."""
    sums: dict[Step, Counter[str]] = {}
    for step, ns in followed.steps:
        sums.setdefault(step._replace(network="", object=""), Counter())[step.object] += ns
    return sorted(sums.items(), key=lambda row: -row[1].total())


def _first_sentence(followed: FleetPath, step: Step, objects: Counter[str]) -> str:
    """Return the sentence on what took most of the time."""
    (object_, most), *_ = objects.most_common(1)
    others = " and others" if any(other.threads != step.threads for other, _ in followed.steps) else ""
    share = f"{round(100 * objects.total() / followed.weight)} % of {hours(followed.weight)}"
    what = _ADVICE.get(step.doing, f"waited: {step.doing or say.NOT_KNOWN}")
    if 2 * most > objects.total() and object_ not in ("", step.doing):
        what += f" ({'mostly ' if len(objects) > 1 else ''}{object_})"
    if step.peers and step.doing not in (NO_PEER, CLOCKS):
        above = "".join(f", for {_name(peer)}," for peer in step.peers[-2:-1])
        what = f"{_name(step.peers[-1])}{above} {what}"
    return f"{share} that {_name(step.threads)}{others} waited for TCP connections, {what}"


def _remarks(followed: FleetPath) -> Iterator[str]:
    """Yield sentences on what the table does not say, or not exactly."""
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
    """Return the peers, in the order in which they waited for each other."""
    return " → ".join(map(_name, step.peers)) or say.NOT_KNOWN
