# SPDX-License-Identifier: Apache-2.0
"""What a program writes to a terminal."""

import os
import pty
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def on_terminal(
    command: Sequence[str | Path], stream: str, *, cwd: Path | None = None, env: Mapping[str, str] | None = None,
    status: int = 0, is_enough: Callable[[bytes], bool] = lambda shown: False,
) -> str:  # fmt: skip
    """What came on `stream` ("stdout" or "stderr"), a terminal, of a command that ends with `status`. `is_enough` gets
    what has come so far; when it is true first, the command gets a SIGINT."""
    leader, follower = pty.openpty()
    shown, interrupted = b"", False
    streams: dict[str, Any] = {stream: follower}
    with subprocess.Popen(command, cwd=cwd, env=env, **streams) as running:
        os.close(follower)
        try:
            while part := os.read(leader, 1 << 16):
                shown += part
                if not interrupted and is_enough(shown):
                    interrupted = True
                    running.send_signal(signal.SIGINT)
        except OSError:  # EIO: the other end is closed
            pass
        assert running.wait(timeout=60) == status
    os.close(leader)
    return shown.decode()
