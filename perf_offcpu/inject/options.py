# SPDX-License-Identifier: Apache-2.0
"""Options of inject, and its results."""

from __future__ import annotations

from dataclasses import field

from perf_offcpu.losses import Losses
from perf_offcpu.objects.search import Search
from perf_offcpu.structs import frozen, mutable


@frozen
class RewriteOptions:
    """Options of `inject.rewrite.rewrite`.

    Args:
        retype: off-cpu samples become ordinary ones; else they are copied as they are.
        merge: deferred callchains are put into their samples; else they are copied as they are, in records
            that perf 6.1 cannot read.
        pipe: write the pipe form.
        compress: write compressed records; not in the pipe form.
        switches: a recording of context switches without an off-cpu event gets one, of the waits between
            them; for that it is read into memory.
        keep_stacks: copies of user stacks stay in samples that have them; else they are left out.
        search: where files are looked up to unwind these copies; None: they are not unwound.
    """

    retype: bool = True
    merge: bool = True
    pipe: bool = False
    compress: bool = False
    switches: bool = False
    keep_stacks: bool = False
    search: Search | None = None


@mutable
class Rewritten:
    """Counts of what was done to a recording.

    Args:
        losses: as counted while reading, and records left out.
        retyped: off-cpu samples that were re-typed.
        waits: samples that were added, for waits between context switches.
        completed: samples that got their deferred user callchain.
        unwound: samples whose copy of the user stack became their user callchain.
        copied: records copied unchanged.
    """

    losses: Losses = field(default_factory=Losses)
    retyped: int = 0
    waits: int = 0
    completed: int = 0
    unwound: int = 0
    copied: int = 0
