# SPDX-License-Identifier: Apache-2.0
"""Two profiles as one, so that a view can show what has changed: frames of the same name become the same node
in its tree, whichever profile they come from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perf_offcpu.model.columns import I32, U32, Bool
from perf_offcpu.model.profile import Frames, Profile, ProfileSamples, Stacks
from perf_offcpu.structs import mutable


@mutable
class Together:
    """Samples of both profiles.

    Args:
        profile: of everything but samples, stacks and names it has what the new one has.
        old: bool[samples], those of the old profile; they come last.
    """

    profile: Profile
    old: Bool

    @property
    def new(self) -> Bool:
        """bool[samples]: those of the new profile."""
        return ~self.old


def together(new: Profile, old: Profile | None) -> Together:
    """Both profiles as one; the new one alone if there is no old one."""
    if old is None:
        return Together(new, np.zeros(len(new.samples), np.bool_))
    strings = new.strings.copy()
    row_of: U32 = strings.intern_all(old.strings)
    frames = Frames.concat([new.frames, _renamed(old.frames, row_of)])
    stacks = Stacks.concat([new.stacks, _shifted(old.stacks, len(new.stacks), len(new.frames))])
    samples = old.samples.with_columns(
        comm=row_of[old.samples.comm],
        evsel=_behind(old.samples.evsel, len(new.evsels)),
        stack=_behind(old.samples.stack, len(new.stacks)),
        waker_stack=_behind(old.samples.waker_stack, len(new.stacks)),
    )
    both = replace(
        new,
        samples=ProfileSamples.concat([new.samples, samples]),
        stacks=stacks,
        frames=frames,
        strings=strings,
        evsels=[*new.evsels, *old.evsels],
    )
    return Together(both, np.arange(len(both.samples)) >= len(new.samples))


def _renamed(frames: Frames, row_of: U32) -> Frames:
    return frames.with_columns(symbol=row_of[frames.symbol], dso=row_of[frames.dso], file=row_of[frames.file])


def _shifted(stacks: Stacks, nodes: int, frames: int) -> Stacks:
    return Stacks(_behind(stacks.parent, nodes), (stacks.frame + np.int32(frames)).astype(np.int32))


def _behind(ids: I32, rows: int) -> I32:
    """Row ids behind `rows` others; -1 stays none."""
    return np.where(ids >= 0, ids + rows, -1).astype(np.int32)
