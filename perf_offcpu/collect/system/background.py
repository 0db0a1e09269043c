# SPDX-License-Identifier: Apache-2.0
"""Run what may block in the kernel in a thread of its own, so that the recorder goes on emptying rings."""

import _thread
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

NAP_S = 0.02  # time between two steps of `stepping_until`


class Future(Generic[T]):
    """A result that is there later; concurrent.futures, which imports logging, takes 16 ms to import."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._result: list[T] = []
        self._problem: BaseException | None = None

    def set_result(self, result: T) -> None:
        """End with a result."""
        self._result.append(result)
        self._ended.set()

    def set_exception(self, problem: BaseException) -> None:
        """End with an error."""
        self._problem = problem
        self._ended.set()

    def done(self) -> bool:
        """Return whether it has ended."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end, or for some time; return whether it has ended."""
        return self._ended.wait(timeout_s)

    def result(self) -> T:
        """Wait for the end; return the result or raise the error."""
        self._ended.wait()
        if self._problem is not None:
            raise self._problem
        return self._result[0]


def in_background(work: Callable[[], T]) -> Future[T]:
    """Begin `work` in a thread, which does not keep the process from ending; return its future result."""
    future: Future[T] = Future()

    def run() -> None:
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
    """Run both at the same time; return, or raise the error of one, when both have ended."""
    future = in_background(first)
    try:
        second()
    finally:
        future.wait()
    future.result()


def stepping_until(future: Future[T], step: Callable[[], object]) -> T:
    """Call `step` again and again until a result is there; return or raise it."""
    try:
        while not future.done():
            step()
            future.wait(NAP_S)
    finally:
        future.wait()  # what it works on may be closed after an error
    return future.result()
