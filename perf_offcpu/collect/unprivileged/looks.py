# SPDX-License-Identifier: Apache-2.0
"""Look at threads while they sleep: system call, arguments, stack pointer, and the bytes of the stack from there on.

A look takes some 100 us, and all looks BUDGET of one CPU. So threads are looked at once a wait, when they have slept
for LEAST_NS or, if that are too many, for a longer time, which rises until the budget suffices: threads without any
look come first, then the longest sleepers. A look belongs to a wait if it lies within it by SWITCH records."""

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.offcpu import SYSCALL_NONE, SYSCALL_UNKNOWN, UNKNOWN_U32, ObjectLost
from perf_offcpu.abi.task_state import TaskState
from perf_offcpu.collect.kernel_totals.user_stacks import read_memory
from perf_offcpu.collect.python.functions import FunctionReader, Functions
from perf_offcpu.collect.python.memory import UnreadableError, switches_of
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.unprivileged.objects import CallObjects, WaitObject
from perf_offcpu.files import read_kernel_if_any
from perf_offcpu.losses import Losses

LEAST_NS: Final = 4_000_000
BUDGET: Final = 0.01
_RISE, _FALL = 1.25, 0.97  # of the least time at each time that the budget is used up, or is not
_MOST_NS: Final = 1_000_000_000
_SCARCEST: Final = 5
_MOST_SAVED_S: Final = 0.3  # CPU time that is there at the begin, and may be saved up while few threads sleep
_HURRY_S: Final = 2.0
_STATES: Final = {
    b"S": TaskState.INTERRUPTIBLE,
    b"D": TaskState.UNINTERRUPTIBLE,
    b"T": TaskState.STOPPED,
    b"t": TaskState.TRACED,
}
_COMPAT: Final = WaitObject(object_lost=int(ObjectLost.COMPAT))


class Sleeper(NamedTuple):
    """A thread that has been off the CPU since `since_ns`, by the SWITCH records drained so far."""

    pid: int
    tid: int
    since_ns: int


class Look(NamedTuple):
    """Stack of a sleeping thread, and the object that it waits for, read from `begin_ns` to `end_ns`."""

    begin_ns: int
    end_ns: int
    state: int  # `abi.task_state.TaskState`
    syscall: int  # number, or SYSCALL_NONE, SYSCALL_UNKNOWN
    sp: int  # stack pointer; 0 for a 32-bit program
    pc: int
    stack: bytes  # bytes from `sp` on
    found: WaitObject
    functions: Functions | None = None  # None: it was not known yet that the process runs CPython


class Reader:
    """Read stacks and objects of sleeping threads (looks). `copy_bytes`: bytes of the stack to copy, 0 for none.
    `objects`: finds the objects. `pythons`: `PythonProcesses.offsets`. `lost`: counts unread Python functions.

    Attributes:
        looks: tid → looks at the thread that `take` has not removed yet, by time.
        disturbed: number of looks during which the thread ran.
    """

    def __init__(
        self, copy_bytes: int, objects: CallObjects, pythons: Mapping[int, dict[str, int]], lost: Losses
    ) -> None:
        self._copy_bytes, self._objects, self._pythons, self._lost = copy_bytes, objects, pythons, lost
        self._readers = dict[int, tuple[FunctionReader, dict[str, int]]]()
        self._own_ids = dict[int, int]()
        self.looks: defaultdict[int, deque[Look]] = defaultdict(deque)
        self.disturbed, self._spent_s, self._least_ns = 0, 0.0, LEAST_NS
        self._begin_s = time.monotonic()

    def follow(self, sleepers: Iterable[Sleeper], *, hurry: bool = False) -> None:
        """Read stack and object of each sleeper that has slept for LEAST_NS and was not read in this sleep, as far as
        the CPU budget allows. `hurry`: at the end of the recording, read all, within _HURRY_S."""
        # The less there is left, the longer a thread must have slept.
        scarcity = _MOST_SAVED_S / max(self._left_s(), _MOST_SAVED_S / _SCARCEST)
        latest = now_ns() - (0 if hurry else max(self._least_ns, int(LEAST_NS * scarcity)))
        until_s = time.monotonic() + _HURRY_S
        due = [sleeper for sleeper in sleepers if sleeper.since_ns <= latest and not self._is_seen(sleeper)]
        for sleeper in sorted(due, key=lambda sleeper: (sleeper.tid in self.looks, sleeper.since_ns)):
            if (self._left_s() <= 0 and not hurry) or time.monotonic() > until_s:
                self._least_ns = min(int(self._least_ns * _RISE), _MOST_NS)
                return
            begin_s = time.thread_time()
            look = self._look(sleeper)
            if look is not None:
                self.looks[sleeper.tid].append(look)
            self._spent_s += time.thread_time() - begin_s
        if self._left_s() > _MOST_SAVED_S / 2:
            self._least_ns = max(int(self._least_ns * _FALL), LEAST_NS)

    def _left_s(self) -> float:
        """Return the CPU time in s that reading sleepers may take now; of unused time at most _MOST_SAVED_S is kept."""
        allowed_s = BUDGET * (time.monotonic() - self._begin_s) + _MOST_SAVED_S
        self._spent_s = max(self._spent_s, allowed_s - _MOST_SAVED_S)
        return allowed_s - self._spent_s

    def _is_seen(self, sleeper: Sleeper) -> bool:
        looks = self.looks.get(sleeper.tid)
        if not looks or looks[-1].begin_ns < sleeper.since_ns:
            return False
        return looks[-1].functions is not None or not self._pythons.get(sleeper.pid)

    def _look(self, sleeper: Sleeper) -> Look | None:
        """Read system call, stack and object of a sleeping thread; None if it runs, has ended, or may not be read."""
        place = f"/proc/{sleeper.pid}/task/{sleeper.tid}"
        begin_ns = now_ns()
        words = read_kernel_if_any(f"{place}/syscall", 256).split()
        if len(words) < 3:  # "running", or gone
            return None
        syscall, (sp, pc) = int(words[0]), (int(word, 16) for word in words[-2:])
        arguments = [int(word, 16) for word in words[1:-2]]
        if sp >> 32 == 0:  # a 32-bit program, whose frames and system calls are unlike
            return Look(begin_ns, now_ns(), UNKNOWN_U32, SYSCALL_UNKNOWN, 0, 0, b"", _COMPAT)
        stack = read_memory(sleeper.tid, sp, self._copy_bytes, cut=True) if self._copy_bytes else b""
        wait_object = self._objects.find(*sleeper, syscall, arguments, sp) if arguments else WaitObject()
        state = _STATES.get(read_kernel_if_any(f"{place}/stat", 512).rpartition(b") ")[2][:1])
        if state is None:  # it runs by now
            return None
        functions = self._functions(sleeper) if self._pythons.get(sleeper.pid) else None
        end_ns = now_ns()
        return Look(begin_ns, end_ns, int(state), max(syscall, SYSCALL_NONE), sp, pc, stack, wait_object, functions)

    def _functions(self, sleeper: Sleeper) -> Functions:
        try:
            offsets = self._pythons[sleeper.pid]
            reader, offsets_of_reader = self._readers.get(sleeper.pid, (None, None))
            if reader is None or offsets_of_reader is not offsets:  # the process has executed another program
                reader = FunctionReader(sleeper.pid, offsets)
                self._readers[sleeper.pid] = reader, offsets
            if sleeper.tid not in self._own_ids:
                self._own_ids[sleeper.tid] = switches_of(sleeper.pid, sleeper.tid)[1]
            return reader.functions(self._own_ids[sleeper.tid])
        except (OSError, UnreadableError):
            self._lost.add(losses.PYTHON_UNREADABLE)
            return []

    def take(self, wait: NDArray[Any]) -> Look | None:
        """Remove the looks at a thread up to the end of a wait (`switches.INTERVAL`); return the last look within the
        wait, None without one. `disturbed` counts looks during which the thread ran."""
        looks, seen = self.looks.get(int(wait["tid"]), ()), None
        while looks and looks[0].begin_ns < wait["end"]:
            look = looks.popleft()
            if wait["begin"] <= look.begin_ns and look.end_ns <= wait["end"]:
                seen = look
            else:
                self.disturbed += 1
        return seen
