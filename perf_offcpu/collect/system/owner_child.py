# SPDX-License-Identifier: Apache-2.0
"""Ask a JVM for the names and frames of the code that it has compiled, with no more rights than its owner has. This is
a program of its own:

    python owner_child.py PID

perf_offcpu/collect/system/as_owner.py starts it with the bare interpreter, so it imports nothing of this project. It
prints `:at NS NUMBER` (time of the answer, classes unloaded so far) and the lines of a perf map, then lines of
`abi.counters.JIT_MAP`; or `!` and the reason why there are none.

A JVM that gets SIGQUIT and finds a file .attach_pidPID listens at a socket .java_pidPID, both in its /tmp, and takes
jcmd's commands there (HotSpot's attachListener_posix.cpp). Compiler.perfmap, since JDK 17, writes /tmp/perf-PID.map.
SIGQUIT would end a program that does not handle it, or one that means something else by it (postgres with PL/Java), so
only a process that the launcher `java` began (it has mapped libjvm.so and libjli.so) and that handles it gets it."""

import contextlib
import ctypes
import errno
import os
import re
import resource
import runpy
import select
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator

_SECONDS, _MEMORY, _OUTPUT, _FILES = 2, 1 << 30, 1 << 24, 64
_MOST_MAPS = 1 << 24
_PR_SET_NO_NEW_PRIVS = 38
_JVM_S, _NAP_S = 2.0, 0.02
_STALE_S = 10.0  # age from which .attach_pidPID was left by an earlier asker; jcmd waits as long
_MOST_TEXT = 8 << 20  # of a map; a method takes some 80 bytes
_ENTRY_BYTES = 96
_ENTRY = re.compile(
    rb"(?s)\x55\x48(?:\x83\xec(?P<byte>.)|\x81\xec(?P<word>.{4}))"  # push %rbp; sub n, %rsp
    rb"|\x48\x81\xec(?P<whole>.{4})\x48\x89(?:\x2c\x24|\x6c\x24.|\xac\x24.{4})"  # sub n, %rsp; mov %rbp, n-8(%rsp)
)
"""Begin of a function without frame pointer on x86-64 (MacroAssembler::verified_entry, C1's build_frame)."""
_METHOD = re.compile(rb"[^ ]\(")
"""Methods check the class of the receiver before they begin; stubs (`_rethrow_Java`, `StubRoutines (1)`) do not."""
_COMMAND = b"1\0jcmd\0Compiler.perfmap\0\0\0"  # version of the protocol, operation, three arguments
_MAPPED = re.compile(rb"(?m)^([0-9a-f]+)-.*/(lib(?:jvm|jli)\.so|hsperfdata_[^/\n]+)(?:/[0-9]+)?(?: \(deleted\))?$")
_UNLOADED, _COUNTERS = b"java.cls.unloadedClasses\0", 1 << 15
_COUNTER = struct.Struct("<III4xI")  # PerfDataEntry (perfMemory.hpp): sizes, and offsets of name and value


def _main(pid: int) -> None:
    for limited, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, _SECONDS),
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_FSIZE, _OUTPUT),
        (resource.RLIMIT_NOFILE, _FILES),
    ):
        hard = resource.getrlimit(limited)[1]
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limited, (limit, limit))
    if ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        sys.exit("rights cannot be given up")
    written = 0
    try:
        for part in _code_of_jvm(pid):
            written += os.write(1, part)
    except OSError as problem:
        if not written:
            os.write(1, f"!{problem.strerror or 'it did not answer in time'}".encode())


def _code_of_jvm(pid: int) -> Iterator[bytes]:
    """Yield the perf map of a JVM; on x86-64 with lines on frame sizes, then the lines of hotspot.py for interpreted
    methods. The process may be hostile: its /tmp must be no link, files there must be its own, and its answer is
    bounded in size and time. Raises OSError: it cannot be asked, or gives no map."""
    until_s = time.monotonic() + _JVM_S
    process = os.pidfd_open(pid)  # from here on the pid cannot become another process's unnoticed
    status = _status(pid)
    with open(f"/proc/{pid}/maps", "rb") as file:
        mapped = _MAPPED.findall(file.read(_MOST_MAPS))
    libraries = {name: int(start, 16) for start, name in reversed(mapped)}
    if b"libjvm.so" not in libraries:
        raise PermissionError(errno.EPERM, "it is no JVM")
    inner = status.get("NStgid", str(pid)).split()[-1]
    # direct: magic links and memory of the kernel's
    tmp, memory = os.open(f"/proc/{pid}/root/tmp", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW), -1
    with contextlib.suppress(OSError):  # by yama's leave (kernel.yama.ptrace_scope)
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    beside = runpy.run_path(os.path.join(os.path.dirname(__file__), "hotspot.py"))  # the owner may not read it
    _become_owner(pid)
    if _has_ended(process):
        raise PermissionError(errno.EPERM, "it has ended")
    name = f".java_pid{inner}"
    if _is_missing(name, tmp):
        if not int(status["SigCgt"], 16) >> signal.SIGQUIT - 1 & 1:
            raise PermissionError(errno.EPERM, "it does not handle SIGQUIT (-Xrs?)")
        if b"libjli.so" not in libraries:
            raise PermissionError(errno.EPERM, "it is part of another program than java, which SIGQUIT might end")
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"+DisableAttachMechanism" in file.read(_MOST_MAPS):
                raise PermissionError(errno.EPERM, "-XX:+DisableAttachMechanism")
        _trigger(process, f".attach_pid{inner}", name, tmp, until_s)
    socket_ = _own(name, tmp, stat.S_ISSOCK)
    with _own_map(f"perf-{inner}.map", tmp) as open_map:
        answer = _answer(socket_, pid, until_s)
        if not answer.startswith(b"0\n"):
            raise PermissionError(errno.EPERM, "it has no command Compiler.perfmap (JDK 17), or was too slow")
        written_ns, text = time.monotonic_ns(), open_map()
    counters = next((start for name, start in libraries.items() if name.startswith(b"hsperfdata")), 0)
    yield b":at %d %b\n" % (written_ns, _unloaded(memory, counters))
    if os.uname().machine != "x86_64":
        yield text
        return
    yield text + b"".join(_frames(memory, text))
    yield beside["lines_of"](memory, libraries[b"libjvm.so"])


def _has_ended(process: int, time_s: float = 0) -> bool:
    return bool(select.select([process], [], [], time_s)[0])


def _trigger(process: int, attach: str, name: str, tmp: int, until_s: float) -> None:
    """Send SIGQUIT to a JVM, so that it opens its socket `name`, and wait for the socket. `process`: pidfd. `attach`:
    name of the file that tells the JVM to do so. `tmp`: descriptor of its /tmp. If that file is new, another tool asks
    right now, and a second signal might make the JVM print all stacks: only wait. Raises TimeoutError: no socket."""
    is_asked = _age_s(attach, tmp) < _STALE_S
    with contextlib.nullcontext() if is_asked else _made(attach, tmp):
        if not is_asked:
            signal.pidfd_send_signal(process, signal.SIGQUIT)
        while _is_missing(name, tmp):
            if time.monotonic() > until_s or _has_ended(process, _NAP_S):
                raise TimeoutError(errno.ETIMEDOUT, "it did not answer in time")


def _age_s(name: str, tmp: int) -> float:
    """Return the time since a file in `tmp` was written, s; infinity if there is none."""
    try:
        return time.time() - os.lstat(name, dir_fd=tmp).st_mtime  # direct: asks, and opens nothing
    except FileNotFoundError:
        return float("inf")


def _is_missing(name: str, tmp: int) -> bool:
    try:
        os.lstat(name, dir_fd=tmp)  # direct: asks, and opens nothing
    except FileNotFoundError:
        return True
    return False


def _own(name: str, tmp: int, is_kind: Callable[[int], bool]) -> int:
    """Return a descriptor (O_PATH) of a file in `tmp` that has this kind (`stat.S_IS*`), belongs to this user and has
    no second name. Raises OSError: it is another kind of file."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=tmp)  # direct: neither acts nor blocks
    status = os.fstat(handle)
    if not is_kind(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
        raise OSError(errno.EPERM, f"/tmp/{name} is not its own")
    return handle


@contextlib.contextmanager
def _made(name: str, tmp: int) -> Iterator[None]:
    """Make a file that the JVM reads or writes, so that no other user can put a link there; remove it after the `with`
    block, unless its owner had it before: it may be of an earlier process with this pid."""
    is_new = _is_missing(name, tmp)
    if is_new:
        # direct: a new file in the process's /tmp, as its owner
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY, 0o600, dir_fd=tmp))
    os.close(_own(name, tmp, stat.S_ISREG))
    try:
        yield
    finally:
        if is_new:
            os.unlink(name, dir_fd=tmp)  # direct: made above


@contextlib.contextmanager
def _own_map(name: str, tmp: int) -> Iterator[Callable[[], bytes]]:
    """Make the perf map `name` in the directory `tmp` (a descriptor) for the `with` block; yield a function that reads
    its complete lines."""

    def read() -> bytes:
        # direct: of a descriptor that was checked
        with open(f"/proc/self/fd/{_own(name, tmp, stat.S_ISREG)}", "rb") as file:
            text = file.read(_MOST_TEXT + 1)
        if len(text) > _MOST_TEXT:
            raise OSError(errno.EFBIG, f"/tmp/{name} is larger than {_MOST_TEXT} bytes")
        return text[: text.rfind(b"\n") + 1]

    with _made(name, tmp):
        yield read


def _unloaded(memory: int, start: int) -> bytes:
    """Return the number of classes that a JVM has unloaded, as text, by its counters at `start`; b"?" unknown."""
    with contextlib.suppress(OSError, OverflowError, struct.error):
        content = os.pread(memory, _COUNTERS, start) if start else b""
        entry = content.find(_UNLOADED) - _COUNTER.size
        if entry >= 0:
            _, name, _, value = _COUNTER.unpack_from(content, entry)
            if name == _COUNTER.size:
                return b"%d" % struct.unpack_from("<Q", content, entry + value)[0]
    return b"?"


def _answer(socket_: int, pid: int, until_s: float) -> bytes:
    """Send Compiler.perfmap to the JVM's socket; return the first bytes of its answer. `socket_`: O_PATH descriptor."""
    with socket.socket(socket.AF_UNIX) as jvm:
        jvm.settimeout(max(_NAP_S, until_s - time.monotonic()))
        jvm.connect(f"/proc/self/fd/{socket_}")
        if struct.unpack("3i", jvm.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0] != pid:
            raise OSError(errno.EPERM, "another process listens on its socket")
        jvm.sendall(_COMMAND)
        answer = b""
        while len(answer) < 4096 and time.monotonic() < until_s and (part := jvm.recv(4096)):
            answer += part
    return answer


def _frames(memory: int, text: bytes) -> list[bytes]:
    """Return a line of `abi.counters.JIT_MAP` for each function in the perf map `text` whose first instructions show
    the size of its frame; [] if methods keep frame pointers (-XX:+PreserveFramePointer). `memory`: of /proc/PID/mem."""
    frames, is_needed = [], False
    for line in text.split(b"\n")[:-1]:
        try:
            start, size, name = line.split(b" ", 2)
            code = os.pread(memory, min(int(size, 16), _ENTRY_BYTES), int(start, 16))
        except (OSError, ValueError, OverflowError):
            continue
        is_method = bool(_METHOD.search(name))
        if entry := _ENTRY.search(code) if is_method else _ENTRY.match(code):
            is_needed |= is_method
            moved = int.from_bytes(entry["byte"] or entry["word"] or entry["whole"], "little")
            frames.append(b":frame %x %x %x\n" % (int(start, 16), moved + (8 if entry["whole"] else 16), entry.end()))
    return frames if is_needed else []


def _become_owner(pid: int) -> None:
    """If root, become the user and groups of process `pid`; exit if that process runs setuid or setgid."""
    if os.geteuid() != 0:
        return
    status = _status(pid)
    users, groups = {int(number) for number in status["Uid"].split()}, [int(number) for number in status["Gid"].split()]
    if len(users) != 1 or len(set(groups)) != 1:
        sys.exit("it runs a program of another user (setuid)")
    user = users.pop()
    if user == 0:
        return
    os.setgroups([int(number) for number in status["Groups"].split()])
    os.setresgid(groups[0], groups[0], groups[0])
    os.setresuid(user, user, user)


def _status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        return dict(line.split(":", 1) for line in file if ":" in line)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
