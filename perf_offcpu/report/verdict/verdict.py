# SPDX-License-Identifier: Apache-2.0
"""Declare the verdict: the numbers from which the sentences on top of a report are made.

A cause is a wait class, or a rule of a program, whose words it then has. Weights are in ns.
"""

from __future__ import annotations

from perf_offcpu.structs import frozen


@frozen
class Threads:
    """The threads of some samples."""

    number: int
    comms: list[str]  # the longest waiting first


@frozen
class Place:
    """The waits of a cause in one function."""

    function: str  # "" not known
    weight: int
    threads: Threads
    object: str  # name of what nearly all of it was waited for; "" for several, or none
    mostly: str  # name of what more than half of it was waited for, if that is not nearly all; else ""


@frozen
class Cause:
    """Waits of one class, or by one rule of a program."""

    wait_class: str  # label
    program: str  # of the rule; "" for none
    meaning: str  # of the rule; "" for none
    weight: int
    for_work: bool  # by a rule of the program, or by the class
    threads: Threads
    functions: int  # number of functions in which they wait
    places: list[Place]  # functions with much of the weight, the largest first


@frozen
class Preempted:
    """Waits of preempted threads for a CPU, by their budgets."""

    weight: int
    threads: Threads
    running: int  # ns that these threads ran


@frozen
class BlockedThread:
    """A wait that was not over when the recording ended."""

    comm: str
    pid: int
    tid: int
    wait_class: str
    object: str  # name of what it waits for; "" if that has no name of its own
    function: str
    weight: int
    since: int  # ns; -1 not known
    began_before: bool  # before the recording did


@frozen
class Loss:
    """The largest loss."""

    cause: str
    count: int  # where stacks were cut: of one kind of sample, of waits if there are any
    percent: float | None  # of what `of` names
    of: str  # "waits", "addresses" or "EVENT samples"; "" for none of these
    causes: int  # number of causes of losses


@frozen
class Verdict:
    """The numbers of the verdict; weights in ns."""

    weight: int  # off-cpu time of the threads that are not idle
    threads: int
    causes: list[Cause]  # the largest, until the rest is small; see above for their order
    others: int  # weight of all other causes
    runq: int | None  # of `weight`, waiting for a CPU; None if not recorded
    preempted: Preempted | None  # None if it is little next to `weight`, or such waits are recorded
    idle_threads: int
    idle: int  # off-cpu time of idle threads
    still_blocked: int  # number of threads
    longest_blocked: list[BlockedThread]  # waits that end elsewhere (see above) last
    goroutines: bool  # Go's scheduler waited: goroutines that wait are no threads
    loss: Loss | None
    command: str  # shows the first cause
