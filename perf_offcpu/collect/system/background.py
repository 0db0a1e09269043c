# SPDX-License-Identifier: Apache-2.0
"""Run work that may block in the kernel in a thread, so that the recorder can drain the rings meanwhile."""

import _thread
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from perf_offcpu.collect.system.privileges import niceness

T = TypeVar("T")

NAP_S = 0.02  # time between two steps of `stepping_until`


class Future(Generic[T]):
    """Result of work in another thread. (concurrent.futures imports logging, which takes 16 ms.)"""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._result: list[T] = []
        self._problem: BaseException | None = None

    def set_result(self, result: T) -> None:
        """Set the result: the work has ended."""
        self._result.append(result)
        self._ended.set()

    def set_exception(self, problem: BaseException) -> None:
        """Set the error that `result` raises: the work has failed."""
        self._problem = problem
        self._ended.set()

    def done(self) -> bool:
        """Return True once the work has ended, with a result or an error."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the work has ended, at most `timeout_s` (None: any time); return True if it has ended."""
        return self._ended.wait(timeout_s)

    def result(self) -> T:
        """Wait until the work has ended; return its result or raise its error."""
        self._ended.wait()
        if self._problem is not None:
            raise self._problem
        return self._result[0]


def in_background(work: Callable[[], T]) -> Future[T]:
    """Start `work` in a daemon thread; return its future result. If no thread can be started, run it here."""
    future: Future[T] = Future()
    take_niceness = niceness()

    def run() -> None:
        take_niceness()
        try:
            future.set_result(work())
        except BaseException as problem:
            future.set_exception(problem)

    # Thread.start() would wait until the new thread has got a CPU: 184 ms were seen under a flood of forks.
    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # other programs have taken all ids of threads
        run()
    return future


def side_by_side(first: Callable[[], object], second: Callable[[], object]) -> None:
    """Run `first` in a thread and `second` here until both end; raise the error of `second`, else that of `first`."""
    future = in_background(first)
    try:
        second()
    finally:
        future.wait()
    future.result()


def stepping_until(future: Future[T], step: Callable[[], object]) -> T:
    """Call `step` every NAP_S until the future has ended; return its result or raise its error."""
    try:
        while not future.done():
            step()
            future.wait(NAP_S)
    finally:
        future.wait()  # after an error of `step`, the caller may close what the work uses
    return future.result()
