# SPDX-License-Identifier: Apache-2.0
"""Ask a JVM for its perf map in a child (owner_child.py) with the rights of the JVM's owner, and with limits."""

import contextlib
import os
import subprocess
import sys
from typing import Final

_CHILD: Final = os.path.join(os.path.dirname(__file__), "owner_child.py")
_END_S: Final = 0.5
_MOST_OUTPUT: Final = 1 << 24


def ask_as_owner(pid: int, patience_s: float = 3) -> bytes:
    """Return the perf map of a JVM, or "!" + problem, as owner_child.py reads it with the rights of the JVM's owner, up
    to `patience_s`; b"" if that child cannot be started."""
    command = sys.executable or f"{sys.exec_prefix}/bin/python3", "-I", "-S", _CHILD, str(pid)
    fd = os.memfd_create("as-owner")  # a file, whose size the child has a limit for
    with contextlib.suppress(OSError):  # output from before the kill counts
        null = subprocess.DEVNULL
        child = subprocess.Popen(command, stdin=null, stdout=fd, stderr=null, cwd="/", env={})
        for time_s in (patience_s, _END_S):  # then it is not awaited: it blocks on a file that never comes
            try:
                child.wait(timeout=time_s)
            except subprocess.TimeoutExpired:
                child.kill()
    output = os.pread(fd, _MOST_OUTPUT, 0)
    os.close(fd)
    return output
