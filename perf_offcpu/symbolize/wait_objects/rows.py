# SPDX-License-Identifier: Apache-2.0
"""The wait objects of a recording as rows of texts and numbers, the processes that waited for them, and the process at
the other end of a pipe or socket. Two ends of one connection name each other: the addresses of TCP and UDP sockets are
exchanged, a Unix socket has the inode of its peer, and a pipe is one inode for both. Where both processes waited, the
samples say who they are. Else the recorder noted the peer (`peer_pid`); else, for a pipe, it is the process that
ended most of the waits: writers wake readers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from perf_offcpu.abi.syscalls import syscall_names
from perf_offcpu.abi.wait_objects import TEXTS, ObjectKind
from perf_offcpu.model.columns import I32, I64, U64, Bool, group, is_one_of
from perf_offcpu.model.recording import Recording, SampleFlag, WaitObjects

_READS = "read readv pread64 preadv preadv2 recvfrom recvmsg recvmmsg accept accept4"
_LOOK_NS = 10_000_000  # most time between two parts of a wait, in which a thread may have waited for a CPU
_NO_WAKER = SampleFlag.WAKER_INTERRUPT | SampleFlag.STILL_BLOCKED
_WRITES = "write writev pwrite64 pwritev pwritev2 sendto sendmsg sendmmsg connect"


class ObjectRow(NamedTuple):
    """Describes a wait object as the recording does; fields as in `model` WaitObjects, with texts decoded."""

    kind: int
    pid: int
    device: int
    inode: int
    number: int
    operation: int
    address: int
    peer_inode: int
    peer_pid: int
    protocol: str
    local: str
    remote: str
    name: str
    place: str
    peer_comm: str


class User(NamedTuple):
    """Counts the waits of a process for an object."""

    pid: int
    waits: int
    reads: int  # waits in system calls that read
    writes: int


def object_rows(recording: Recording, rows: list[int]) -> dict[int, ObjectRow]:
    """Return row → object, for `rows` of the recording's table of objects."""
    table, strings = recording.objects.take(rows), recording.strings
    columns = [getattr(table, name).tolist() for name in ObjectRow._fields]
    for index, name in enumerate(ObjectRow._fields):
        if name in TEXTS:
            columns[index] = [strings[text] for text in columns[index]]
    return {row: ObjectRow(*values) for row, values in zip(rows, zip(*columns, strict=True), strict=True)}


def rows_of(ids: U64, objects: WaitObjects) -> I32:
    """Return int32[n]: the row in `objects` of each id; -1 where it is 0 or unknown."""
    if not len(objects):
        return np.broadcast_to(np.int32(-1), len(ids))
    place = np.searchsorted(objects.id, ids)
    is_there = np.append(objects.id, np.uint64(0))[place] == ids
    return np.where(is_there & (ids != 0), place, -1).astype(np.int32)


def with_earlier_parts(recording: Recording, row: I32, stack: I32) -> I32:
    """Return `row` (int32[samples], rows of objects) with the lock of a JVM also in earlier parts of a wait: each
    second, a timer wakes a thread that waits for a monitor, which looks and waits again, with the same `stack`
    (int32[samples], rows of stacks). The recorder knows the lock of the last part only, which has not ended."""
    named = np.append((recording.objects.kind == ObjectKind.FUTEX) & (recording.objects.name != 0), False)
    if not named[row].any():
        return row
    samples = recording.samples
    order = np.lexsort((samples.time_ns, samples.tid))
    order = order[(samples.switch_out_ns[order] >= 0) & ~samples.has(SampleFlag.PREEMPTED)[order]]
    before, after = order[:-1], order[1:]
    goes_on = samples.has(SampleFlag.WAKER_INTERRUPT)[before] & (stack[before] == stack[after])
    goes_on &= (samples.tid[before] == samples.tid[after]) & (stack[before] >= 0)
    goes_on &= np.abs(samples.switch_out_ns[after] - samples.time_ns[before]) < _LOOK_NS
    wait = np.append(0, np.cumsum(~goes_on))[: len(order)]
    last = order[np.flatnonzero(np.append(~goes_on, True)[: len(order)])][wait]
    result = row.copy()
    result[order] = np.where(named[row[last]], row[last], row[order])
    return result


def users_of(recording: Recording, row: I32) -> dict[int, list[User]]:
    """Return row of an object → processes that waited for it, most waits first. `row`: int32[samples], -1 none."""
    samples = recording.samples
    rows = np.flatnonzero(row >= 0)
    first, user = group(row[rows], samples.pid[rows])
    reads, writes = (is_in(recording, names)[rows] for names in (_READS, _WRITES))
    counts = (np.bincount(user, part, len(first)).astype(np.int64) for part in (np.ones(len(rows)), reads, writes))
    numbers = zip(samples.pid[rows[first]].tolist(), *(count.tolist() for count in counts), strict=True)
    users_by_row: dict[int, list[User]] = {}
    for object_row, of_user in zip(row[rows[first]].tolist(), numbers, strict=True):
        users_by_row.setdefault(object_row, []).append(User(*of_user))
    return {row: sorted(users, key=lambda user: (-user.waits, user.pid)) for row, users in users_by_row.items()}


def wakers_of(recording: Recording, row: I32) -> dict[tuple[int, int], int]:
    """Return (row of a pipe, pid of the sleeper) → pid of another process, which ended more than half of the waits.
    Interrupts, and waits that are not over, do not count. `row`: int32[samples], object of each sample or -1."""
    samples = recording.samples
    kinds = np.append(recording.objects.kind, np.uint16(ObjectKind.UNKNOWN))
    ended = (kinds[row] == ObjectKind.PIPE) & (samples.waker_pid > 0) & ~samples.has(_NO_WAKER)
    rows = np.flatnonzero(ended)
    first, number = group(row[rows], samples.pid[rows], samples.waker_pid[rows])
    first, counts = rows[first], np.bincount(number)
    _, pair = group(row[first], samples.pid[first])
    is_most = (2 * counts > np.bincount(pair, counts)[pair]) & (samples.waker_pid[first] != samples.pid[first])
    columns = (column[first[is_most]].tolist() for column in (row, samples.pid, samples.waker_pid))
    return {(pipe, sleeper): waker for pipe, sleeper, waker in zip(*columns, strict=True)}


def is_in(recording: Recording, names: str) -> Bool:
    """Return bool[samples]: True for samples in any of the system calls in `names`, separated by blanks."""
    names_of_number = syscall_names(recording.meta.arch)
    numbers = [number for number, name in names_of_number.items() if name in names.split()]
    return is_one_of(recording.samples.syscall, np.array(numbers, np.int32))


def entries_of(recording: Recording, row: I32) -> tuple[I64, I64, I64]:
    """List the waited-for objects as entries: a pipe has one for each process that waited for it, others have one. Both
    ends of a pipe are one object to the kernel; to each process it is another one, named after the process at the other
    end. Return (row, pid, entry_of_sample): int64[entries], row of the object; int64[entries], process that waited if
    it is a pipe, else -1; int64[samples], the entry of each sample, -1 for none."""
    kinds = np.append(recording.objects.kind, np.uint16(ObjectKind.UNKNOWN))
    rows = np.flatnonzero(row >= 0)
    pid = np.where(kinds[row[rows]] == ObjectKind.PIPE, recording.samples.pid[rows].astype(np.int64), -1)
    first, entry = group(row[rows], pid)
    entry_of_sample = np.full(len(row), -1, np.int64)
    entry_of_sample[rows] = entry
    return row[rows[first]].astype(np.int64), pid[first], entry_of_sample


_MAPPED = "[::ffff:"


class Process(NamedTuple):
    """Names the process at the other end of a pipe or socket."""

    pid: int
    comm: str

    def text(self) -> str:
        """Return name and pid as `xz (1234)`; `process 1234` if the name is not known."""
        return f"{self.comm} ({self.pid})" if self.comm else f"process {self.pid}"


class OtherEnds:
    """Finds the processes at the other ends of pipes and sockets of one recording. `rows`: row in the recording's
    objects → object. `users`: row → processes that waited for the object. `wakers`: as `wakers_of` returns."""

    def __init__(
        self,
        recording: Recording,
        rows: Mapping[int, ObjectRow],
        users: Mapping[int, Sequence[User]],
        wakers: Mapping[tuple[int, int], int],
    ) -> None:
        self._strings = recording.strings
        # Rows are sorted by time: the last name of each thread stays.
        self._comms = dict(zip(recording.comms.tid.tolist(), recording.comms.comm.tolist(), strict=True))
        self._rows, self._users, self._wakers = rows, users, wakers
        self._by_ends: dict[tuple[str, str, str], list[int]] = {}
        self._by_inode: dict[int, list[int]] = {}
        self._by_peer: dict[int, list[int]] = {}
        for row, object_row in rows.items():
            if object_row.kind != ObjectKind.SOCKET:
                continue
            if object_row.local and object_row.remote:
                ends = object_row.protocol, plain(object_row.local), plain(object_row.remote)
                self._by_ends.setdefault(ends, []).append(row)
            for inode, index in ((object_row.inode, self._by_inode), (object_row.peer_inode, self._by_peer)):
                if inode:
                    index.setdefault(inode, []).append(row)

    def of_socket(self, row: int) -> Process | None:
        """Return the process at the other end of a socket; None if unknown."""
        socket = self._rows[row]
        if socket.protocol == "unix":
            peers = [*self._by_inode.get(socket.peer_inode, ()), *self._by_peer.get(socket.inode, ())]
        elif socket.local and socket.remote:
            peers = self._by_ends.get((socket.protocol, plain(socket.remote), plain(socket.local)), [])
        else:
            peers = []
        users = [user for peer in peers if peer != row for user in self._users.get(peer, ())]
        if users:
            return self._process(max(users, key=lambda user: (user.waits, -user.pid)).pid)
        return self._recorded(socket)

    def of_pipe(self, row: int, pid: int) -> Process | None:
        """Return the process at the other end of a pipe, seen from process `pid`; None if unknown."""
        pipe, users = self._rows[row], self._users.get(row, ())
        end = direction(next((user for user in users if user.pid == pid), None))
        peers = [user for user in users if user.pid != pid and (end == "with" or direction(user) != end)]
        if peers:
            return self._process(peers[0].pid)
        if pid == pipe.peer_pid and pipe.pid > 0:
            return self._process(pipe.pid)
        if pipe.peer_pid > 0 and pipe.peer_pid != pid:
            return self._recorded(pipe)
        waker = self._wakers.get((row, pid))
        return None if waker is None else self._process(waker)

    def _recorded(self, object_row: ObjectRow) -> Process | None:
        pid = object_row.peer_pid
        return Process(pid, object_row.peer_comm or self._comm(pid)) if pid > 0 else None

    def _process(self, pid: int) -> Process:
        return Process(pid, self._comm(pid))

    def _comm(self, pid: int) -> str:
        """Return the last known name of a process's main thread; "" if it has none."""
        return self._strings[self._comms[pid]] if pid in self._comms else ""


def direction(user: User | None) -> str:
    """Return how a process uses a pipe: "from" if only its reads waited, "to" if only its writes did, else "with"."""
    if user is None or bool(user.reads) == bool(user.writes):
        return "with"
    return "from" if user.reads else "to"


def plain(address: str) -> str:
    """Return an address; an IPv4 address written as IPv6, `[::ffff:10.0.0.7]:80`, becomes `10.0.0.7:80`."""
    if not address.startswith(_MAPPED) or "." not in address:
        return address
    host, _, port = address.removeprefix(_MAPPED).partition("]")
    return host + port
