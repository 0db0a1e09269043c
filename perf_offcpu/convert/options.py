# SPDX-License-Identifier: Apache-2.0
"""Choices that converters share; each format honours those that its row in `convert.registry` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perf_offcpu.callpaths.options import PathOptions
from perf_offcpu.structs import frozen

if TYPE_CHECKING:
    from perf_offcpu.model.profile import Profile

MIN_SHARE = 0.5
"""Percent of the total below which nothing is drawn of a graph."""


@frozen
class Options(PathOptions):
    """The options of converters. Selecting samples is not one of them: see `analysis.select`."""

    unit: str = ""
    """Unit of time of the weights, a key of UNITS; "" as counted (ns for time). Default: ""."""
    form: str = ""
    """One of the forms that the format has, see `Format.forms`; "" is the first. Default: ""."""
    wakers: bool = False
    """Show wake-ups between threads instead of calls between functions. Default: no."""
    svg: bool = False
    """Let graphviz draw it. Default: no."""
    min_share: float = MIN_SHARE
    """Leave out what has less than this percentage of the total. Default: MIN_SHARE."""
    diff: Profile | None = None
    """An older profile to compare with, its events selected alike. Default: none."""
    title: str = ""
    """Title of a picture; "" is one made of what it shows. Default: ""."""
