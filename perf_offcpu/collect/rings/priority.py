# SPDX-License-Identifier: Apache-2.0
"""Priority of the thread that empties the rings: a ring that is not emptied in time loses records.

Nice values only count within a session where the kernel groups tasks by session (kernel.sched_autogroup_enabled, the
default): beside eight tasks that compute in another session, a thread of nice -20 waited 0.3 s for one of two CPUs. So
the thread is a real-time one, as long as it needs little time: it cannot starve others for more than a part of it.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator

_WINDOW_S = 0.5
_MOST = 0.3  # share of a CPU above which the thread is an ordinary one for the next window
_LEAST_PRIORITY = os.sched_param(1)


class DrainPriority:
    """Keeps the calling thread real-time (SCHED_FIFO 1) while it uses little CPU time; where that is not allowed, it
    stays as it is. Threads and processes that it starts are ordinary ones. `is_wanted`: False to leave the priority
    alone. `wall`, `cpu`: clocks of the seconds elapsed, and of this thread on a CPU."""

    def __init__(
        self,
        is_wanted: bool = True,
        wall: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
        set_policy: Callable[[int, int, os.sched_param], None] = os.sched_setscheduler,
    ) -> None:
        self._wall, self._cpu, self._set_policy = wall, cpu, set_policy
        self._is_allowed, self._is_raised = is_wanted, False
        self._begin = (0.0, 0.0)

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """Raise the priority for the block, in which `adapt` is called often."""
        self._begin = self._wall(), self._cpu()
        self._set(raised=True)
        try:
            yield
        finally:
            self._set(raised=False)

    def adapt(self) -> None:
        """Choose the priority by the CPU time of the last half second, if one has passed."""
        now = self._wall(), self._cpu()
        elapsed, used = (end - begin for end, begin in zip(now, self._begin, strict=True))
        if elapsed >= _WINDOW_S:
            self._begin = now
            self._set(raised=used <= _MOST * elapsed)

    def _set(self, *, raised: bool) -> None:
        if raised == self._is_raised or not self._is_allowed:
            return
        policy, priority = (os.SCHED_FIFO, _LEAST_PRIORITY) if raised else (os.SCHED_OTHER, os.sched_param(0))
        try:
            self._set_policy(0, policy | os.SCHED_RESET_ON_FORK, priority)
        except OSError:  # no CAP_SYS_NICE, or a control group without real-time budget
            self._is_allowed = False
        else:
            self._is_raised = raised
