# SPDX-License-Identifier: Apache-2.0
"""The functions of the report: what each spent itself, and with all that it called (perf's --children)."""

from __future__ import annotations

import numpy as np

from perf_offcpu.analysis.options import Options
from perf_offcpu.callpaths.calls import calls_of
from perf_offcpu.callpaths.names import Name
from perf_offcpu.model.profile import Profile
from perf_offcpu.structs import frozen


@frozen
class FunctionRow:
    """A function, of all threads together; a mark such as "[truncated]" is one, too."""

    name: Name
    inclusive: int
    """Weight of the samples that have it on their stack, each once: recursion counts nothing twice."""
    own: int
    """Weight of the samples that end in it."""


@frozen
class FunctionTable:
    """The functions, by what lies below them; they overlap, so their weights do not add up to the total."""

    rows: list[FunctionRow]
    more: int
    """Functions that were cut off."""


def function_table(subject: Profile, limit: int | None = None) -> FunctionTable:
    """The functions on the stacks of a profile, those with the largest inclusive weight first.

    Args:
        limit: most rows; None for all.
    """
    calls = calls_of(subject, Options(), np.ones(len(subject.samples), np.bool_))
    order = np.lexsort((np.arange(len(calls.names)), -calls.own, -calls.inclusive))
    rows = [
        FunctionRow(calls.names[at], int(calls.inclusive[at]), int(calls.own[at]))
        for at in order[:limit].tolist()
    ]
    return FunctionTable(rows, len(order) - len(rows))
