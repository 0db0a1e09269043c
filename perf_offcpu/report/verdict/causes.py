# SPDX-License-Identifier: Apache-2.0
"""Find the causes of waits, with their functions, threads, objects and peers, by sums over cells. A cause is a wait
class, or a rule on a program, which then words it. Weights are in ns."""

import enum
from typing import Final, NamedTuple

import numpy as np

from perf_offcpu.abi.wait_objects import LOCKS, ObjectKind
from perf_offcpu.analysis.causes import Causes
from perf_offcpu.analysis.classes.classify import Waits
from perf_offcpu.analysis.classes.network import LABELS, network_of
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.holders import Holders, longest_holders
from perf_offcpu.model.columns import I64, U32, Bool, distinct, group, sum_by
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable, thread_label


@frozen
class Threads:
    """Number of the threads of a cause, in all and by comm."""

    number: int
    comms: dict[str, int]  # comm → number of its threads; the longest waiting first


@frozen
class Peers:
    """Threads that held the awaited objects, or ended the waits; or the control groups of a quota."""

    role: str  # HELD, RELEASED, ENDED or QUOTA_OF; "" if no peer is known
    comms: dict[str, int]  # comm → weight of the waits, the largest first


class NetworkWaits(NamedTuple):
    """Weight (ns) and number of waits for connections with one NetworkCause."""

    weight: int
    waits: int  # number


@frozen
class Place:
    """Waits of a cause in one function of the program, in sum; weights in ns."""

    function: str  # "" not known
    weight: int
    threads: Threads
    object: str  # name of the object that has at least SOLE_PERCENT of the weight; "" for several objects, or none
    mostly: str  # name of the object that has more than half of the weight, but less than SOLE_PERCENT; else ""
    peers: Peers
    network: dict[str, NetworkWaits]  # label of a NetworkCause → waits, largest first; {} if mostly not known


@frozen
class Cause:
    """Waits of one class, or by one rule on a program, in sum; waits for a CPU are of the class runqueue."""

    wait_class: str  # label
    program: str  # of the rule; "" for none
    meaning: str  # of the rule; "" for none
    weight: int  # without the time that its threads waited for a CPU
    threads: Threads
    functions: int  # number of functions in which they wait
    places: list[Place]  # functions with much of the weight, the largest first
    peers: Peers
    network: dict[str, NetworkWaits]  # as in `Place`
    cpus: dict[str, float]  # of waits for a CPU, by budgets: mean CPUs its threads "wanted", "got"; "all" CPUs
    command: str  # command line that shows the cause; "" for none


class Kind(enum.IntEnum):
    """Tells whether a wait counts in the verdict."""

    COUNTED = 0
    ELSEWHERE = 1  # not counted, as `kinds` says: for work, for recorded threads or processes, naps
    IDLE = 2  # of an idle thread


HELD, RELEASED, ENDED = "held by", "released by", "ended by"
_ROLES = (HELD, RELEASED, ENDED)
QUOTA_OF = "quota of"
_NAMED = [*LOCKS, ObjectKind.SOCKET, ObjectKind.PIPE, ObjectKind.FILE, ObjectKind.DIRECTORY]
_NAMED += [ObjectKind.CHARACTER, ObjectKind.BLOCK]
"""Kinds of objects whose names say more than the class and the function."""
_CAUSES, _PLACES = 8, 3
_PLACE_PERCENT = 12  # least share of its cause with which a function is named
PEERS_PERCENT: Final = 5  # least share of a row that its peers must have together to be named
SOLE_PERCENT: Final = 90  # a function with this share of its cause is named alone


class Cells(NamedTuple):
    """Sums of waits as columns: a row (cell) sums the waits that have its values in the columns `pid` to `kind`."""

    pid: I64
    tid: I64
    comm: I64
    wait_class: I64
    rule: I64
    function: I64
    object: I64  # string: name of the object; 0 for no object, and for a name that says no more than the class
    peer: I64  # string * 3 + index in _ROLES; -1 not known
    network: I64  # NetworkCause
    kind: I64  # Kind
    weight: I64  # without `runq`
    runq: I64  # waiting for a CPU
    waits: I64  # number of waits

    def take(self, rows: Bool | I64) -> "Cells":
        """Return the cells that a mask or row numbers select."""
        return Cells(*(column[rows] for column in self))

    def threads(self, profile: Profile) -> Threads:
        """Return number and comms of the threads of all these cells."""
        return threads_of(profile, self.pid, self.tid, self.comm, self.weight)


def cells_of(subject: Profile, waits: Waits, causes: Causes, holders: Holders, kind: I64) -> Cells:
    """Return waits, summed up in cells. `subject`: the profile of the waits. `waits`: `classify(subject)`. `causes`:
    `causes_of(subject, waits)`. `holders`: `holders_of(subject)`. `kind`: int64[samples], Kind."""
    samples = subject.samples
    who = (samples.pid, samples.tid, samples.comm)
    cause = (waits.wait_class, waits.rule, causes.function, named_objects(subject))
    facts = (*who, *cause, _peers(subject, holders), network_of(subject, waits).cause, kind)
    first, group_of = group(*facts)
    columns = [fact[first].astype(np.int64) for fact in facts]
    del cause, facts
    delay = np.where(waits.wait_class == WaitClass.RUNQUEUE, samples.period, np.maximum(samples.runq_ns, 0))
    blocked = samples.period - delay
    return Cells(*columns, *(sum_by(group_of, values, len(first)) for values in (blocked, delay, samples.count)))


def named_objects(profile: Profile) -> U32:
    """Return uint32[samples]: row in strings of the object's name; 0 where it says no more than the wait class."""
    objects = profile.objects
    names = np.where(np.isin(objects.kind, _NAMED), objects.name, np.uint32(0))
    name: U32 = np.append(names, np.uint32(0))[profile.samples.object]
    return name


def _peers(profile: Profile, holders: Holders) -> I64:
    """Return int64[samples], who held the awaited object or ended the wait: row in strings of the comm * 3 + index in
    _ROLES; -1 not known."""
    samples = profile.samples
    is_lock = np.isin(np.append(profile.objects.kind, np.uint16(0))[samples.object], LOCKS)
    woken = (samples.waker_tid > 0) & ~samples.has(SampleFlag.WAKER_INTERRUPT)
    ended = np.where(woken & (samples.waker_tid != samples.tid), samples.waker_tid, -1)
    longest = longest_holders(profile, holders)
    has_holder = (longest >= 0) | (holders.held >= 0)
    longest = np.where(longest >= 0, longest, holders.held)
    tid = np.where(has_holder, longest, np.where(is_lock, holders.released, ended)).astype(np.int32)
    del woken, ended, longest  # columns of millions of waits: none is kept longer than it is needed
    comm = profile.comms_at(tid, samples.time_ns)
    is_known = (tid > 0) & (comm > 0)
    del tid
    comm *= len(_ROLES)
    comm += np.where(has_holder, np.int8(0), np.where(is_lock, np.int8(1), np.int8(2)))
    comm[~is_known] = -1
    return comm


def largest_causes(profile: Profile, waits: Waits, causes: Causes, cells: Cells) -> list[Cause]:
    """Return the largest causes of some cells, largest first, with empty `command` and `cpus`."""
    first, group_of = group(cells.wait_class, cells.rule)
    total = sum_by(group_of, cells.weight, len(first))
    cells_of_causes = [index for index in np.argsort(-total, kind="stable")[:_CAUSES].tolist() if total[index] > 0]
    return [_cause(profile, waits, causes, cells.take(group_of == index)) for index in cells_of_causes]


def _cause(profile: Profile, waits: Waits, causes: Causes, cells: Cells) -> Cause:
    rule = waits.rules[cells.rule[0]] if cells.rule[0] >= 0 else None
    is_call = np.array([name.endswith("()") or "() of [" in name for name in causes.names], np.bool_)
    awaited = np.where(is_call[cells.function], cells.object, 0)  # without a function, the object tells the place
    total, (first, function_of) = int(cells.weight.sum()), group(cells.function, awaited)
    sums = sum_by(function_of, cells.weight, len(first))
    largest = np.argsort(-sums, kind="stable")[:_PLACES].tolist()
    weights = sums.tolist()  # of Python: percentages of them need more than 63 bits
    large = [index for index in largest if 100 * weights[index] >= _PLACE_PERCENT * total]
    if large and 100 * weights[large[0]] >= SOLE_PERCENT * total:
        large = large[:1]
    places = []
    for index in large:
        part, name = cells.take(function_of == index), causes.names[cells.function[first[index]]]
        facts = (part.threads(profile), *_object(profile, part), _peers_of(profile, part), _network(part))
        places.append(Place(name, weights[index], *facts))
    program, meaning = (rule.program, rule.meaning) if rule else ("", "")
    threads, functions, peers = cells.threads(profile), len(distinct(cells.function)), _peers_of(profile, cells)
    label, network = WaitClass(cells.wait_class[0]).label, _network(cells)
    return Cause(label, program, meaning, total, threads, functions, places, peers, network, {}, "")


def _object(profile: Profile, cells: Cells) -> tuple[str, str]:
    """Return (name, "") if an object has SOLE_PERCENT of the weight, ("", name) if more than half, else ("", "")."""
    first, group_of = group(cells.object)
    sums = sum_by(group_of, cells.weight, len(first)).tolist()
    most = max(range(len(first)), key=lambda index: sums[index], default=-1)
    if most < 0 or 2 * sums[most] <= sum(sums):
        return "", ""
    name = printable(profile.strings[int(cells.object[first[most]])])
    return (name, "") if 100 * sums[most] >= SOLE_PERCENT * sum(sums) else ("", name)


def _peers_of(profile: Profile, cells: Cells) -> Peers:
    first, group_of = group(cells.peer)
    sums = sum_by(group_of, cells.weight, len(first))
    by_role: dict[int, dict[str, int]] = {}
    for index in np.argsort(-sums, kind="stable").tolist():
        string, role = divmod(int(cells.peer[first[index]]), len(_ROLES))
        if string > 0 and sums[index] > 0:
            by_role.setdefault(role, {})[thread_label(profile.strings[string])] = int(sums[index])
    if not by_role:
        return Peers("", {})
    role, comms = max(by_role.items(), key=lambda item: sum(item[1].values()))
    return Peers(_ROLES[role], comms)


def _network(cells: Cells) -> dict[str, NetworkWaits]:
    """Return label of a NetworkCause → waits, if the causes are known for half of the weight or more; else {}."""
    sums, waits = (sum_by(cells.network, column, len(LABELS)).tolist() for column in (cells.weight, cells.waits))
    largest = sorted(range(1, len(LABELS)), key=lambda code: -sums[code])
    causes = {LABELS[code]: NetworkWaits(sums[code], waits[code]) for code in largest if sums[code]}
    return causes if 2 * sum(sums[1:]) >= sum(sums) else {}


def threads_of(profile: Profile, pid: I64, tid: I64, comm: I64, weight: I64) -> Threads:
    """Return the threads of n waits, given as columns; the comm with the largest weight first."""
    first, thread_of = group(comm, pid, tid)
    comm_row, comm_of = group(comm[first])
    sums = sum_by(comm_of[thread_of], weight, len(comm_row))
    threads = np.bincount(comm_of, minlength=len(comm_row))
    names = [thread_label(profile.strings[text]) for text in comm[first[comm_row]].tolist()]
    order = np.argsort(-sums, kind="stable").tolist()
    return Threads(len(group(pid, tid)[0]), {names[row]: int(threads[row]) for row in order})
