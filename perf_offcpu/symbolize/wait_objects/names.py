# SPDX-License-Identifier: Apache-2.0
"""Name wait objects as people know them: tcp 10.0.0.7:5432, pipe to xz (1234), a path.

An object has two names: one for people, and one that another run of the same program gives it, too, without
addresses and ids of processes. Equal names are one object; where two objects would have the same name and
are not the same, a mark tells them apart: the process of a lock, the inode of a file whose path is unknown.

Locks inside the kernel are called i_rwsem of /srv/file, mmap_lock of mysqld (812), rtnl_mutex, rwsem in lock_rename.
The recorder knows what such a lock protects if it is part of the waiting process, or of the file of its descriptor,
and the name of a lock that is a variable of the kernel. Others are named after the function that takes them."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from perf_offcpu.abi.wait_objects import LockRole, ObjectKind
from perf_offcpu.model.columns import I32, Bool, distinct
from perf_offcpu.model.profile import Objects, Profile
from perf_offcpu.model.recording import SUM_FLAGS, Recording, SampleFlag
from perf_offcpu.objects.search import DELETED
from perf_offcpu.structs import frozen
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.wait_objects.futexes import FutexName, futex_names
from perf_offcpu.symbolize.wait_objects.lock_facts import ended_by_exit, facts_by_enders, facts_by_words
from perf_offcpu.symbolize.wait_objects.rows import (
    ObjectRow,
    OtherEnds,
    User,
    direction,
    entries_of,
    is_in,
    object_rows,
    plain,
    rows_of,
    users_of,
    wakers_of,
    with_earlier_parts,
)

SLEEP = "sleep"  # name of what a thread waits for in nanosleep(), clock_nanosleep(), and poll() without descriptors
_ANY_CHILD, _SIGNAL = "any child", "signal"
_SUSPENDS, _POLLS, _PPOLLS = "rt_sigsuspend pause", "poll", "ppoll ppoll_time64"
_SLEEPS = "nanosleep clock_nanosleep clock_nanosleep_time64"
_EPHEMERAL = 32768  # first port that Linux gives to clients by itself (net.ipv4.ip_local_port_range)
_ENDS = {"read end": "from", "write end": "to"}  # end where a pipe's first process waited → word for the other end
_PORT = re.compile(r"(.*):(\d{1,5})")
_ANY = ("0.0.0.0:", "[::]:")
_ACCEPTED = "accepted"
_MORE = re.compile(r" and \d+ more$|(?<=^\[pidfd\]) of \d+$")


@frozen
class _Named:
    """Holds the names of one object: `text` for people, `stable` without parts that differ from run to run."""

    text: str
    stable: str
    mark: str = ""  # tells it from others of the same text
    is_shared: bool = False  # a lock in memory that processes share


def with_objects(profile: Profile, recording: Recording, options: SymbolizeOptions) -> Profile:
    """Name the wait objects of a recording; return its profile with a table of them, and the object of each sample."""
    row = rows_of(recording.samples.object_id, recording.objects)
    row = with_earlier_parts(recording, row, profile.samples.stack)
    row = np.where(_by_userfaultfd(profile), np.int32(-1), row)  # not for the file that the system call names
    bare = _without_object(recording, row, profile.is_offcpu())
    if not (row >= 0).any() and not any(mask.any() for _, _, mask in bare):
        return profile
    rows, pids, entry_of_sample = entries_of(recording, row)
    object_of, users = object_rows(recording, distinct(rows).tolist()), users_of(recording, row)
    futexes = {number: thing for number, thing in object_of.items() if thing.kind == ObjectKind.FUTEX}
    ends = OtherEnds(recording, object_of, users, wakers_of(recording, row))
    facts = facts_by_words(recording, row)
    locks = [number for number, thing in object_of.items() if thing.kind == ObjectKind.KERNEL_LOCK]
    takers = lock_takers(profile, row, locks)
    namer = _Namer(object_of, users, ends, futex_names(profile, recording, futexes, facts, row, options), takers)
    entries = list(zip(rows.tolist(), pids.tolist(), strict=True))
    named = [namer.name(*entry) for entry in entries]
    strings, table, things = profile.strings, recording.objects, [object_of[row] for row in rows.tolist()]
    names = strings.intern_all(_apart([*named, *(_Named(name, name) for name, _, _ in bare)]))
    stable = strings.intern_all(thing.stable for thing in named)
    addresses = [_addresses(thing) for thing in things]
    own = Objects.filled(
        len(rows),
        kind=table.kind[rows],
        name=names[: len(rows)],
        stable=stable,
        protocol=table.protocol[rows],
        local=strings.intern_all(local for local, _ in addresses),
        remote=strings.intern_all(remote for _, remote in addresses),
        shared=[thing.is_shared for thing in named],
        connected=[_is_connected(thing) for thing in things],
        inward=[namer.is_inward(*entry) for entry in entries],
        facts=facts[rows],
        **{column: getattr(table, column)[rows] for column in ("pid", "address", "peer_pid")},
    )
    others, kinds = names[len(rows) :], [kind for _, kind, _ in bare]
    objects = Objects.concat([own, Objects.filled(len(bare), kind=kinds, name=others, stable=others)])
    of_entry = np.append(rows, np.full(len(bare), -1))
    objects.facts |= facts_by_enders(recording, entry_of_sample, of_entry, objects, strings)
    for number, (_, _, mask) in enumerate(bare, len(rows)):
        entry_of_sample = np.where(mask, number, entry_of_sample)
    samples = profile.samples.with_columns(object=entry_of_sample.astype(np.int32))
    return dataclasses.replace(profile, samples=samples, objects=objects)


def _without_object(recording: Recording, row: I32, is_wait: Bool) -> list[tuple[str, ObjectKind, Bool]]:
    """Return (name, kind, bool[samples]: True for waits of this kind) of sleeps, waits for children and for signals, in
    system calls that name no object. A shell waits for its children in sigsuspend(), until a child exits. poll()
    without descriptors and time limit waits for a signal."""
    samples, bare = recording.samples, (row < 0) & is_wait
    kind = np.append(recording.objects.kind, np.uint16(ObjectKind.UNKNOWN))[row]
    is_time = (kind == ObjectKind.DESCRIPTORS) & (np.append(recording.objects.number, np.int32(-1))[row] == 0)
    # The time limit of ppoll(), which arm64 has in place of poll() and pause(), is not always read: a thread ended it.
    woken = is_in(recording, _PPOLLS) & (samples.waker_tid > 0) & ~samples.has(SampleFlag.WAKER_INTERRUPT)
    forever = is_time & (is_in(recording, _POLLS) | woken) & (samples.asked_ns < 0) & ~samples.has(SUM_FLAGS)
    by_exit = bare & is_in(recording, _SUSPENDS)
    by_exit[by_exit] = ended_by_exit(recording, by_exit)
    sleep = (SLEEP, ObjectKind.UNKNOWN, bare & is_in(recording, _SLEEPS))
    others = (_ANY_CHILD, ObjectKind.PROCESS, by_exit), (_SIGNAL, ObjectKind.DESCRIPTORS, forever)
    return [sleep, *(other for other in others if other[2].any())]


def _apart(named: Sequence[_Named]) -> list[str]:
    """Return the text of each name, and its mark (address, inode, pid) if the text occurs with other marks."""
    marks: dict[str, set[str]] = {}
    for name in named:
        marks.setdefault(name.text, set()).add(name.mark)
    return [f"{name.text} {name.mark}" if len(marks[name.text]) > 1 and name.mark else name.text for name in named]


class _Namer:
    def __init__(
        self,
        rows: Mapping[int, ObjectRow],
        users: Mapping[int, Sequence[User]],
        ends: OtherEnds,
        futexes: Mapping[int, FutexName],
        takers: Mapping[int, str],
    ) -> None:
        self._rows, self._users, self._ends, self._futexes, self._takers = rows, users, ends, futexes, takers

    def name(self, row: int, pid: int) -> _Named:
        """Return the names of the object in `row`; those of a pipe as process `pid` sees it."""
        thing = self._rows[row]
        if thing.kind == ObjectKind.FUTEX:
            name = self._futexes[row]
            mark = f"at {thing.address:#x} ({thing.pid})" if thing.name else f"({thing.pid})"
            if name.is_shared:  # what has no name any more is told apart by the address, which children inherit
                mark = f"at {thing.address:#x}" if DELETED in thing.place else ""
            return _Named(name.text, name.stable, mark, name.is_shared)
        if thing.kind == ObjectKind.KERNEL_LOCK:
            return _Named(*lock_name(thing, self._takers.get(row, "")))
        if thing.kind == ObjectKind.PIPE:
            return self._pipe(row, pid)
        if thing.kind == ObjectKind.SOCKET:
            return self._socket(row)
        return _numbered(thing) or _file(thing)

    def is_inward(self, row: int, pid: int) -> bool:
        """Return True if the other end of pipe or socket `row`, as process `pid` has it, is a client, in the same
        process, or not known; False for other objects."""
        thing = self._rows[row]
        if thing.kind == ObjectKind.PIPE:
            peer = self._ends.of_pipe(row, pid)
            return peer is None or peer.pid == pid
        if thing.kind != ObjectKind.SOCKET:
            return False
        if thing.place == _ACCEPTED:
            return True
        if thing.protocol == "unix":
            return not (thing.name or thing.remote or thing.local) and thing.peer_pid in (thing.pid, -1)
        if port := _unconnected_port(thing):
            return port < _EPHEMERAL
        return _is_of_client(plain(thing.local), plain(thing.remote))

    def _pipe(self, row: int, pid: int) -> _Named:
        pipe, peer = self._rows[row], self._ends.of_pipe(row, pid)
        own_end = next((user for user in self._users.get(row, ()) if user.pid == pid), None)
        kind = f"fifo {pipe.name}" if pipe.name.startswith("/") else "pipe"
        if peer is None:
            text = kind if kind != "pipe" else f"pipe inode {pipe.inode}"
            return _Named(text, kind)
        word = direction(own_end)
        if word == "with" and pid == pipe.pid:
            word = _ENDS.get(pipe.place, word)
        where = f"{kind} {word}"
        return _Named(f"{where} {peer.text()}", f"{where} {peer.comm or 'a process'}")

    def _socket(self, row: int) -> _Named:
        socket, peer = self._rows[row], self._ends.of_socket(row)
        local, remote = plain(socket.local), plain(socket.remote)
        protocol = socket.protocol or "socket"
        end, stable_end = (f" ({peer.comm} {peer.pid})", f" ({peer.comm})") if peer else ("", "")
        if protocol == "unix":
            path = socket.name or remote or local
            text = f"unix {path}" if path else "unix socket"
            apart = "" if path or peer else f" inode {socket.inode}"
            return _Named(f"{text}{apart}{end}", f"{text}{stable_end}")
        if remote:
            lasting = remote
            if _is_of_client(local, remote):  # whose port differs in the next run
                lasting = f"{remote.rpartition(':')[0]} at :{local.rpartition(':')[2]}"
            return _Named(f"{protocol} {remote}{end}", f"{protocol} {lasting}{stable_end}")
        listens = protocol in ("tcp", "mptcp", "sctp") and local
        text = f"{protocol}{' listen' if listens else ''} {local}".rstrip()
        lasting = text.rpartition(":")[0] if _unconnected_port(socket) >= _EPHEMERAL else text
        return _Named(text if local else f"{text} inode {socket.inode}", lasting)


def _is_connected(object_row: ObjectRow) -> bool:
    if object_row.kind == ObjectKind.SOCKET:
        by_sendto = object_row.local.startswith(_ANY) and _unconnected_port(object_row) >= _EPHEMERAL  # bound by it
        return bool(object_row.remote or object_row.peer_inode or object_row.peer_pid > 0 or by_sendto)
    return object_row.kind == ObjectKind.PIPE


def _unconnected_port(socket: ObjectRow) -> int:
    match = _PORT.fullmatch(socket.local) if socket.protocol == "udp" and not socket.remote else None
    return int(match[2]) if match else 0


def _addresses(object_row: ObjectRow) -> tuple[str, str]:
    """Return the addresses of both ends of a connection of an internet protocol, this end first; else "", ""."""
    is_connection = object_row.protocol != "unix" and object_row.local and object_row.remote
    return (plain(object_row.local), plain(object_row.remote)) if is_connection else ("", "")


def _is_of_client(local: str, remote: str) -> bool:
    """Return True if the other end is a client: the remote port is ephemeral, and the local port is not."""
    ends = _PORT.fullmatch(local), _PORT.fullmatch(remote)
    return bool(ends[0] and ends[1] and int(ends[0][2]) < _EPHEMERAL <= int(ends[1][2]))


def _numbered(object_row: ObjectRow) -> _Named | None:
    """Return the name of an object that has a number only: a child, descriptors, System V IPC; else None."""
    kind, number = object_row.kind, object_row.number
    if kind == ObjectKind.PROCESS:
        return _Named(_ANY_CHILD, _ANY_CHILD) if number < 0 else _Named(f"child {number}", "child")
    if kind == ObjectKind.DESCRIPTORS and number == 0:
        return _Named(SLEEP, SLEEP)  # a poll() that only its timeout ends
    if kind == ObjectKind.DESCRIPTORS:
        text = f"{number} descriptor{'' if number == 1 else 's'}"
        return _Named(text, text)
    system_v = {int(ObjectKind.SEMAPHORES): "System V semaphores", int(ObjectKind.MESSAGES): "System V queue"}
    words = system_v.get(kind)
    return _Named(f"{words} {number}", words) if words else None


def _file(object_row: ObjectRow) -> _Named:
    if not object_row.name:
        where = f"inode {object_row.inode} on {object_row.device >> 20}:{object_row.device & 0xFFFFF}"
        return _Named(where if object_row.inode else "unknown", "file" if object_row.inode else "unknown")
    is_path = object_row.name.startswith(("/", "[")) or not object_row.inode
    return _Named(object_row.name, _MORE.sub("", object_row.name), "" if is_path else f"(inode {object_row.inode})")


_MEMBERS: Final[dict[int, str]] = {
    LockRole.MMAP: "mmap_lock of",
    LockRole.INODE: "i_rwsem of",
    LockRole.MAPPING: "invalidate_lock of",
    LockRole.SUPER: "s_umount of the file system of",
    LockRole.RENAME: "s_vfs_rename_mutex of the file system of",
    LockRole.PIPE: "mutex of pipe",
}
_TYPES: Final = ("mutex", "semaphore", "rwsem", "rwsem")
_TAKEN_BY: Final = {
    ("rwsem", "super_lock"): "s_umount",
    ("mutex", "lock_rename"): "s_vfs_rename_mutex",
    ("mutex", "do_renameat2"): "s_vfs_rename_mutex",  # with lock_rename inlined
    ("mutex", "__start_renaming"): "s_vfs_rename_mutex",  # likewise, Linux 7
}
"""Kind of a lock, function that takes no other lock of this kind → the lock."""
_TAKES: Final = re.compile(
    r"_*(ww_)?mutex_lock.*|_*down(_.*)?|rwsem_down_.*|_*percpu_down_.*|_*rt_mutex_.*|rtlock_.*|.*schedule.*"
)
"""Functions that wait for any lock; their caller takes it."""


def lock_name(lock: ObjectRow, taker: str) -> tuple[str, str, str]:
    """Return the name of a lock, the name that another run gives it, too, and a mark that tells it from others.
    `taker`: the function of the kernel that takes it; "" unknown."""
    member, mark = _MEMBERS.get(lock.operation, ""), ""
    if lock.operation == LockRole.MMAP:
        return f"{member} {lock.name or 'a process'} ({lock.pid})", f"{member} {lock.name or 'a process'}", mark
    if member:
        text = f"{member} {lock.name or f'inode {lock.inode}'}"
    elif lock.place:
        text = lock.place
    else:
        kind = _TYPES[lock.number] if 0 <= lock.number < len(_TYPES) else "lock"
        text = _TAKEN_BY.get((kind, taker)) or (f"{kind} in {taker}" if taker else f"kernel {kind}")
        mark = f"at {lock.address:#x}"
    return text, text, mark


def _by_userfaultfd(profile: Profile) -> Bool:
    """Return bool[samples]: True for page faults, also in system calls, that a thread resolves by userfaultfd."""
    leaf = np.append(profile.stacks.frame, -1).astype(np.int64)[profile.samples.stack]
    is_named = np.append(profile.frames.symbol.astype(np.int64) == profile.strings.find("handle_userfault"), False)
    return is_named[leaf]


def lock_takers(profile: Profile, row: I32, locks: Sequence[int]) -> dict[int, str]:
    """Return row of a lock → the kernel function that takes it in one of its waits; unknown ones are left out. `row`:
    int32[samples], the object of each sample; -1 for none."""
    samples, stacks, frames = profile.samples, profile.stacks, profile.frames
    takers, is_kernel = dict[int, str](), frames.is_kernel()
    for lock in locks:
        rows = np.flatnonzero((row == lock) & (samples.stack >= 0))
        node = int(samples.stack[rows[0]]) if len(rows) else -1
        while node >= 0 and is_kernel[frame := int(stacks.frame[node])]:
            name = profile.strings[int(frames.symbol[frame])]
            if name and not _TAKES.fullmatch(name):
                takers[lock] = name
                break
            node = int(stacks.parent[node])
    return takers
