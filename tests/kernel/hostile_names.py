# SPDX-License-Identifier: Apache-2.0
"""Make every kind of hostile name at once, for some seconds or while a command runs.

    sudo unshare -m python3 tests/kernel/hostile_names.py 60 -- \\
        perf-offcpu record -a --off-cpu-thresh 0 -o /tmp/hostile.data --duration 60

Processes, threads, mapped files, memfds, mount points and control groups get names with each byte from 1 to
255, of the greatest length, of invalid UTF-8 and with lines of the kernel's own forms in them; names change
while they are used. Needs root; its mounts are private to its namespace (unshare -m). Standard output is one
line of JSON: how often each kind was made, and naps of threads: begin and end (CLOCK_MONOTONIC, ns), comm.
`test_hostile_names.py` runs it for some seconds and judges the recording; for a minute of it:

    PERF_OFFCPU_HOSTILE_SECONDS=60 scripts/test tests/kernel/test_hostile_names.py -s
"""

import contextlib
import ctypes
import itertools
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_NAME, MNT_DETACH = 15, 2
LINES = (
    *(b"a\n1 2 0:3 / /b rw - cgroup2 x y", b"a (deleted)", b"a\nVmRSS: 1 kB", b"x) R 1 1 1 1"),
    *(b"\xe2\x80\xa8", b"\xc2\x85", b"[vdso]", b"[heap]", b"[kernel.kallsyms]", b"//anon", b"%s%n%n"),
    *(b"\x1b[2J", b"<script>", b"a;b", b"a 1", b"\\012"),
)
NAMES = (
    *(b"n" + bytes([byte]) + b"m" for byte in range(1, 256) if byte != ord("/")),
    *(bytes([byte]) for byte in range(1, 256) if byte not in b"/."),
    *(b"\xff" * 255, b"\n" * 255, b"\xe2\x82" * 127, b"l" * 255, b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"),
    *LINES,
)


def each_name(stop: threading.Event, seconds: float) -> Iterator[bytes]:
    """Yield names of files again and again until the end, one every so many seconds."""
    for name in itertools.cycle(NAMES):
        if stop.wait(seconds):
            return
        yield name.replace(b"/", b"|")


def processes(place: bytes, stop: threading.Event) -> int:
    made = 0
    for name in each_name(stop, 0.005):
        path = place + b"/" + name
        with contextlib.suppress(FileExistsError):
            os.link(place + b"/../sleep", path)
        pid = os.posix_spawn(path, [name, b"0.02"], {b"A": name})
        os.rename(path, path[:-1] + b"z")  # the file of a process that runs
        os.waitpid(pid, 0)
        os.unlink(path[:-1] + b"z")
        made += 1
    return made


def files(place: bytes, stop: threading.Event) -> int:
    """Map files, and memory of such names, executable; rename and remove them meanwhile."""
    made = 0
    for name in each_name(stop, 0.005):
        path = place + b"/" + name
        shutil.copyfile(place + b"/../sleep", path)
        for fd in (os.open(path, os.O_RDWR), os.memfd_create(os.fsdecode(name[:249]))):
            os.ftruncate(fd, 8192)
            with mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_EXEC):
                if os.path.exists(path):
                    os.rename(path, place + b"/renamed")
                    os.unlink(place + b"/renamed")
                time.sleep(0.001)
            os.close(fd)
            made += 1
    return made


def mounts(place: bytes, stop: threading.Event) -> int:
    made, open_ = 0, []
    for name in each_name(stop, 0.005):
        path = place + b"/" + name
        os.makedirs(path, exist_ok=True)
        if LIBC.mount(name[:100], path, b"tmpfs", 0, None) == 0:
            open_.append(path)
            made += 1
        if len(open_) > 300:
            LIBC.umount2(open_.pop(0), MNT_DETACH)
    for path in open_:
        LIBC.umount2(path, MNT_DETACH)
    return made


def groups(place: bytes, stop: threading.Event) -> int:
    made, old = 0, b""
    with open("/proc/self/mounts") as lines:
        mounted = [line.split()[1] for line in lines if line.split()[2] == "cgroup2"]
    if not mounted:
        mounted = [os.fsdecode(place)]
        LIBC.mount(b"none", place, b"cgroup2", 0, None)
    top = f"{mounted[0]}/hostile.{os.getpid()}".encode()
    os.mkdir(top)
    child = os.posix_spawn("/bin/sleep", ["sleep", "1000"], {})
    for name in each_name(stop, 0.005):
        path = top + b"/" + name
        with contextlib.suppress(OSError):  # the kernel refuses newlines, and names of its own files
            os.mkdir(path)
            with open(path + b"/cgroup.procs", "w") as procs:
                procs.write(str(child))
            if old:
                os.rmdir(old)
            old = path
            made += 1
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for path in filter(None, (old, top)):  # a group is empty only some time after its last process
        for _ in range(100):
            with contextlib.suppress(OSError):
                os.rmdir(path)
                break
            time.sleep(0.01)
    LIBC.umount2(place, MNT_DETACH)
    return made


def threads(stop: threading.Event) -> dict[int, list[tuple[int, int, str]]]:
    """Let threads rename themselves between naps; return begin, end and name of each nap by tid."""
    found: dict[int, list[tuple[int, int, str]]] = {}

    def nap(first: int) -> None:
        naps = found.setdefault(threading.get_native_id(), [])
        for name in itertools.islice(itertools.cycle(NAMES), first, None):
            if stop.is_set():
                return
            LIBC.prctl(PR_SET_NAME, name, 0, 0, 0)
            begin = time.monotonic_ns()
            time.sleep(0.005)
            naps.append((begin, time.monotonic_ns(), os.fsdecode(name[:15])))

    running = [threading.Thread(target=nap, args=(100 * number,)) for number in range(4)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    return found


def forked(make: Callable[[bytes, threading.Event], int], place: bytes) -> tuple[int, int]:
    """Run one kind in a process of its own until SIGTERM; return its pid and the pipe with its count."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            stop = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: stop.set())
            os.mkdir(inner := place + b"/" + make.__name__.encode())
            os.write(write, str(make(inner, stop)).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    return pid, read


def main() -> int:
    """Run for some seconds, or as long as the command; print the account, and return the command's status."""
    command = sys.argv[3:] or ["sleep", sys.argv[1]]
    with tempfile.TemporaryDirectory(prefix="hostile-names.") as directory:
        place = os.fsencode(directory)
        shutil.copy(b"/bin/sleep", place + b"/sleep")
        kinds = {make.__name__: forked(make, place) for make in (processes, files, mounts, groups)}
        stop, running = threading.Event(), subprocess.Popen(command, stdout=sys.stderr)
        threading.Thread(target=lambda: (running.wait(), stop.set())).start()
        naps = threads(stop)
        for pid, _ in kinds.values():
            os.kill(pid, signal.SIGTERM)
        made = {name: int(os.read(read, 100) or b"-1") for name, (_, read) in kinds.items()}
        for pid, _ in kinds.values():
            os.waitpid(pid, 0)
    print(json.dumps({"made": made, "naps": naps}))
    return running.returncode


if __name__ == "__main__":
    sys.exit(main())
