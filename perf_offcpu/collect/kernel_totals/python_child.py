# SPDX-License-Identifier: Apache-2.0
"""Print the Python functions of the threads of a process. A program of its own:  python python_child.py DIRECTORY PID

perf_offcpu/collect/kernel_totals/python_stacks.py starts it with the bare interpreter, so it imports nothing of this
project. DIRECTORY holds pystack, which follows pointers in the memory of the process and reads the files that its maps
name: a hostile process can make it read any file and crash it, and maybe take it over. So root gives up all rights but
those of the owner of the process before pystack looks, and refuses a process of root that is in a container or has
fewer rights than this one.

It prints a line for each thread: a JSON list of its tid and its functions, root first. Each function is [name, file,
line, call], where `call` is the number of the call of the interpreter's C function that runs it, counted from the root.
"""

import ctypes
import itertools
import json
import os
import resource
import sys

_SECONDS, _MEMORY, _OUTPUT, _FILES = 2, 1 << 30, 1 << 20, 64
_MOST_FRAMES = 1000
_PR_SET_NO_NEW_PRIVS = 38


def _main(directory: str, pid: int) -> None:
    sys.path.insert(0, directory)
    from pystack.engine import get_process_threads

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
        _become_owner(pid)
    for thread in get_process_threads(pid, stop_process=False):
        functions, call = [], 0
        for frame in itertools.islice(thread.all_frames, _MOST_FRAMES):
            call += bool(frame.is_entry)
            if not frame.is_shim:
                functions.append([frame.code.scope, frame.code.filename, frame.code.location.lineno, call])
        os.write(1, json.dumps([thread.tid, functions]).encode() + b"\n")


def _become_owner(pid: int) -> None:
    """Become the user and groups of process `pid`; exit if it runs setuid or setgid, or is root's but restricted."""
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
        if not alike or status["CapPrm"] != own["CapPrm"]:
            sys.exit("it is root's, and in a container or with fewer rights than this recorder")
        return
    os.setgroups([int(number) for number in status["Groups"].split()])
    os.setresgid(groups[0], groups[0], groups[0])
    os.setresuid(user, user, user)


def _status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        return dict(line.split(":", 1) for line in file if ":" in line)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
