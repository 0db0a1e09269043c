# SPDX-License-Identifier: Apache-2.0
"""Layout of the tables of wait objects: what threads waited for, in payloads of `offcpu-counters` samples. A sample of
a wait names its object by an id (`abi.offcpu.EXTENSION`: `object_id`). A table describes each object once; where
several tables describe one id, the last table holds."""

import enum

from perf_offcpu.binary.layout import BYTE, S32, U16, U32, U64, Field, Layout

MAGIC = int.from_bytes(b"OFCO", "little")
VERSION = 1


class ObjectKind(enum.IntEnum):
    """Kinds of wait objects."""

    UNKNOWN = 0  # not known
    FILE = 1  # regular file
    DIRECTORY = 2  # directory
    CHARACTER = 3  # character device, such as a terminal
    BLOCK = 4  # block device
    PIPE = 5  # pipe or FIFO
    SOCKET = 6  # socket
    ANONYMOUS = 7  # eventfd, epoll, timerfd, signalfd, io_uring and the like: `name` tells which
    FUTEX = 8  # word in memory: a lock, condition variable, semaphore or other futex; `number` is the value that its
    # first waiter expected there, -1 if not known
    DESCRIPTORS = 9  # several file descriptors at once (poll): `number` of them
    PROCESS = 10  # child process: `number` is its pid as the caller passed it, -1 for any child; of vfork() and
    # the like, as the recorder sees it
    SEMAPHORES = 11  # set of System V semaphores with the id `number`
    MESSAGES = 12  # System V message queue with the id `number`
    PATH = 13  # file by the path that was passed to the system call
    KERNEL_LOCK = 14  # lock inside the kernel at `address`: `number` is its type, 0 mutex, 1 semaphore, 2 and 3
    # rw_semaphore waited for to read and to write; `operation` is what it protects, LockRole


LOCKS = (ObjectKind.FUTEX, ObjectKind.SEMAPHORES, ObjectKind.KERNEL_LOCK)  # kinds of objects that threads hold


class LockRole(enum.IntEnum):
    """Things that locks inside the kernel protect; `enum offcpu_lock_role` in bpf/off_cpu.h."""

    UNKNOWN = 0  # not known
    MMAP = 1  # mappings of the process `pid`: mmap_lock
    INODE = 2  # the file: i_rwsem
    MAPPING = 3  # cached pages of the file: invalidate_lock
    SUPER = 4  # the file system of the file: s_umount
    RENAME = 5  # directories of that file system: s_vfs_rename_mutex
    PIPE = 6  # the pipe


OBJECT = Layout(
    "offcpu-counters wait object",
    Field("id", U64, doc="as in samples; never 0"),
    Field("kind", U16, doc="ObjectKind"),
    Field("operation", U16, doc="of futex(2), as the first waiter of a futex called it; LockRole of a lock; else 0"),
    Field("pid", U32, doc="tgid of the first sleeper; of a futex, the process whose memory it is in"),
    Field("device", U32, doc="of the file system: major * 2^20 + minor"),
    Field("number", S32, doc="see ObjectKind"),
    Field("inode", U64, doc="of the file, pipe or socket; 0 none"),
    Field("address", U64, doc="of the futex in that process, or of the lock in the kernel; 0 none"),
    Field("peer_inode", U64, doc="of the Unix socket at the other end; 0 unknown"),
    Field("peer_pid", U32, doc="tgid of the process at the other end, 0 unknown"),
    Field("reserved2", U32, doc="0"),
)

TEXTS = ("protocol", "local", "remote", "name", "place", "peer_comm")
"""Texts of each object, in this order, each with a NUL at its end:

protocol    of a socket: tcp, udp, unix, netlink, …
local       its own address: 10.0.0.7:5432, [::1]:80, a path
remote      the address of the other end, likewise
name        path, or leaf name, of a file or device; [eventfd] and the like; of a lock of a JVM, the class of its
            object; "" unknown
place       memory that a futex is in: heap, stack, path of a mapped file with +offset; of a pipe, the end
            that was waited for: read end, write end; of a socket: accepted, if the connection came to a port
            or path at which its side listens; of a lock inside the kernel its variable; "" unknown
peer_comm   name of the process at the other end
"""

OBJECTS = Layout(
    "offcpu-counters wait objects",
    Field("magic", U32, doc='"OFCO"'),
    ("version nr", U16),
    Field("size", U32, doc="bytes of the text"),
    Field("reserved", U32, doc="0"),
    Field("objects", OBJECT, count="nr"),
    Field(
        "text",
        BYTE,
        count="size",
        doc="protocol, local, remote, name, place and peer_comm of each object, a NUL after each",
    ),
)
