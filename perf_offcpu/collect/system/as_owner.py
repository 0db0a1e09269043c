# SPDX-License-Identifier: Apache-2.0
"""Ask a process in a child that has its owner's rights, and limits of time, memory and output (owner_child.py)."""

import contextlib
import os
import subprocess
import sys
from typing import Final

_CHILD: Final = os.path.join(os.path.dirname(__file__), "owner_child.py")
_END_S: Final = 0.5
_MOST_OUTPUT: Final = 1 << 24


def ask_as_owner(pid: int, patience_s: float = 3) -> bytes:
    """Return what the child prints of a process, up to the time when it is killed; b"" if it cannot be started."""
    python = sys.executable or f"{sys.exec_prefix}/bin/python3"
    fd = os.memfd_create("as-owner")  # a file, whose size the child has a limit for
    with contextlib.suppress(OSError):  # what was printed before it was killed counts
        child = subprocess.Popen(
            [python, "-I", "-S", _CHILD, str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
        )
        for time_s in (patience_s, _END_S):  # then it is not awaited: it blocks on a file that never comes
            try:
                child.wait(timeout=time_s)
            except subprocess.TimeoutExpired:
                child.kill()
    output = os.pread(fd, _MOST_OUTPUT, 0)
    os.close(fd)
    return output
