# SPDX-License-Identifier: Apache-2.0
"""Choices that converters share; each format honours those that its row in `convert.registry` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perf_offcpu.callpaths.options import PathOptions
from perf_offcpu.structs import frozen

if TYPE_CHECKING:
    from perf_offcpu.causality.cascade import Cascade
    from perf_offcpu.causality.path_track import PathTrack
    from perf_offcpu.model.profile import Profile

MIN_SHARE = 0.5
"""Percent of the total below which nothing is drawn of a graph."""


@frozen
class Options(PathOptions):
    """The options of converters. Selecting samples is not one of them: see `analysis.select`."""

    unit: str = ""  # unit of time of the weights, a key of UNITS; "" as counted (ns for time)
    form: str = ""  # one of the forms that the format has, see `Format.forms`; "" is the first
    wakers: bool = False  # callgraph: wake-ups between threads instead of calls between functions
    per_thread: bool = False  # with wakers: each thread by itself, not those of one comm as one
    objects: bool = False  # show threads and the objects that they wait for, instead of calls
    cascade: Cascade | None = None  # show waits with those that they hold up, instead of calls
    path: PathTrack | None = None  # a critical path, on a track of its own
    svg: bool = False  # let graphviz draw it
    min_share: float = MIN_SHARE  # leave out rows below this percentage of the total
    diff: Profile | None = None  # an older profile to compare with, its events selected alike
    title: str = ""  # title of a picture; "" is one made of what it shows
    idle: frozenset[tuple[int, int]] = frozenset()  # (pid, tid) of threads that merely wait for work
    sentences: tuple[str, ...] = ()  # the verdict, for the head of a page
    selected: tuple[str, ...] = ()  # words of the command line that select the samples, input included
