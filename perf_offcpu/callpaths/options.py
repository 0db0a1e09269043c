# SPDX-License-Identifier: Apache-2.0
"""Declare options for paths. Imports little, because command lines use it, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perf_offcpu.structs import frozen

if TYPE_CHECKING:
    from perf_offcpu.callpaths.chains import WakerChains


@frozen
class PathOptions:
    """Options for threads, frames and leaves of a tree of paths."""

    pid: bool = False
    """Show the pid after the comm. Default: no."""
    tid: bool = False
    """Show pid and tid after the comm. Default: no."""
    kernel: bool = False
    """Mark kernel functions with `_[k]`. Default: no."""
    addrs: bool = False
    """Show the address of frames without symbol. Default: no."""
    state: bool = False
    """Show the task state after the innermost frame: `[interruptible sleep]`. Default: no."""
    waker_stack: bool = False
    """Show the stack of the waker, upside down after the sleeper's. Default: no."""
    chains: WakerChains | None = None
    """Show these chains of wakers instead, of the samples of the profile. Default: none."""
