# SPDX-License-Identifier: Apache-2.0
"""Waits with a place in time and a waker, for tests of what threads waited for."""

from __future__ import annotations

from typing import Any

from builders.profile import ProfileBuilder, Stack

COMMS = {1: "client", 2: "server", 3: "disk"}


def wait(
    builder: ProfileBuilder,
    tid: int,
    begin: int,
    end: int,
    *,
    waker: int = -1,
    queued: int = 0,
    path: Stack | None = None,
    **other: Any,
) -> ProfileBuilder:
    """Add a wait from `begin` to `end`, at the end of which it was `queued` ns on a run queue."""
    return builder.sample(
        COMMS.get(tid, f"t{tid}"), path or [f"main{tid}", f"sleep_in_{tid}"], end - begin, tid=tid, pid=tid,
        time_ns=end, switch_out_ns=begin, wakeup_ns=end - queued, runq_ns=queued, waker_tid=waker,
        waker_pid=waker, **other,
    )  # fmt: skip
