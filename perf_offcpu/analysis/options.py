# SPDX-License-Identifier: Apache-2.0
"""Choices that converters share; each format honours those that its row in `convert.registry` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perf_offcpu.structs import frozen

if TYPE_CHECKING:
    from perf_offcpu.model.profile import Profile

UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
"""Nanoseconds in each unit of time."""

MIN_SHARE = 0.5
"""Percent of the total below which nothing is drawn of a graph."""


@frozen
class Options:
    """How to write a profile. Which samples to write is not an option: see `analysis.select`."""

    unit: str = ""
    """Unit of time of the weights, a key of UNITS; "" as counted (ns for time). Default: ""."""
    pid: bool = False
    """Show the pid behind the comm. Default: no."""
    tid: bool = False
    """Show pid and tid behind the comm. Default: no."""
    kernel: bool = False
    """Mark kernel functions with `_[k]`. Default: no."""
    addrs: bool = False
    """Show the address of frames without symbol. Default: no."""
    state: bool = False
    """Show the task state behind the innermost frame: `[interruptible sleep]`. Default: no."""
    waker_stack: bool = False
    """Show the stack of who woke the sleeper, upside down behind the sleeper's. Default: no."""
    form: str = ""
    """One of the forms that the format has, see `Format.forms`; "" is the first. Default: ""."""
    wakers: bool = False
    """Of wake-ups between threads instead of calls between functions. Default: no."""
    svg: bool = False
    """Have graphviz draw it. Default: no."""
    min_share: float = MIN_SHARE
    """Leave out what has less than this percentage of the total. Default: MIN_SHARE."""
    diff: Profile | None = None
    """An older profile to compare with, its events selected alike. Default: none."""
    title: str = ""
    """Title of a picture; "" is one made of what it shows. Default: ""."""
