# SPDX-License-Identifier: Apache-2.0
"""Ask recorded JVMs for the names of the code that they have compiled: the perf map that `jcmd PID Compiler.perfmap`
writes (JDK 17 and later), with the sizes of frames. The answers are written into each file at its end. A JVM that ends
takes its names with it, so each is asked some time after it was seen, then after ever longer times, and at the end. It
happens in the background, with the rights of the JVM's owner (`system.owner_child`)."""

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Final

from perf_offcpu import losses
from perf_offcpu.abi.counters import JIT_MAP, JIT_MAP_MAGIC, VERSION
from perf_offcpu.abi.jit_map import begin_at, ended, latest, with_answer
from perf_offcpu.collect.bpf.maps import ProgramMaps
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.python.processes import MappingFollower, ended_process, forked_process, pid_of
from perf_offcpu.collect.system.as_owner import ask_as_owner
from perf_offcpu.collect.system.background import Future, in_background
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.system.hotspot import awaited_locks
from perf_offcpu.collect.wait_objects.owners import AwaitedLocks
from perf_offcpu.losses import Losses
from perf_offcpu.text import Say, printable

_FIRST_S, _LONGER, _LONGEST_S = 1.0, 2.0, 3600.0
_AT: Final = re.compile(rb":at ([0-9]{1,18}) ([0-9]{1,18}|\?)\n")  # time of the answer, ns; classes unloaded so far
_MUCH, _SHARE, _COST_S = 1.02, 0.05, 5e-7  # more text than before; of a CPU; CPU time for a byte of the answer
_MOST_JVMS: Final = 256
_MOST_FAMILY: Final = 1 << 16
_AT_ONCE: Final = 16
_MOST_S: Final = 3.0  # time of _AT_ONCE together; one takes some 0.1 s
_MOST_ALL_S: Final = 10.0
_LOCKS_S: Final = 0.5
_MOST_KEPT: Final = 64 << 20  # bytes of all maps
_MOST_LINES: Final = 1 << 20  # of a map; a line takes some 200 bytes of memory while maps are compared
_LONGEST_TEXT: Final = 200
_MOST_TEXT: Final = 48 << 10  # bytes in a record, with room for its other parts


class Jvms(MappingFollower):
    """Follow processes that map libjvm.so, and, if `asks`, ask them for perf maps. `maps`: of the BPF programs, which
    then give stacks with different interpreted methods different ids; None without BPF. `apart_ns`: without `maps`, the
    time from which no two waits share a copy of a stack; 0: they may at any time. `say`: is called once for each JVM
    that gives no names; `lost` counts these. `recorded`: returns the live pids that are recorded. `says_ended`: also
    say how many JVMs (of `family`, if it is set) ended before they were asked."""

    needle = b"/libjvm.so"

    def __init__(
        self,
        say: Say,
        lost: Losses,
        recorded: Callable[[], set[int]],
        maps: ProgramMaps | None,
        *,
        asks: bool,
        says_ended: bool,
        apart_ns: int = 0,
    ) -> None:
        self._say, self._lost, self._recorded, self._asks, self._says_ended = say, lost, recorded, asks, says_ended
        self.maps: dict[int, bytes] = {}  # pid → lines of its perf map
        self.family = set[int]()  # the recorded command and its descendants; empty if all processes are recorded
        self._bpf_maps, self._always_ns = maps, apart_ns
        self._apart_ns: dict[int, int] = {}  # pid → time that `set_jvm` returned
        self._due: dict[int, tuple[float, float]] = {}  # pid → monotonic time of the next question, time after it
        self._listed: dict[int, tuple[int, bytes]] = {}  # pid → time of its last answer, classes unloaded until then
        self._refused: set[int] = set()
        self._ended: set[int] = set()  # whose main thread has ended
        self._unasked = 0  # JVMs that ended too soon
        self._asking: Future[None] | None = None

    def see_mapping(self, record: memoryview) -> None:
        """Take an MMAP2 record; if it maps libjvm.so, plan the first question: when the process is _FIRST_S old."""
        if not self._asks or not self.is_of_needle(record) or len(self._due) >= _MOST_JVMS:
            return
        if (pid := pid_of(record)) not in self._due:
            self._due[pid] = time.monotonic() + max(_FIRST_S - _age_s(pid), 0), _FIRST_S
            self._apart_ns[pid] = self._bpf_maps.set_jvm(pid) if self._bpf_maps else self._always_ns

    def see_task(self, kind: int, record: memoryview) -> None:
        """Take a FORK or EXIT record; if a JVM's process has ended, stop asking it."""
        child, parent = forked_process(kind, record) if self.family else (0, 0)
        if parent in self.family and len(self.family) < _MOST_FAMILY:
            self.family.add(child)
        pid = ended_process(kind, record) if self._due else 0
        if plan := self._due.pop(pid, None):
            self._unasked += plan[1] == _FIRST_S and (pid in self.family or not self.family)
            self._ended.add(pid)
            if pid in self.maps:
                self.maps[pid] = ended(self.maps[pid], self._listed[pid][0])

    def step(self) -> None:
        """Ask JVMs that are due for their perf maps, in the background; forget those that are gone."""
        if self._bpf_maps and self._ended:
            self._forget_gone(self._bpf_maps)
        now = time.monotonic()
        due = [pid for pid, (when, _) in self._due.items() if when <= now]
        if due and (self._asking is None or self._asking.done()):
            self._asking = in_background(lambda: self._ask(due))

    def _forget_gone(self, maps: ProgramMaps) -> None:
        """Call `forget_jvm` for processes of which all threads have ended, not the main thread alone."""
        # direct: whether a process exists
        for pid in [pid for pid in self._ended if not os.path.exists(f"/proc/{pid}")]:
            self._ended.remove(pid)
            maps.forget_jvm(pid)
            if pid not in self.maps:
                self._apart_ns.pop(pid, None)

    def ask_all(self) -> None:
        """Ask all JVMs once more for their perf maps, within some seconds."""
        if self._asking is not None:
            self._asking.wait()
        self._ask(list(self._due), is_last=True)
        if self._unasked and self._says_ended:
            self._say(
                f"perf-offcpu record: JVMs that ended before they were asked for names: {self._unasked} "
                "(java -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit writes them at the end)"
            )
            self._unasked = 0

    def awaited_locks(self, pids: set[int]) -> AwaitedLocks:
        """Return pid → locks with owners for which threads wait, for JVMs in `pids` that can be read in time."""
        read = {pid: in_background(partial(awaited_locks, pid)) for pid in by_turns(pids & self._due.keys())[:_AT_ONCE]}
        until_s = time.monotonic() + _LOCKS_S
        return {pid: locks.result() for pid, locks in read.items() if locks.wait(max(until_s - time.monotonic(), 0))}

    def _ask(self, pids: list[int], *, is_last: bool = False) -> None:
        now = time.monotonic()
        for pid, plan in ((pid, self._due.get(pid)) for pid in pids):
            if plan is not None:  # else it has ended
                pause_s = min(_LONGER * plan[1], _LONGEST_S)
                self._due[pid] = now + pause_s, pause_s
        recorded = self._recorded() if pids else set()
        pids = by_turns([pid for pid in pids if pid in recorded])
        while pids and time.monotonic() < now + _MOST_ALL_S:
            begin_ns = now_ns()
            asked = {pid: in_background(partial(_ask_one, pid)) for pid in pids[:_AT_ONCE]}
            pids = pids[_AT_ONCE:]
            for pid, answer in asked.items():
                self._take(pid, answer.result(), begin_ns, is_last=is_last)
        for pid in pids:
            self._take(pid, b"!no time was left", now_ns(), is_last=is_last)

    def _take(self, pid: int, answer: bytes, asked_ns: int, *, is_last: bool) -> None:
        """Keep the perf map that a JVM answered; if there is none, say and count that once, but not at the first of
        several questions: the JVM may be starting. `answer`: "!" + problem. `asked_ns`: when it was asked. As long as a
        JVM compiles much, the time to the next question does not become longer."""
        others = sum(len(text) for process, text in [*self.maps.items()] if process != pid)
        if len(answer) + others > _MOST_KEPT or answer.count(b"\n") > _MOST_LINES:
            answer = b"!the maps of others take all room"
        if answer and not answer.startswith(b"!"):
            head, taken_ns, before = _AT.match(answer), now_ns(), self.maps.get(pid, b"").partition(b"\n")[2]
            listed_ns = int(head[1]) if head and asked_ns <= int(head[1]) <= taken_ns else taken_ns
            last_ns, last_unloaded = self._listed.get(pid, (0, b"?"))
            self._listed[pid] = listed_ns, head[2] if head else b"?"
            answer, unloaded = _AT.sub(b"", answer), last_unloaded == b"?" or self._listed[pid][1] != last_unloaded
            text = with_answer(before, answer, last_ns, listed_ns, unloaded=unloaded)
            if len(text) + others > _MOST_KEPT:
                text = begin_at(listed_ns) + answer
            self.maps[pid] = b":apart %d\n%b" % (self._apart_ns.get(pid, 0), text)
            if (plan := self._due.get(pid)) and len(text) > _MUCH * len(before):
                pause_s = max(plan[1] / _LONGER, len(answer) * _COST_S / _SHARE)
                self._due[pid] = time.monotonic() + pause_s, pause_s
        elif pid in self.maps or pid in self._refused or not (plan := self._due.get(pid)):
            return
        elif is_last or plan[1] > _LONGER * _FIRST_S:
            self._refused.add(pid)
            self._lost.add(losses.JVM_UNASKED)
            problem = printable(answer[1:].decode("utf-8", "replace"))[:_LONGEST_TEXT] or "it did not answer in time"
            self._say(f"perf-offcpu record: JVM {pid} gives no names of compiled code: {problem}")

    def forget_ended(self, before: set[int]) -> set[int]:
        """Drop perf maps of ended JVMs in `before`, the last call's result; return the pids of those that keep one."""
        for pid in before - self._due.keys():
            self.maps.pop(pid, None)
            self._apart_ns.pop(pid, None)
            self._listed.pop(pid, None)
        for pid, text in [*self.maps.items()]:
            self.maps[pid] = latest(text)
        return self.maps.keys() - self._due.keys()


def jit_payloads(pid: int, text: bytes) -> Iterator[bytes]:
    """Yield payloads (`abi.counters.JIT_MAP`) with the lines of a perf map, but for lines over _MOST_TEXT."""
    begin = 0
    while begin < len(text):
        end = text.rfind(b"\n", begin, begin + _MOST_TEXT) + 1 or text.find(b"\n", begin) + 1 or len(text)
        if end - begin <= _MOST_TEXT:
            values = {"magic": JIT_MAP_MAGIC, "version": VERSION, "reserved": 0, "pid": pid, "text": text[begin:end]}
            yield JIT_MAP.pack(values, NATIVE)
        begin = end


def _age_s(pid: int) -> float:
    """Return for how long a process has lived; 0 if that is unknown."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:  # direct: of the kernel
        ticks = int(file.read(4096).rpartition(b")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return 0


def _ask_one(pid: int) -> bytes:
    try:
        return ask_as_owner(pid, _MOST_S)
    except OSError as problem:
        return b"!" + (problem.strerror or "").encode()


def by_turns(pids: Collection[int]) -> list[int]:
    """Return the pids that exist, ordered so that their users take turns and no user delays the others for long."""
    users: Counter[int] = Counter()
    turns = []
    for pid in pids:
        with contextlib.suppress(OSError):
            user = os.stat(f"/proc/{pid}").st_uid
            turns.append((users[user], pid))
            users[user] += 1
    return [pid for _, pid in sorted(turns)]
