# SPDX-License-Identifier: Apache-2.0
"""Names of what threads waited for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.recording import BASE, S, comm, event, task, write
from builders.wait_objects import (
    COUNTERS,
    NANOSLEEP,
    POLL,
    READ,
    RECVFROM,
    SENDTO,
    WAITS,
    WRITE,
    described,
    thing,
    wait,
)

from perf_offcpu.abi import offcpu
from perf_offcpu.abi.records import RecordType
from perf_offcpu.abi.wait_objects import LockRole as Role
from perf_offcpu.abi.wait_objects import ObjectKind as K
from perf_offcpu.decode.join import JoinOptions
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.join import join
from perf_offcpu.model.profile import ObjectFact as Fact
from perf_offcpu.model.profile import Profile
from perf_offcpu.symbolize.load import join_profiles
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize

CLOCK = event("cpu-clock", (1,), BASE | S.CALLCHAIN)
EVENTS = [CLOCK, WAITS, COUNTERS]
SET = "[eventpoll] of a"
NAMES = [comm(CLOCK, 10, 10, "find"), comm(CLOCK, 20, 20, "xz"), comm(CLOCK, 30, 30, "postgres")]


def profile_of(path: Path, *records: bytes) -> Profile:
    profile = symbolize(load_recording(write(path / "x.data", EVENTS, [*NAMES, *records])))
    profile.check()
    return profile


def names(profile: Profile, column: str = "name") -> list[str]:
    """The name of each sample's object; "" for none."""
    texts = [profile.strings[row] for row in getattr(profile.objects, column).tolist()]
    return [texts[row] if row >= 0 else "" for row in profile.samples.object.tolist()]


def one_wait(kind: K, fields: dict[str, Any]) -> tuple[bytes, bytes]:
    """Records of a wait for an object that has these fields."""
    described_object = described(thing(7, kind, **{"pid": 10} | fields))
    return described_object, wait(7, time=90, pid=10, tid=10, syscall=READ)


def both(path: Path, *records: bytes) -> tuple[list[str], list[str]]:
    profile = profile_of(path, *records)
    return names(profile), names(profile, "stable")


@pytest.mark.parametrize(
    ("kind", "fields", "name", "stable"),
    [
        (K.FILE, {"name": "/var/lib/x", "inode": 5}, "/var/lib/x", "/var/lib/x"),
        (K.FILE, {"name": "wal", "inode": 5}, "wal", "wal"),
        (K.FILE, {"inode": 5, "device": 8 << 20 | 1}, "inode 5 on 8:1", "file"),
        (K.CHARACTER, {"name": "/dev/tty1"}, "/dev/tty1", "/dev/tty1"),
        (K.ANONYMOUS, {"name": "[eventfd]"}, "[eventfd]", "[eventfd]"),
        (K.ANONYMOUS, {"name": "[eventpoll] of a and 4 more"}, "[eventpoll] of a and 4 more", SET),
        (K.DESCRIPTORS, {"number": 3}, "3 descriptors", "3 descriptors"),
        (K.DESCRIPTORS, {"number": 0}, "sleep", "sleep"),
        (K.DESCRIPTORS, {"number": 1}, "1 descriptor", "1 descriptor"),
        (K.PROCESS, {"number": 1234}, "child 1234", "child"),
        (K.PROCESS, {"number": -1}, "any child", "any child"),
        (K.SEMAPHORES, {"number": 7}, "System V semaphores 7", "System V semaphores"),
        (K.UNKNOWN, {}, "unknown", "unknown"),
        (K.SOCKET, {"protocol": "tcp", "local": "10.0.0.1:40000", "remote": "10.0.0.7:5432"},
         *["tcp 10.0.0.7:5432"] * 2),
        (K.SOCKET, {"protocol": "tcp", "local": "10.0.0.1:5432", "remote": "10.0.0.7:40000"},
         "tcp 10.0.0.7:40000", "tcp 10.0.0.7 at :5432"),
        (K.SOCKET, {"protocol": "tcp", "local": "[::ffff:10.0.0.1]:4", "remote": "[::ffff:10.0.0.7]:80"},
         "tcp 10.0.0.7:80", "tcp 10.0.0.7:80"),
        (K.SOCKET, {"protocol": "tcp", "local": "0.0.0.0:80"}, *["tcp listen 0.0.0.0:80"] * 2),
        (K.SOCKET, {"protocol": "udp", "local": "0.0.0.0:53"}, "udp 0.0.0.0:53", "udp 0.0.0.0:53"),
        (K.SOCKET, {"protocol": "unix", "remote": "/run/x.sock"}, "unix /run/x.sock", "unix /run/x.sock"),
        (K.SOCKET, {"protocol": "unix", "local": "/run/x.sock", "peer_pid": 30},
         "unix /run/x.sock (postgres 30)", "unix /run/x.sock (postgres)"),
        (K.SOCKET, {"protocol": "unix", "name": "@tmp/x", "inode": 9}, "unix @tmp/x", "unix @tmp/x"),
        (K.SOCKET, {"protocol": "unix", "inode": 9}, "unix socket inode 9", "unix socket"),
        (K.PIPE, {"inode": 9}, "pipe inode 9", "pipe"),
        (K.PIPE, {"inode": 9, "peer_pid": 77, "peer_comm": "gone"}, "pipe from gone (77)", "pipe from gone"),
        (K.PIPE, {"inode": 9, "name": "/run/q", "peer_pid": 20}, "fifo /run/q from xz (20)",
         "fifo /run/q from xz"),
        (K.FUTEX, {"pid": 10, "address": 0x55AA, "place": "heap"}, "futex heap 0x55aa", "futex heap"),
        (K.FUTEX, {"pid": 10, "address": 0x55AA}, "futex 0x55aa", "futex"),
        (K.FUTEX, {"pid": 10, "address": 5, "place": "/dev/shm/q+0x40"}, *["shared /dev/shm/q+0x40"] * 2),
        (K.KERNEL_LOCK, {"pid": 10, "operation": Role.MMAP, "number": 3, "name": "find"},
         "mmap_lock of find (10)", "mmap_lock of find"),
        (K.KERNEL_LOCK, {"pid": 10, "operation": Role.INODE, "number": 3, "name": "/a"}, *["i_rwsem of /a"] * 2),
        (K.KERNEL_LOCK, {"pid": 10, "operation": Role.SUPER, "inode": 7},
         *["s_umount of the file system of inode 7"] * 2),
        (K.KERNEL_LOCK, {"pid": 10, "address": 5, "place": "rtnl_mutex"}, *["rtnl_mutex"] * 2),
        (K.KERNEL_LOCK, {"pid": 10, "address": 5, "number": 1}, *["kernel semaphore"] * 2),
        (K.KERNEL_LOCK, {"pid": 10, "address": 5, "number": 9, "operation": 99}, *["kernel lock"] * 2),
    ],
)  # fmt: skip
def test_names(kind: K, fields: dict[str, Any], name: str, stable: str, tmp_path: Path) -> None:
    assert both(tmp_path, *one_wait(kind, fields)) == ([name], [stable])


def test_the_two_ends_of_a_pipe_name_each_other(tmp_path: Path) -> None:
    """The kernel has one object; who waited in which system call tells the ends apart."""
    pipe = described(thing(7, K.PIPE, pid=10, inode=5))
    writes = wait(7, time=90, pid=10, tid=10, syscall=WRITE)
    reads = wait(7, time=91, pid=20, tid=21, syscall=READ)
    assert names(profile_of(tmp_path, pipe, writes, reads)) == ["pipe to xz (20)", "pipe from find (10)"]
    polls = wait(7, time=91, pid=20, tid=21, syscall=POLL)
    assert names(profile_of(tmp_path, pipe, writes, polls)) == ["pipe to xz (20)", "pipe with find (10)"]


def test_the_recorder_may_tell_the_end_of_a_pipe(tmp_path: Path) -> None:
    for place, word in (("read end", "from"), ("write end", "to"), ("", "with")):
        pipe = described(thing(7, K.PIPE, pid=10, inode=5, peer_pid=20, place=place))
        assert names(profile_of(tmp_path, pipe, wait(7, time=90, pid=10, tid=10, syscall=POLL))) == [
            f"pipe {word} xz (20)"
        ]


def test_shared_memory_without_a_name_is_one_where_children_inherited_it(tmp_path: Path) -> None:
    ids = [(7, 10, 0x7000), (8, 20, 0x7000), (9, 30, 0x9000)]
    locks = [
        thing(id_, K.FUTEX, pid=pid, address=address, place="/dev/zero (deleted)+0x0") for id_, pid, address in ids
    ]
    waits = [wait(id_, time=90 + id_, pid=pid, tid=pid) for id_, pid, _ in ids]
    assert names(profile_of(tmp_path, described(*locks), *waits)) == [
        *["shared memory+0x0 at 0x7000"] * 2,
        "shared memory+0x0 at 0x9000",
    ]


def test_processes_at_the_same_end_of_a_pipe_do_not_name_each_other(tmp_path: Path) -> None:
    pipe = described(thing(7, K.PIPE, pid=10, inode=5))
    both_read = [wait(7, time=90 + pid, pid=pid, tid=pid, syscall=READ) for pid in (10, 20)]
    assert names(profile_of(tmp_path, pipe, *both_read)) == ["pipe inode 5"] * 2


def test_who_ends_the_waits_is_at_the_other_end_of_a_pipe(tmp_path: Path) -> None:
    """Where nobody waited there and the recorder did not look; half of the waits are not enough."""
    pipe = described(thing(7, K.PIPE, pid=10, inode=5))
    ends = [20, 20, 30]
    waits = [
        wait(7, time=90 + at, pid=10, tid=10, syscall=READ, waker_pid=waker, waker_tid=waker, wakeup_ns=90 + at)
        for at, waker in enumerate(ends)
    ]
    assert set(names(profile_of(tmp_path, pipe, *waits))) == {"pipe from xz (20)"}
    assert set(names(profile_of(tmp_path, pipe, *waits[1:]))) == {"pipe inode 5"}
    own = wait(7, time=99, pid=10, tid=10, syscall=READ, waker_pid=10, waker_tid=11, wakeup_ns=98)
    assert set(names(profile_of(tmp_path, pipe, own))) == {"pipe inode 5"}


def test_two_sockets_of_one_connection_find_each_other(tmp_path: Path) -> None:
    one = thing(7, K.SOCKET, pid=10, protocol="tcp", local="127.0.0.1:40000", remote="127.0.0.1:5432")
    other = thing(8, K.SOCKET, pid=30, protocol="tcp", local="[::ffff:127.0.0.1]:5432")
    other["remote"] = "[::ffff:127.0.0.1]:40000"
    waits = (wait(7, time=90, pid=10, tid=10, syscall=RECVFROM), wait(8, time=91, pid=30, tid=30, syscall=SENDTO))
    assert both(tmp_path, described(one, other), *waits) == (
        ["tcp 127.0.0.1:5432 (postgres 30)", "tcp 127.0.0.1:40000 (find 10)"],
        ["tcp 127.0.0.1:5432 (postgres)", "tcp 127.0.0.1 at :5432 (find)"],
    )


def test_unix_sockets_find_each_other_by_inode(tmp_path: Path) -> None:
    one = thing(7, K.SOCKET, pid=10, protocol="unix", inode=50, peer_inode=51)
    other = thing(8, K.SOCKET, pid=30, protocol="unix", inode=51, local="/run/x.sock")
    waits = [wait(7 + at, time=90 + at, pid=pid, tid=pid, syscall=READ) for at, pid in enumerate((10, 30))]
    assert names(profile_of(tmp_path, described(one, other), *waits)) == [
        "unix socket (postgres 30)",
        "unix /run/x.sock (find 10)",
    ]


def test_private_locks_of_two_processes_are_two_and_shared_ones_are_one(tmp_path: Path) -> None:
    private = [thing(7 + at, K.FUTEX, pid=pid, address=64, place="heap") for at, pid in enumerate((10, 20))]
    shared = [
        thing(17 + at, K.FUTEX, pid=pid, address=64 + at, place="/dev/shm/q+0x0") for at, pid in enumerate((10, 20))
    ]
    waits = [wait(one["id"], time=90 + at, pid=one["pid"], tid=one["pid"])
             for at, one in enumerate([*private, *shared])]  # fmt: skip
    assert names(profile_of(tmp_path, described(*private, *shared), *waits)) == [
        "futex heap 0x40 (10)",
        "futex heap 0x40 (20)",
        *["shared /dev/shm/q+0x0"] * 2,
    ]


def test_files_of_one_leaf_name_are_told_apart(tmp_path: Path) -> None:
    files = described(*(thing(at, K.FILE, pid=10, name="wal", inode=at) for at in (5, 6)))
    waits = [wait(at, time=90 + at, pid=10, tid=10, syscall=READ) for at in (5, 6)]
    assert both(tmp_path, files, *waits) == (["wal (inode 5)", "wal (inode 6)"], ["wal", "wal"])


def test_sleeps_have_a_name_without_an_object(tmp_path: Path) -> None:
    records = (
        wait(0, time=90, pid=10, tid=10, syscall=NANOSLEEP, asked_ns=5),
        wait(0, time=91, pid=10, tid=10),
        wait(99, time=92, pid=10, tid=10),
    )
    profile = profile_of(tmp_path, *records)
    assert names(profile) == ["sleep", "", ""]
    assert profile.samples.asked_ns.tolist() == [5, -1, -1]


def test_a_later_description_replaces_an_earlier_one(tmp_path: Path) -> None:
    first, last = (described(thing(7, K.FILE, pid=10, name=name)) for name in ("leaf", "/whole/leaf"))
    assert names(profile_of(tmp_path, first, wait(7, time=90, pid=10, tid=10), last)) == ["/whole/leaf"]


def test_hostile_names_come_through_as_they_are(tmp_path: Path) -> None:
    """Output escapes them (`text.printable`), nothing else does."""
    record = described(thing(7, K.FILE, pid=10, name="/tmp/\x1b[31m\n<b>"))
    assert names(profile_of(tmp_path, record, wait(7, time=90, pid=10, tid=10))) == ["/tmp/\x1b[31m\n<b>"]


def test_ids_of_joined_recordings_do_not_clash(tmp_path: Path) -> None:
    """Two runs give one id to different files; the second run's other file describes an id of it alone."""
    parts = [
        [described(thing(7, K.FILE, pid=10, name="/a")), wait(7, time=90, pid=10, tid=10)],
        [described(thing(7, K.FILE, pid=10, name="/b")), wait(7, time=91, pid=10, tid=10),
         wait(8, time=92, pid=10, tid=10)],
        [described(thing(8, K.FILE, pid=10, name="/c")), wait(9, time=93, pid=10, tid=10)],
    ]  # fmt: skip
    recordings = [
        load_recording(write(tmp_path / f"{at}.data", EVENTS, [*NAMES, *part])) for at, part in enumerate(parts)
    ]
    joined = join(recordings, 4)
    joined.check()
    assert (np.diff(joined.objects.id.astype(np.int64)) > 0).all()
    assert names(symbolize(joined)) == ["/a", "/b", "/c", ""]


def test_hosts_have_files_of_their_own(tmp_path: Path) -> None:
    from perf_offcpu.abi.features import Feature
    from perf_offcpu.perfdata.features import text_body

    records = [described(thing(7, K.FILE, pid=10, name="/a")), wait(7, time=90, pid=10, tid=10)]
    recordings = [
        load_recording(write(tmp_path / f"{host}.data", EVENTS, records, {Feature.HOSTNAME: text_body(host)}))
        for host in ("web1", "web2")
    ]
    options = JoinOptions(from_start=True)
    profile = join_profiles(recordings, SymbolizeOptions(), options, merge=True)
    profile.check()
    assert names(profile) == ["web1:/a", "web2:/a"]


@pytest.mark.parametrize(("kind", "fields", "inward"), [
    (K.SOCKET, {"protocol": "tcp", "local": "10.0.0.1:40000", "remote": "10.0.0.7:5432"}, False),
    (K.SOCKET, {"protocol": "tcp", "local": "10.0.0.1:80", "remote": "10.0.0.7:40000"}, True),
    (K.SOCKET,
     {"protocol": "tcp", "local": "10.0.0.1:40000", "remote": "10.0.0.7:40001", "place": "accepted"}, True),
    (K.SOCKET, {"protocol": "tcp", "local": "10.0.0.1:4000", "remote": "10.0.0.7:80"}, False),
    (K.SOCKET, {"protocol": "unix", "name": "/run/x", "peer_pid": 20}, False),
    (K.SOCKET, {"protocol": "unix", "name": "/run/x", "peer_pid": 20, "place": "accepted"}, True),
    (K.SOCKET, {"protocol": "unix", "inode": 9, "peer_pid": 10}, True),
    (K.SOCKET, {"protocol": "unix", "inode": 9, "peer_pid": 20}, False),
    (K.PIPE, {"inode": 9, "peer_pid": 20}, False),
    (K.PIPE, {"inode": 9}, True),
    (K.FILE, {"inode": 9}, False),
])  # fmt: skip
def test_whose_events_are_work_that_comes_in(kind: K, fields: dict[str, Any], inward: bool, tmp_path: Path) -> None:
    assert profile_of(tmp_path, *one_wait(kind, fields)).objects.inward.tolist()[0] is inward


ENDED = {"pid": 10, "waker_pid": 10}


@pytest.mark.parametrize(("waits", "found"), [
    ([(1, ENDED | {"waker_tid": 2}), (2, ENDED | {"waker_tid": 1})], Fact.SEVERAL | Fact.BY_PEERS),
    ([(1, ENDED | {"waker_tid": 3}), (2, ENDED | {"waker_tid": 3})], Fact.SEVERAL | Fact.BY_OTHERS),
    ([(1, ENDED | {"waker_tid": 3}), (1, {"pid": 10})], Fact.BY_OTHERS),
    ([(1, {"pid": 10, "waker_pid": 99, "waker_tid": 99})], 0),  # a signal
    ([(1, ENDED | {"waker_tid": 3, "flags": offcpu.WaitFlag.WAKER_INTERRUPT})], 0),  # a timeout
])  # fmt: skip
def test_who_ended_the_waits(waits: list[tuple[int, dict[str, Any]]], found: int, tmp_path: Path) -> None:
    things = described(*(thing(id_, K.FUTEX, pid=10, address=0x1000 + 4 * (id_ - 7)) for id_ in (7, 8)))
    records = (wait(7 + at % 2, time=90 + at, tid=tid, **more) for at, (tid, more) in enumerate(waits))
    assert set(profile_of(tmp_path, things, *records).objects.facts.tolist()[:-1]) == {found}


def test_who_ended_waits_for_shared_memory(tmp_path: Path) -> None:
    things = described(*(thing(pid, K.FUTEX, pid=pid, place="/dev/shm/x+0x40") for pid in (10, 20)))
    ends = ((10, 20), (20, 10), (20, 99))
    records = (wait(pid, time=90 + pid, pid=pid, tid=pid, waker_pid=waker, waker_tid=waker) for pid, waker in ends)
    found = Fact.SEVERAL | Fact.BY_PEERS | Fact.BY_STRANGERS | Fact.SHARED
    assert set(profile_of(tmp_path, things, *records).objects.facts.tolist()[:-1]) == {found}


@pytest.mark.parametrize(("operation", "value", "ended_by", "found"), [
    (265, 11, 0, Fact.THREAD), (0, 11, 0, Fact.THREAD), (128, 11, 0, 0), (0, 10, 0, Fact.THREAD),
    (0, 12, 0, 0), (0, 4711, 11, Fact.THREAD | Fact.BY_OTHERS), (0, 2, 11, Fact.MUTEX | Fact.BY_OTHERS),
    (0, 0, 11, Fact.BY_OTHERS), (128, 2, 0, Fact.MUTEX), (137, 3, 0, Fact.RWLOCK), (137, 0, 0, 0),
    (0, 0x8000000B - (1 << 32), 0, Fact.MUTEX), (134, 0, 0, Fact.MUTEX), (129, 2, 0, 0), (128, -1, 0, 0),
])  # fmt: skip
def test_what_the_word_of_a_futex_tells(operation: int, value: int, ended_by: int, found: int, tmp_path: Path) -> None:
    """Thread 11 of process 10 exits at 200; thread 12 is one of another process."""
    births = [task(WAITS, RecordType.FORK, pid, tid, 1) for pid, tid in ((10, 10), (10, 11), (20, 12))]
    waker: dict[str, Any] = {"waker_pid": 10, "waker_tid": ended_by, "wakeup_ns": 190} if ended_by else {}
    one = described(thing(7, K.FUTEX, pid=10, address=0x1000, operation=operation, number=value))
    ended = task(WAITS, RecordType.EXIT, 10, 11, 200)
    profile = profile_of(tmp_path, *births, one, wait(7, time=195, pid=10, tid=10, **waker), ended)
    assert profile.objects.facts.tolist()[:-1] == [found]
