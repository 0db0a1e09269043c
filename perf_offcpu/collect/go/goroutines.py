# SPDX-License-Identifier: Apache-2.0
"""Read where the goroutines of recorded Go programs wait (`record --goroutines`), while the program runs. A goroutine
counts if it stood still from before its stack was read to after it (Go counts how often it stops running), and weighs
the time since the reading before. One that runs, or is in a system call, has a thread, whose waits are recorded."""

import contextlib
import functools
import os
import re
import threading
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.counters import GOROUTINES
from perf_offcpu.collect.counters import Reading
from perf_offcpu.collect.go.program import LAYOUTS, U64, Functions, Memory, find_program
from perf_offcpu.collect.python.event_loops import task_payloads
from perf_offcpu.collect.python.memory import UnreadableError
from perf_offcpu.collect.task_readings import TaskReader
from perf_offcpu.collect.wait_objects.sockets import EPOLL, Socket, socket_inode, sockets_of
from perf_offcpu.files import read_kernel_if_any
from perf_offcpu.losses import Losses

_MOST_GOROUTINES, _AT_ONCE, _MOST_STACK, _MOST_FRAMES = 1 << 17, 256, 16 << 10, 64
_MOST_STACKS, _MOST_ALL, _MOST_UNREAD, _MOST_REASON = 2048, 1 << 15, 256, 64  # of a process, of all, …; bytes
_SIZE, _LO, _HI, _SP, _PC, _ID, _REASON = 256, 0, 1, 7, 8, 8, 32  # words of runtime.g; the last two after the status
_RUNNABLE, _WAITING, _PREEMPTED, _STATUS = 1, 4, 9, 0xFFF
_IO: Final = "IO wait"
_OTHERS: Final = {_RUNNABLE: "runnable", _PREEMPTED: "preempted"}
Stacks = dict[tuple[str, tuple[str, ...]], tuple[int, tuple[int, ...]]]
"""(What a goroutine waits for, its functions, leaf first) → (number of goroutines, addresses in the functions)."""


class Reader:
    """Read the goroutines of one process, as long as it runs the same program."""

    def __init__(self, pid: int, program: dict[str, int]) -> None:
        self.program, self._memory = program, Memory(pid)
        self._peers = Peers(pid, self._memory)
        self._functions, self._reason = Functions(self._memory, program), functools.cache(self._read_reason)
        self._status, self._bp, sequence, _ = LAYOUTS[program["minor"]]
        words = np.array([8 * _LO, 8 * _HI, 8 * _SP, 8 * _PC, self._bp, self._status + _ID])
        still = self._status, self._status + _REASON, sequence
        self._still = np.append(np.add.outer(words, np.arange(8)), still)

    def read(self) -> tuple[int, int, Stacks]:
        """Return (number of goroutines that ran during the reading, number of unreadable ones, stacks of the others).
        Raises UnreadableError: no goroutines found."""
        begin, number, _ = self._memory.words(self.program["allgs"], 3).tolist()
        places = self._memory.words(begin, min(number, _MOST_GOROUTINES))
        moved, unread, first, stacks = 0, 0, 0, Stacks()
        while first < len(places) and unread < _MOST_UNREAD:
            more = self._read_some(places[first : first + _AT_ONCE], stacks)
            moved, unread, first = moved + more[0], unread + more[1], first + _AT_ONCE
        return moved, unread + min(max(number - first, 0), 1 << 31), stacks

    def _read_some(self, places: U64, stacks: Stacks) -> tuple[int, int]:
        before, is_read = self._gather(places)
        words = before.view(np.uint64)
        status, (low, high, sp, pc) = words[:, self._status // 8] & np.uint64(_STATUS), words[:, [_LO, _HI, _SP, _PC]].T
        waits = is_read & np.isin(status, (_RUNNABLE, _WAITING, _PREEMPTED))
        is_sound = (sp % 8 == 0) & (low <= sp) & (sp < high) & (high < 2**47)
        rows = np.flatnonzero(waits & is_sound)
        sizes = np.minimum(high[rows] - sp[rows], np.uint64(_MOST_STACK)) & ~np.uint64(7)
        content, has_stack = self._memory.gather(sp[rows], sizes)
        after, again = self._gather(places[rows])
        stands = again & (before[rows][:, self._still] == after[:, self._still]).all(axis=1)
        chains = walk(content.view(np.uint64), sp[rows], sizes, words[rows, self._bp // 8], pc[rows])
        reasons, counted = before[rows, self._status + _REASON], stands & has_stack
        peers, peer = self._find_peers(places[rows], status[rows], reasons)
        keys = np.column_stack([status[rows], reasons, peer, chains])[counted]
        kinds, counts = np.unique(keys.astype(np.uint64), axis=0, return_counts=True)
        for (state, reason, number, *chain), count in zip(kinds.tolist(), counts.tolist(), strict=True):
            addresses = tuple(address for address in chain if address)
            names = [name for address in addresses for name in self._functions.of(address)]
            names = names[:-1] if names[1:] and names[-1] == "runtime.goexit" else [*names, "[truncated]"]
            names = [name for name in names if ".gowrap" not in name]  # made by `go function(argument)`
            stack = _OTHERS.get(state) or self._reason(reason) + peers[number], tuple(names)
            stacks[stack] = stacks.get(stack, (0,))[0] + count, addresses
        return int((has_stack & ~stands).sum()), int((~is_read | waits & ~is_sound).sum() + (~has_stack).sum())

    def _find_peers(self, places: U64, status: U64, reasons: NDArray[np.uint8]) -> tuple[list[str], U64]:
        """Return (texts such as " (tcp 10.0.0.7:5432)", uint64[n]: index in texts of each goroutine's peer; 0 if it is
        unknown). `places`: addresses of `runtime.g`; `status`, `reasons`: their status and waitreason."""
        texts, number = {"": 0}, np.zeros(len(places), np.uint64)
        waits_io = [reason for reason in np.unique(reasons).tolist() if self._reason(reason) == _IO]
        rows = np.flatnonzero(np.isin(reasons, waits_io) & (status == _WAITING))
        peer_of = self._peers.of(places[rows]) if len(rows) else {}
        for row, place in zip(rows.tolist(), places[rows].tolist(), strict=True):
            peer = peer_of.get(place)
            number[row] = texts.setdefault(f" ({peer})", len(texts)) if peer else 0
        return list(texts), number

    def _gather(self, places: U64) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        content, is_read = self._memory.gather(places, np.full(len(places), _SIZE, np.uint64))
        return content.reshape(-1, _SIZE), is_read

    def _read_reason(self, number: int) -> str:
        begin, size = self._memory.words(self.program["reasons"] + 16 * number, 2).tolist()
        return self._memory.read(begin, min(size, _MOST_REASON)).decode("utf-8", "replace") or "waiting"


def walk(stacks: U64, base: U64, sizes: U64, frame: U64, leaf: U64) -> U64:
    """Return uint64[n, frames]: each stack's code addresses along frame pointers, leaf first, 0 after the last.
    `stacks`: words of all n stacks, one after the other; `base`, `sizes`: address and bytes of each; `frame`, `leaf`:
    frame pointer and pc of each leaf function."""
    columns, first = [leaf], (np.cumsum(sizes) - sizes) // np.uint64(8)
    while len(columns) < _MOST_FRAMES:
        offset = frame - base
        is_inside = (frame >= base) & (frame % 8 == 0) & (offset < sizes) & (sizes - offset >= 16)
        if not is_inside.any():
            break
        word = np.where(is_inside, first + offset // np.uint64(8), 0).astype(np.int64)
        columns.append(np.where(is_inside, stacks[word + 1], 0))
        frame = np.where(is_inside & (stacks[word] > frame), stacks[word], 0)
    return np.column_stack(columns)


_WATCHED: Final = re.compile(rb"^tfd:\s+(\d+) events:\s+\w+ data:\s+(\w+)", re.MULTILINE)
_MOST_BYTES, _MOST_LINKS, _MOST_EPOLLS, _MOST_SOCKETS, _MOST_KEPT = 2 << 20, 1024, 4, 256, 4096
_DESC_BYTES, _FD, _WAITERS = 48, 1, slice(2, 6)  # of a pollDesc; words: its descriptor, goroutines among other things
_TAG_BITS, _ALIGNMENT = np.int64(19), np.int64(3)


class Peers:
    """Find the peers of goroutines in "IO wait", in one process, as long as it runs the same program. Go watches each
    of its descriptors by one epoll instance, whose user data is the address of the descriptor's `runtime.pollDesc`
    (src/runtime/netpoll.go), tagged since 1.21; a pollDesc holds the descriptor and the goroutine that waits for it.
    Descriptors and names of sockets come from /proc, not from the program's memory."""

    def __init__(self, pid: int, memory: Memory) -> None:
        self._pid, self._memory = pid, memory
        self._epolls = list[str]()
        self._sockets: dict[bytes, Socket] = {}

    def of(self, goroutines: U64) -> dict[int, str]:
        """Return address of `runtime.g` → peer that it waits for: "tcp 10.0.0.7:5432", "a client", "the next
        connection"; goroutines without a known peer are left out."""
        descriptor_of = self._descriptors(goroutines)
        fds = [*set(descriptor_of.values())][:_MOST_SOCKETS]
        inode_of = {fd: inode for fd in fds if (inode := socket_inode(self._pid, fd))}
        if unknown := frozenset(inode_of.values()) - self._sockets.keys():
            kept = self._sockets if len(self._sockets) < _MOST_KEPT else {}
            self._sockets = kept | dict.fromkeys(unknown, Socket(b"", False, False)) | sockets_of(self._pid, unknown)
        texts = {fd: _peer_text(self._sockets[inode]) for fd, inode in inode_of.items()}
        return {goroutine: texts[fd] for goroutine, fd in descriptor_of.items() if texts.get(fd)}

    def _descriptors(self, goroutines: U64) -> dict[int, int]:
        """Return address of `runtime.g` → file descriptor for which the goroutine waits."""
        with contextlib.suppress(OSError):
            self._epolls = self._epolls or self._find_epolls()
        text = b"".join(read_kernel_if_any(f"/proc/{self._pid}/fdinfo/{fd}", _MOST_BYTES) for fd in self._epolls)
        rows = [(int(fd), int(data, 16)) for fd, data in _WATCHED.findall(text)]
        if not rows:
            return {}
        fds, data = np.array(rows, np.uint64).T
        descriptor_of = dict[int, int]()
        for places in (data, (data.view(np.int64) >> _TAG_BITS << _ALIGNMENT).view(np.uint64)):
            content, is_read = self._memory.gather(places, np.full(len(places), _DESC_BYTES, np.uint64))
            words = content.view(np.uint64).reshape(-1, _DESC_BYTES // 8)
            is_desc = is_read & (words[:, _FD] == fds)
            row, column = np.nonzero(np.isin(words[:, _WAITERS], goroutines) & is_desc[:, None])
            descriptor_of |= dict(zip(words[:, _WAITERS][row, column].tolist(), fds[row].tolist(), strict=True))
        return descriptor_of

    def _find_epolls(self) -> list[str]:
        names = sorted(os.listdir(f"/proc/{self._pid}/fd"), key=int)[:_MOST_LINKS]  # direct: a directory of /proc
        return [fd for fd in names if os.readlink(f"/proc/{self._pid}/fd/{fd}").encode().endswith(EPOLL)][:_MOST_EPOLLS]


def _peer_text(sock: Socket) -> str:
    name = sock.name.decode("utf-8", "replace")
    return "the next connection" if sock.listens else name if sock.is_outward else "a client" if name else ""


class GoroutineReader(TaskReader):
    """Reads goroutines, and sums their time by stack. `lost`: counts goroutines and programs that cannot be read."""

    unread = losses.GOROUTINES_UNREAD

    def __init__(self, lost: Losses) -> None:
        self._lost, self._lock = lost, threading.Lock()
        self._readers: dict[int, Reader] = {}  # in the helper
        # Pid → ([begin, end] of its readings, Stacks with ns in place of numbers of goroutines).
        self._sums: dict[int, tuple[list[int], Stacks]] = {}

    def read(self, pid: int, program: dict[str, int] | None) -> tuple[dict[str, int] | None, Any]:
        """Return (result of `find_program`, result of `Reader.read`, None for an unsupported version of Go); (None,
        None) if the goroutines cannot be read. `program`: result of the last call for this pid."""
        reader = self._readers.pop(pid, None)
        try:
            program = program or find_program(pid)
        except UnreadableError:
            program = {"minor": 0}
        if "allgs" not in program:
            return program, None
        with contextlib.suppress(UnreadableError):  # it runs another program by now, or is hostile
            reader = reader if reader and reader.program == program else Reader(pid, program)
            reading = reader.read()
            self._readers[pid] = reader
            return program, reading
        return None, None

    def add(self, pid: int, times: tuple[int, int], reading: tuple[int, int, Stacks] | None) -> None:
        """Add the time between `times` (ns) of each goroutine to the sum of its stack, which `take` returns; count
        goroutines that were not read. `reading`: of process `pid`; None for an unsupported version of Go."""
        if reading is None:
            self._lost.add(losses.GO_UNKNOWN, 1)
            return
        moved, unread, stacks = reading
        with self._lock:
            limits, sums = self._sums.setdefault(pid, ([times[0], 0], Stacks()))
            limits[1] = times[1]
            room = min(_MOST_STACKS, _MOST_ALL - sum(len(counts) for _, counts in self._sums.values()) + len(sums))
            for stack, (count, addresses) in stacks.items():
                if stack in sums or len(sums) < room:
                    sums[stack] = sums.get(stack, (0,))[0] + count * (times[1] - times[0]), addresses
                else:
                    unread += count
        self._lost.add(losses.GOROUTINES_MOVED, moved)
        self._lost.add(losses.GOROUTINES_UNREAD, unread)

    def take(self) -> list[Reading]:
        """Return the readings since the last call, one for each stack, with the summed time of its goroutines."""
        with self._lock:
            taken, self._sums = self._sums, {}
        readings = list[Reading]()
        for pid, ((begin_ns, end_ns), sums) in taken.items():
            for number, ((waits_for, names), (ns, addresses)) in enumerate(sums.items(), 1):
                frames = [(name, "", 0) for name in names]
                task = number, GOROUTINES, waits_for, 0, list[int](), list[int](), frames
                payloads = task_payloads((pid, pid), (begin_ns, end_ns, ns), [task])
                readings += [(payload, addresses) for payload in payloads]
        return readings
