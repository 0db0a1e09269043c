# SPDX-License-Identifier: Apache-2.0
"""Find the process at the other end of a pipe or socket. Two ends of one connection name each other: the addresses of
TCP and UDP sockets are exchanged, a Unix socket has the inode of its peer, and a pipe is one inode for both. Where both
processes waited, the samples say who they are. Else the peer counts that the recorder noted (`peer_pid`); else, for a
pipe, the process that ended most of the waits: writers wake readers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.model.recording import Recording
from perf_offcpu.symbolize.wait_objects.rows import ObjectRow, User

_MAPPED = "[::ffff:"


class Process(NamedTuple):
    """Names the process at the other end of a pipe or socket."""

    pid: int
    comm: str

    def text(self) -> str:
        """Return `xz (1234)`."""
        return f"{self.comm} ({self.pid})" if self.comm else f"process {self.pid}"


class OtherEnds:
    """Finds other ends among the objects of one recording. `rows`: row in the recording's objects → object. `users`:
    row → processes that waited for the object. `wakers`: (row, pid) → process that ended most of the waits of process
    `pid` for it (`rows.wakers_of`)."""

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
        own_end = next((user for user in users if user.pid == pid), User(pid, 0, 0, 0))
        peers = [user for user in users if user.pid != pid and not _same_end(own_end, user)]
        if peers:
            return self._process(peers[0].pid)
        if pid == pipe.peer_pid and pipe.pid > 0:
            return self._process(pipe.pid)
        if pipe.peer_pid > 0 and pipe.peer_pid != pid:
            return self._recorded(pipe)
        waker = self._wakers.get((row, pid))
        return None if waker is None else self._process(waker)

    def _recorded(self, object_row: ObjectRow) -> Process | None:
        return (
            Process(object_row.peer_pid, object_row.peer_comm or self._comm(object_row.peer_pid))
            if object_row.peer_pid > 0
            else None
        )

    def _process(self, pid: int) -> Process:
        return Process(pid, self._comm(pid))

    def _comm(self, pid: int) -> str:
        """Return the last known name of a process's main thread."""
        return self._strings[self._comms[pid]] if pid in self._comms else ""


def direction(user: User | None) -> str:
    """Return "from" for a pipe where only reads waited, "to" where only writes did, else "with"."""
    if user is None or bool(user.reads) == bool(user.writes):
        return "with"
    return "from" if user.reads else "to"


def plain(address: str) -> str:
    """Return an address; an IPv4 address written as IPv6, `[::ffff:10.0.0.7]:80`, becomes `10.0.0.7:80`."""
    if not address.startswith(_MAPPED) or "." not in address:
        return address
    host, _, port = address.removeprefix(_MAPPED).partition("]")
    return host + port


def _same_end(user: User, other: User) -> bool:
    words = {direction(user), direction(other)}
    return len(words) == 1 and "with" not in words
