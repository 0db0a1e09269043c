# SPDX-License-Identifier: Apache-2.0
"""What a program writes to a terminal."""

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def on_terminal(
    command: Sequence[str | Path],
    stream: str,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    status: int = 0,
) -> str:
    """What came on `stream` ("stdout" or "stderr"), a terminal, of a command that ends with `status`."""
    leader, follower = pty.openpty()
    shown = b""
    streams: dict[str, Any] = {stream: follower}
    with subprocess.Popen(command, cwd=cwd, env=env, **streams) as running:
        os.close(follower)
        try:
            while part := os.read(leader, 1 << 16):
                shown += part
        except OSError:  # EIO: the other end is closed
            pass
        assert running.wait(timeout=60) == status
    os.close(leader)
    return shown.decode()
