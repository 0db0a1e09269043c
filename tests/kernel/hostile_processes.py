# SPDX-License-Identifier: Apache-2.0
"""Run commands beside processes that make it hard to read them: for test_hostile_processes.py, which judges.

    unshare -m python3 hostile_processes.py SCALE all|KIND… -- COMMAND… [-- COMMAND…]…

Each row of KINDS is a process, which says when it is in its state. Then the file system hangs (a FUSE server
that reads requests and never answers), and the commands run one by one; `{pids}` in them are the ids of the
processes. Standard output is one line of JSON: the pid of each kind, the naps of a process that does nothing
of the sort, and of each command its status, what it said, and the memory of its largest process.
SCALE is 1, or 2 for the greatest numbers that the kernel allows. Needs root."""

import _thread
import contextlib
import ctypes
import functools
import itertools
import json
import mmap
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 4, ctypes.c_long]
MS_REC, MS_PRIVATE, SYS_EXIT = 0x4000, 1 << 18, 60
READ, READ_EXEC = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_EXEC
SCALE = int(sys.argv[1])
SERVER_S = 300 * SCALE  # time after which the file system ends in any case: all waits for it end, too
PLACE = tempfile.mkdtemp(prefix="hostile.", dir="/var/tmp")
GROUPS = ((1150 if SCALE > 1 else 70, 1), (30, 200))  # depth of nested control groups, and length of their names
FUSE = f"{PLACE}/fuse"
HUNG = f"{FUSE}/file"
HANGS = os.pipe()  # its end: the file system hangs


# A file system that hangs. Source: include/uapi/linux/fuse.h

LOOKUP, GETATTR, OPEN, READ_FILE, RELEASE, FLUSH, INIT, POLL = 1, 3, 14, 15, 18, 25, 26, 40
REQUEST = struct.Struct("=IIQQIIII")


def serve(fd: int, content: bytes) -> None:
    """Answer as a file system with one directory and one file; after SIGUSR1 never again."""
    hangs = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: hangs.set())
    signal.alarm(SERVER_S)
    while True:
        request = os.read(fd, 1 << 20)
        _, kind, unique, node, *_ = REQUEST.unpack_from(request)
        if hangs.is_set():
            continue
        mode, size = (stat.S_IFDIR | 0o755, 0) if node == 1 else (stat.S_IFREG | 0o755, len(content))
        of_file = struct.pack("=6Q10I", 2, len(content), *[0] * 7, stat.S_IFREG | 0o755, 1, 0, 0, 0, 4096, 0)
        attributes = struct.pack("=6Q10I", node, size, *[0] * 7, mode, 1, 0, 0, 0, 4096, 0)
        answers = {
            INIT: struct.pack("=4I2H2I2H8I", 7, 31, 1 << 16, 0, 12, 10, 1 << 17, 1, 32, *[0] * 9),
            LOOKUP: struct.pack("=4Q2I", 2, 0, 0, 0, 0, 0) + of_file,
            GETATTR: struct.pack("=Q2I", 0, 0, 0) + attributes,
            OPEN: struct.pack("=Q2I", 1, 0, 0), READ_FILE: content[slice(*_range(request))],
            POLL: bytes(8), RELEASE: b"", FLUSH: b"",
        }  # fmt: skip
        answer = answers.get(kind)
        error = 0 if answer is not None else 38  # ENOSYS
        with contextlib.suppress(OSError):  # it was not waited for
            os.write(fd, struct.pack("=IiQ", 16 + len(answer or b""), -error, unique) + (answer or b""))


def _range(request: bytes) -> tuple[int, int]:
    begin, size = struct.unpack_from("=8xQI", request.ljust(64, b"\0"), REQUEST.size)
    return begin, begin + size


def mount_fuse() -> int:
    """Mount the file system and return the pid of its server."""
    os.mkdir(FUSE)
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    if LIBC.mount(b"hangs", FUSE.encode(), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "FUSE cannot be mounted")
    with open("/bin/true", "rb") as file:
        program = file.read()
    no_descriptor = struct.pack("=ihh", -1, 0, 0).ljust(4096, b"\0")  # a struct pollfd
    pid = forked(functools.partial(serve, fd, program + bytes(-len(program) % 4096) + no_descriptor))
    os.close(fd)
    return pid


# The kinds. Each calls `ready` in its state, and does not return.


def mapped(path: str | int, offset: int = 0, protection: int = READ_EXEC) -> int:
    fd = os.open(path, os.O_RDONLY) if isinstance(path, str) else path
    address: int = LIBC.mmap(None, 4096, protection, mmap.MAP_PRIVATE, fd, offset)
    ctypes.string_at(address, 1)
    return address


def deep(names: int, length: int) -> str:
    """Go into nested directories, made on the way, and return the name of a program there."""
    os.mkdir(f"{PLACE}/deep{names}.{length}")
    os.chdir(f"{PLACE}/deep{names}.{length}")
    for number in range(names):
        name = f"{number}".rjust(length, "d")
        os.mkdir(name)
        os.chdir(name)
    with open("/bin/true", "rb") as source, open("program", "wb") as target:
        target.write(source.read())
    return "program"


def path_of_4_kb(ready: Callable[[], None]) -> None:
    mapped(deep(16, 253))
    ready()


def path_of_70_kb(ready: Callable[[], None]) -> None:
    mapped(deep(300, 250))
    ready()


def maps_with_long_paths(ready: Callable[[], None]) -> None:
    map_often(deep(15, 250), 30_000 if SCALE > 1 else 3_000)
    ready()


def maps_over_256_mb(ready: Callable[[], None]) -> None:
    """Make /proc/PID/maps larger than 256 MB: with paths of 4.6 KB."""
    map_often(deep(18, 254), 65_000)
    ready()


def map_often(path: str, times: int) -> None:
    """Map a file again and again, so that the mappings cannot be merged."""
    fd = os.open(path, os.O_RDWR)
    os.ftruncate(fd, 8192)
    for number in range(times):
        mapped(fd, offset=4096 * (number % 2))


def very_many_maps(ready: Callable[[], None]) -> None:
    for number in range(1_000_000 if SCALE > 1 else 60_000):
        LIBC.mmap(None, 4096, READ_EXEC if number % 2 else READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    ready()


def very_many_threads(ready: Callable[[], None]) -> None:
    threading.stack_size(64 << 10)
    wait = threading.Lock()
    wait.acquire()
    for _ in range(100_000 if SCALE > 1 else 2_000):
        _thread.start_new_thread(wait.acquire, ())  # threading's waits until it runs
    ready()


def name_of_any_bytes(ready: Callable[[], None]) -> None:
    ready()
    for byte in itertools.cycle(range(1, 256)):
        LIBC.prctl(15, bytes([byte]) * 15, 0, 0, 0)
        time.sleep(0.001)


def short_lives(ready: Callable[[], None]) -> None:
    ready()
    while True:
        for pid in [os.posix_spawn("/bin/true", ["true"], {}) for _ in range(8)]:
            os.waitpid(pid, 0)


def first_thread_has_ended(ready: Callable[[], None]) -> None:
    def goes_on() -> None:
        time.sleep(0.2)
        ready()
        while True:
            time.sleep(0.01)

    threading.Thread(target=goes_on).start()
    LIBC.syscall(SYS_EXIT, 0)


def in_frozen_group(ready: Callable[[], None]) -> None:
    ready()  # it is frozen then


def in_other_namespaces(ready: Callable[[], None]) -> None:
    LIBC.unshare(0x10000000 | 0x40000000)  # user and network
    ready()


def file_that_hangs_is_mapped(ready: Callable[[], None]) -> None:
    mapped(HUNG)
    ready()


def file_that_hangs_is_opened(ready: Callable[[], None]) -> None:
    ready()
    os.read(HANGS[0], 1)
    os.open(HUNG, os.O_RDONLY)


def file_that_hangs_is_closed_by_exec(ready: Callable[[], None]) -> None:
    os.open(HUNG, os.O_RDONLY | os.O_CLOEXEC)
    ready()
    os.read(HANGS[0], 1)
    os.execv("/bin/sleep", ["sleep", "1000"])


def epoll_is_locked(ready: Callable[[], None]) -> None:
    fd, watched, there = os.open(HUNG, os.O_RDONLY), select.epoll(), socket.socketpair()
    watched.register(there[0], select.EPOLLIN)
    threading.Thread(target=watched.poll, daemon=True).start()
    ready()
    os.read(HANGS[0], 1)
    watched.register(fd, select.EPOLLIN)


def memory_hangs(ready: Callable[[], None]) -> None:
    """Wait in poll() for a descriptor that is in memory of the file."""
    fd = os.open(HUNG, os.O_RDONLY)
    address = mapped(fd, offset=os.fstat(fd).st_size - 4096, protection=READ)
    threading.Thread(target=lambda: LIBC.poll(ctypes.c_void_p(address), 1, -1), daemon=True).start()
    time.sleep(0.2)
    LIBC.madvise(ctypes.c_void_p(address), 4096, 4)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    ready()


def naps(ready: Callable[[], None]) -> None:
    """Sleep again and again, as an ordinary program; note begin and end of each sleep (ns)."""
    LIBC.prctl(15, b"innocent", 0, 0, 0)
    ready()
    done: list[tuple[int, int]] = []
    signal.signal(signal.SIGTERM, lambda *_: os._exit(_wrote(done)))
    while True:
        begin = time.monotonic_ns()
        time.sleep(0.02)
        done.append((begin, time.monotonic_ns()))


def _wrote(done: list[tuple[int, int]]) -> int:
    with open(f"{PLACE}/naps", "w") as file:
        json.dump(done, file)
    return 0


KINDS = {
    kind.__name__: kind
    for kind in (
        *(path_of_4_kb, path_of_70_kb, maps_with_long_paths, very_many_maps, very_many_threads),
        *(name_of_any_bytes, short_lives, first_thread_has_ended, in_frozen_group, in_other_namespaces),
        *(file_that_hangs_is_mapped, file_that_hangs_is_opened, file_that_hangs_is_closed_by_exec),
        *(epoll_is_locked, memory_hangs, maps_over_256_mb),
    )
}


def forked(work: Callable[[], None]) -> int:
    """Run something in a process of its own, which then waits for its end; return its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.close(HANGS[1])
        LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)
        work()
        while True:
            time.sleep(1000)
    finally:
        os._exit(1)


def started(kind: Callable[[Callable[[], None]], None]) -> int:
    there, ready = os.pipe()

    def is_ready() -> None:
        os.write(ready, b"x")

    pid = forked(lambda: kind(is_ready))
    os.close(ready)
    assert os.read(there, 1), kind
    os.close(there)
    return pid


def make_groups(top: str, frozen: int | None) -> None:
    """Make nested control groups, many or with long names, and freeze a process."""
    if frozen:
        os.mkdir(f"{top}/frozen")
        for file, text in (("cgroup.procs", str(frozen)), ("cgroup.freeze", "1")):
            with open(f"{top}/frozen/{file}", "w") as group:
                group.write(text)
    for depth, length in GROUPS:
        os.chdir(top)
        for _ in range(depth):
            os.mkdir("g" * length)
            os.chdir("g" * length)
    os.chdir("/")


def group_removed_at_the_end() -> str:
    """Return a new control group; it and PLACE are removed when this process has ended, killed or not."""
    with open("/proc/self/mounts") as lines:
        root = next(line.split()[1] for line in lines if line.split()[2] == "cgroup2")
    top = tempfile.mkdtemp(prefix="hostile.", dir=root)
    there, here = os.pipe()
    if os.fork():
        os.close(there)
        return top
    os.setsid()
    os.close(here)
    os.close(HANGS[1])
    os.read(there, 1)
    words = f"until find {top} -depth -type d -delete || [ ! -e {top} ]; do sleep 0.1; done; rm -rf {PLACE}"
    os.execv("/bin/sh", ["sh", "-c", f"exec 2>/dev/null; umount -l {FUSE}; {words}"])


def recorded(command: list[str]) -> dict[str, object]:
    """Run a command; return its status, what it said, and the memory of its largest process in kB."""
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(command, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        return {"status": process.returncode, "said": said.read(), "kb": used.ru_maxrss}


def main() -> None:
    LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    kinds, *commands = [
        list(words) for is_end, words in itertools.groupby(sys.argv[2:], lambda one: one == "--") if not is_end
    ]
    if kinds == ["all"]:
        kinds = [kind for kind in KINDS if kind != maps_over_256_mb.__name__]
    top, pids = group_removed_at_the_end(), dict[str, int]()
    server = mount_fuse()
    innocent = started(naps)
    for name in kinds:
        pids[name] = started(KINDS[name])
    make_groups(top, pids.get("in_frozen_group"))
    os.kill(server, signal.SIGUSR1)
    time.sleep(0.2)
    os.close(HANGS[1])
    time.sleep(0.2)
    listed = ",".join(map(str, pids.values()))
    with ThreadPoolExecutor(len(commands) if SCALE == 1 else 1) as pool:
        runs = list(pool.map(lambda words: recorded([word.replace("{pids}", listed) for word in words]), commands))
    os.kill(innocent, signal.SIGTERM)
    os.waitpid(innocent, 0)
    with open(f"{PLACE}/naps") as file:
        print(json.dumps({"pids": pids, "innocent": innocent, "naps": json.load(file), "runs": runs}))


if __name__ == "__main__":
    main()
