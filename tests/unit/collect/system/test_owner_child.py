# SPDX-License-Identifier: Apache-2.0
"""How a JVM is asked to listen for commands."""

import os
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from perf_offcpu.collect.system import owner_child
from perf_offcpu.files import descriptor


@pytest.mark.parametrize(("age_s", "signals"), [(None, 1), (60, 1), (0, 0)], ids=["alone", "stale file", "two ask"])
def test_a_jvm_that_another_tool_asks_gets_no_second_signal(tmp_path: Path, age_s: int | None, signals: int) -> None:
    """HotSpot prints all stacks at a SIGQUIT that comes when it listens already."""
    received, socket = list[int](), tmp_path / ".java_pid7"
    if age_s is not None:
        (tmp_path / ".attach_pid7").touch()
        os.utime(tmp_path / ".attach_pid7", (time.time() - age_s,) * 2)
    with ExitStack() as stack:
        before = signal.signal(signal.SIGQUIT, lambda number, _: received.append(number))
        stack.callback(signal.signal, signal.SIGQUIT, before)
        process = stack.enter_context(descriptor(os.pidfd_open(os.getpid())))
        tmp = stack.enter_context(descriptor(os.open(tmp_path, os.O_PATH)))
        timer = threading.Timer(0.1, socket.touch)
        timer.start()
        stack.callback(timer.join)
        owner_child._trigger(process, ".attach_pid7", socket.name, tmp, time.monotonic() + 5)
    assert len(received) == signals
    assert (tmp_path / ".attach_pid7").exists() == (age_s is not None), "only its own file is removed"
