# SPDX-License-Identifier: Apache-2.0
"""Ask a process of another user with no more rights than that user has. A program of its own:

    python owner_child.py functions PID DIRECTORY    print the Python functions of its threads
    python owner_child.py perf-map PID               let a JVM write the names of its compiled code

perf_offcpu/collect/system/as_owner.py starts it with the bare interpreter, so it imports nothing of this project.
DIRECTORY holds pystack, which follows pointers in the memory of the process and reads the files that its maps name: a
hostile process can make it read any file and crash it, and maybe take it over. So root gives up all rights but those of
the owner of the process first. `functions` refuses a process of root that is in a container or has fewer rights than
this one.

`functions` prints a line for each thread: a JSON list of its tid and its functions, root first. Each function is [name,
file, line, call], where `call` is the number of the call of the interpreter's C function that runs it, counted from the
root. `perf-map` prints what prevented it, or nothing.

A JVM that gets SIGQUIT and finds a file .attach_pidPID listens at a socket .java_pidPID, both in its /tmp, and takes
jcmd's commands there (HotSpot's attachListener_posix.cpp). Compiler.perfmap, since JDK 17, writes /tmp/perf-PID.map.
SIGQUIT would end a program that does not handle it, so only a process that has mapped libjvm.so and handles it gets it.
"""

import ctypes
import itertools
import json
import os
import resource
import signal
import socket
import stat
import sys
import time

_SECONDS, _MEMORY, _OUTPUT, _FILES = 2, 1 << 30, 1 << 20, 64
_MOST_FRAMES, _MOST_MAPS = 1000, 1 << 24
_PR_SET_NO_NEW_PRIVS = 38
_ATTACH_S, _ANSWER_S, _NAP_S = 1.0, 2.0, 0.02
_COMMAND = b"1\0jcmd\0Compiler.perfmap\0\0\0"  # version of the protocol, operation, three arguments


def _main(task: str, pid: int, *words: str) -> None:
    if task == "functions":
        sys.path.insert(0, words[0])
        import pystack.engine  # noqa: F401  before it cannot be read any more
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
    if os.geteuid() == 0:
        _become_owner(pid, must_be_alike=task == "functions")
    if task == "functions":
        _print_functions(pid)
    else:
        try:
            print(_ask_jvm(pid), end="")
        except OSError as problem:
            print(problem.strerror, end="")


def _print_functions(pid: int) -> None:
    from pystack.engine import get_process_threads

    for thread in get_process_threads(pid, stop_process=False):
        functions, call = [], 0
        for frame in itertools.islice(thread.all_frames, _MOST_FRAMES):
            call += bool(frame.is_entry)
            if not frame.is_shim:
                functions.append([frame.code.scope, frame.code.filename, frame.code.location.lineno, call])
        os.write(1, json.dumps([thread.tid, functions]).encode() + b"\n")


def _ask_jvm(pid: int) -> str:
    """Let a JVM write its perf map; return what prevented it, "" if it did. The process may be hostile: its /tmp is
    entered without links, and its answer is bounded in size and time."""
    process = os.pidfd_open(pid)  # from here on the pid cannot become another process's unnoticed
    status = _status(pid)
    with open(f"/proc/{pid}/maps", "rb") as file:
        is_jvm = b"/libjvm.so\n" in file.read(_MOST_MAPS)
    if not is_jvm or not int(status["SigCgt"], 16) >> signal.SIGQUIT - 1 & 1:
        return "it does not handle SIGQUIT (-Xrs?)" if is_jvm else "it is no JVM"
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        if b"+DisableAttachMechanism" in file.read(_MOST_MAPS):
            return "-XX:+DisableAttachMechanism"
    inner = status.get("NStgid", str(pid)).split()[-1]
    # direct: the magic link of the kernel's, and no other
    tmp = os.open(f"/proc/{pid}/root/tmp", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    if not _is_own_or_missing(f"perf-{inner}.map", tmp, stat.S_ISREG):
        return f"another user's /tmp/perf-{inner}.map is in the way"
    name = f".java_pid{inner}"
    if _is_missing(name, tmp):
        _trigger(process, f".attach_pid{inner}", name, tmp)
    if not _is_own_or_missing(name, tmp, stat.S_ISSOCK):
        return "its socket is another user's"
    deadline = time.monotonic() + _ANSWER_S
    with socket.socket(socket.AF_UNIX) as jvm:
        jvm.settimeout(_ANSWER_S)
        jvm.connect(f"/proc/self/fd/{tmp}/{name}")
        jvm.sendall(_COMMAND)
        answer = b""
        while len(answer) < 4096 and time.monotonic() < deadline and (part := jvm.recv(4096)):
            answer += part
    return "" if answer.startswith(b"0\n") else "it has no command Compiler.perfmap (JDK 17)"


def _trigger(process: int, attach: str, name: str, tmp: int) -> None:
    """Let a JVM open its socket, if it does so in time."""
    # direct: a new file in the process's /tmp, as its owner
    os.close(os.open(attach, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY, 0o600, dir_fd=tmp))
    try:
        signal.pidfd_send_signal(process, signal.SIGQUIT)
        deadline = time.monotonic() + _ATTACH_S
        while _is_missing(name, tmp) and time.monotonic() < deadline:
            time.sleep(_NAP_S)
    finally:
        os.unlink(attach, dir_fd=tmp)  # direct: made above


def _is_missing(name: str, tmp: int) -> bool:
    try:
        os.lstat(name, dir_fd=tmp)  # direct: asks, and opens nothing
    except FileNotFoundError:
        return True
    return False


def _is_own_or_missing(name: str, tmp: int, is_kind: object) -> bool:
    """Return whether a name is free, or that of a file of this kind and user, without a second name."""
    try:
        found = os.lstat(name, dir_fd=tmp)  # direct: asks, and opens nothing
    except FileNotFoundError:
        return True
    return bool(is_kind(found.st_mode)) and found.st_uid == os.geteuid() and found.st_nlink == 1  # type: ignore[operator]


def _become_owner(pid: int, *, must_be_alike: bool) -> None:
    """Become the user and groups of process `pid`; exit if it runs setuid or setgid, or, with `must_be_alike`, if it is
    root's and restricted."""
    status, own = _status(pid), _status(os.getpid())
    users, groups = {int(number) for number in status["Uid"].split()}, [int(number) for number in status["Gid"].split()]
    if len(users) != 1 or len(set(groups)) != 1:
        sys.exit("it runs a program of another user (setuid)")
    user = users.pop()
    if user == 0:
        alike = all(
            # direct: links of the kernel's
            os.readlink(f"/proc/{pid}/{link}") == os.readlink(f"/proc/self/{link}")
            for link in ("ns/user", "ns/mnt", "root")
        )
        if must_be_alike and (not alike or status["CapPrm"] != own["CapPrm"]):
            sys.exit("it is root's, and in a container or with fewer rights than this recorder")
        return
    os.setgroups([int(number) for number in status["Groups"].split()])
    os.setresgid(groups[0], groups[0], groups[0])
    os.setresuid(user, user, user)


def _status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        return dict(line.split(":", 1) for line in file if ":" in line)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
