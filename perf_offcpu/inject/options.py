# SPDX-License-Identifier: Apache-2.0
"""Options of inject, and its results."""

from __future__ import annotations

from dataclasses import field

from perf_offcpu.losses import Losses
from perf_offcpu.objects.search import Search
from perf_offcpu.structs import frozen, mutable


@frozen
class RewriteOptions:
    """Options of `inject.rewrite.rewrite`."""

    retype: bool = True  # off-cpu samples become ordinary ones; else they are copied as they are
    # deferred callchains are put into their samples; else they are copied as they are, in records that perf
    # 6.1 cannot read
    merge: bool = True
    pipe: bool = False  # write the pipe form
    compress: bool = False  # write compressed records; not in the pipe form
    # a recording of context switches without an off-cpu event gets one, of the waits between them; for that
    # it is read into memory
    switches: bool = False
    keep_stacks: bool = False  # copies of user stacks stay in samples that have them; else they are left out
    # where files are looked up to unwind these copies; None: they are not unwound
    search: Search | None = None


@mutable
class Rewritten:
    """Counts of what was done to a recording."""

    losses: Losses = field(default_factory=Losses)  # as counted while reading, and records left out
    retyped: int = 0  # off-cpu samples that were re-typed
    waits: int = 0  # samples that were added, for waits between context switches
    completed: int = 0  # samples that got their deferred user callchain
    unwound: int = 0  # samples whose copy of the user stack became their user callchain
    copied: int = 0  # records copied unchanged
