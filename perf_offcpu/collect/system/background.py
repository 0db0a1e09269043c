# SPDX-License-Identifier: Apache-2.0
"""Run what may block in the kernel in a thread of its own, so that the recorder goes on emptying rings."""

import _thread
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

NAP_S = 0.02
"""Time between two steps of `stepping_until`."""


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
        wait([future])
    future.result()


def stepping_until(future: Future[T], step: Callable[[], object]) -> T:
    """Call `step` again and again until a result is there; return or raise it."""
    try:
        while not future.done():
            step()
            wait([future], NAP_S)
    finally:
        wait([future])  # what it works on may be closed after an error
    return future.result()
