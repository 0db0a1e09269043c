# SPDX-License-Identifier: Apache-2.0
"""Rules of `test_perf_script`: where the text of perf 7.2 differs from ours, and why."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from builders.perf_text import Frame, Printed

from perf_offcpu.model.recording import Recording

BLOCKER = "/root/blocker"
KERNEL = "[kernel.kallsyms]"
UNKNOWN = "[unknown]"
DUMMY_TIME = "18446744069.414584"  # times of sums as perf prints them: ~0 << 32 ns and the like


@dataclass(frozen=True)
class Difference:
    """A field of a sample or frame that differs from perf's. `field`: "missing" for one of perf, "extra" for ours."""

    field: str
    perf: Printed
    ours: Printed
    exited: bool
    index: int = -1

    @property
    def perf_frame(self) -> Frame:
        return self.perf.frames[self.index]

    @property
    def our_frame(self) -> Frame:
        return self.ours.frames[self.index]

    def __str__(self) -> str:
        where = f"{self.perf.time} {self.perf.comm} {self.perf.tid} {self.perf.event}: {self.field}"
        if self.index < 0:
            return f"{where}: {getattr(self.perf, self.field)!r}, ours {getattr(self.ours, self.field)!r}"
        both = [printed.frames[self.index : self.index + 1] for printed in (self.perf, self.ours)]
        return f"{where} of frame {self.index}: {both[0]}, ours {both[1]}"


@dataclass(frozen=True)
class Rule:
    """A reason why perf's text differs from ours."""

    reason: str  # what perf does, and what is right
    recordings: str  # those with such differences
    fields: str  # the fields that differ
    explains: Callable[[Difference], bool]  # returns True for such a difference


def is_sum(one: Difference) -> bool:
    return one.perf.time == DUMMY_TIME and "untimed" in one.ours.rest


def is_swapped(one: Difference) -> bool:
    return "repaired_ids" in one.ours.rest and one.perf.tid == one.ours.pid


def is_nowhere(frame: Frame) -> bool:
    return frame.sym == frame.dso == UNKNOWN


def is_cookie(ip: int) -> bool:
    """{u32 cpu + 1, u32 odd count}, on a machine of 2 CPUs."""
    return ip & 0xFFFFFFFF in (1, 2) and ip >> 32 & 1 == 1


def is_unmerged_by_perf(one: Difference) -> bool:
    """Return True if perf's last frame is a cookie where ours continue with the user callchain."""
    last = one.perf.frames[-1]
    is_last = one.index >= len(one.perf.frames) - 1
    is_cookie_of_perf = one.perf.event == "cpu-clock" and is_nowhere(last) and is_cookie(last.ip)
    return is_cookie_of_perf and is_last and one.our_frame.ip < 1 << 47


RULES = [
    Rule(
        "Direct off-cpu samples hold {tid, tgid}, which perf takes for {pid, tid}: it prints each wait under "
        "the process's main thread, with the tid and the comm of that (none any more, if it has exited).",
        "direct hybrid compressed pipe", "tid comm",
        lambda one: (
            one.perf.event == "offcpu-time"
            and is_swapped(one)
            and one.perf.comm in ("blocker", f":{one.ours.pid}" if one.exited else "")
        ),
    ),
    Rule(
        "Sums have a dummy time, which perf prints; they have none.", "atend hybrid", "time",
        lambda one: is_sum(one) and one.ours.time == "-",
    ),
    Rule(
        "perf forgets a thread at its EXIT record, so it has no comm for what comes later: sums, and what is "
        "left of the exit itself.",
        "atend hybrid sched", "comm",
        lambda one: (
            one.exited and not is_swapped(one)
            and one.perf.comm == f":{one.perf.tid}" and not one.ours.comm.startswith(":")
        ),
    ),
    Rule(
        "With the last thread perf forgets the mappings of the process: frames of sums are unknown.", "atend",
        "sym dso", lambda one: one.exited and is_sum(one) and is_nowhere(one.perf_frame),
    ),
    Rule(
        "Walks by frame pointers end in words that are no code where code has none of these (glibc). perf "
        "prints them as unknown frames at the root, we cut them off.",
        "direct atend hybrid deferred compressed pipe sched", "missing",
        lambda one: one.index > 0 and all(map(is_nowhere, one.perf.frames[one.index :])),
    ),
    Rule(
        "perf, which had no modules to look into, names the kernel for functions that kallsyms lists as a "
        "module's.",
        "direct hybrid deferred deferred.unmerged pipe sched", "dso",
        lambda one: (
            (one.perf_frame.dso, one.our_frame.dso) == (KERNEL, "[virtio_blk]")
            and one.perf_frame.sym == one.our_frame.sym
        ),
    ),
    Rule(
        "That machine's libraries are not at hand here.",
        "direct hybrid deferred deferred.unmerged compressed pipe sched", "sym",
        lambda one: (
            one.our_frame.sym == UNKNOWN and one.our_frame.dso == one.perf_frame.dso
            and one.perf_frame.dso.startswith(("/usr/lib/", "/src/"))
        ),
    ),
    Rule(
        "A sample that comes after the record with its user callchain (which was sent in the middle of the "
        "same return to user space) stays unmerged in perf, and its cookie is printed as a frame.",
        "deferred", "ip sym dso extra", is_unmerged_by_perf,
    ),
    Rule(
        "A return address at the very start of a function belongs to the call at the end of the one before "
        "it. perf looks it up as it is, we a byte before.",
        "hybrid pipe", "sym",
        lambda one: (
            one.index > 0 and one.perf_frame.dso == BLOCKER
            and one.perf_frame.sym.endswith("+0x0") and one.our_frame.sym != UNKNOWN
        ),
    ),
]  # fmt: skip


def has_exited(recording: Recording, tid: int, time: str) -> bool:
    """Return True if a thread's EXIT record is before a printed time; `-` is the end of the recording."""
    ends = recording.tasks.end_ns[(recording.tasks.tid == tid) & (recording.tasks.end_ns >= 0)]
    moment = 2**63 - 1 if time == "-" else int(time.replace(".", "")) * 1000 + 999
    return bool((ends <= moment).any())


def differences(recording: Recording, perf: Printed, ours: Printed) -> Iterator[Difference]:
    exited = has_exited(recording, perf.tid, ours.time)
    for name in ("comm", "tid", "cpu", "time", "period", "event"):
        if getattr(perf, name) is not None and getattr(perf, name) != getattr(ours, name):
            yield Difference(name, perf, ours, exited)
    for index in range(max(len(perf.frames), len(ours.frames))):
        if index >= len(ours.frames):
            yield Difference("missing", perf, ours, exited, index)
        elif index >= len(perf.frames):
            yield Difference("extra", perf, ours, exited, index)
        else:
            for name in ("ip", "sym", "dso"):
                if getattr(perf.frames[index], name) != getattr(ours.frames[index], name):
                    yield Difference(name, perf, ours, exited, index)


def reasons_for(one: Difference) -> list[str]:
    return [rule.reason for rule in RULES if one.field in rule.fields.split() and rule.explains(one)]
