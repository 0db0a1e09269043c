# SPDX-License-Identifier: Apache-2.0
"""Options of trees of paths, their names, and chains of wakers. Imports little: command lines use it, too."""

import enum
from typing import TYPE_CHECKING, NamedTuple, Self

from perf_offcpu.structs import frozen, mutable

if TYPE_CHECKING:
    from perf_offcpu.model.columns import I64, Bool


class NameKind(enum.IntEnum):
    """Kind of a name in a tree of paths."""

    USER = 0
    KERNEL = 1
    ROOT = 2  # a comm, process or thread
    MARK = 3  # in place of frames that could not be recorded: "[truncated]", "[missed stack]", …
    WAKER = 4  # of the thread that woke the sleeper: a frame, or its name


class Name(NamedTuple):
    """Name of a node in a tree of paths. `label` and `dso` (a basename, "" if the node is no frame) are printable."""

    label: str
    dso: str
    kind: NameKind


@mutable
class WakerChains:
    """Chains of wakers of n samples, as columns by hop: the direct waker first, then the waker of that, and so on."""

    names: list[Name]  # of wakers; the first stands for no waker
    chain: "I64"  # int64[n], number of each sample's chain; equal chains have equal numbers
    hops: "list[tuple[I64, I64]]"  # of each hop: int64[n], index into names, 0 none; int64[n], stack, -1 none

    def take(self, rows: "Bool") -> Self:
        """Return the chains of the samples that a mask, bool[n], selects; names are shared."""
        return type(self)(self.names, self.chain[rows], [(name[rows], stack[rows]) for name, stack in self.hops])


@frozen
class PathOptions:
    """Options for what a tree of paths shows of threads, frames and leaves."""

    pid: bool = False  # show the pid after the comm
    tid: bool = False  # show pid and tid after the comm
    kernel: bool = False  # mark kernel functions with `_[k]`
    addrs: bool = False  # show the address of frames without symbol
    state: bool = False  # show the task state after the innermost frame: `[interruptible sleep]`
    waker_stack: bool = False  # show the stack of the waker, upside down after the sleeper's
    chains: WakerChains | None = None  # show these chains of wakers instead, of the samples of the profile
