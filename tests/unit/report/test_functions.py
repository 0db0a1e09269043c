# SPDX-License-Identifier: Apache-2.0
"""Functions with all that they call: each sample once a function, and what a plain count over stacks says."""

import json
import re
from collections import Counter

from builders.large import large_profile
from builders.profile import Code, ProfileBuilder, kernel

from perf_offcpu.model.profile import Profile
from perf_offcpu.report.breakdowns import function_table
from perf_offcpu.report.document import document
from perf_offcpu.report.style import Style
from perf_offcpu.report.summary import Limits, summarize
from perf_offcpu.report.terminal import render


def recursive() -> Profile:
    builder = ProfileBuilder()
    builder.sample("a", ["main", "f", "g", "f", kernel("wait")], 10)
    builder.sample("b", ["main", "g"], 5)
    builder.sample("b", ["main", Code("g", "/lib/other.so")], 2)
    builder.sample("b", [], 1)
    return builder.build()


def test_recursion_counts_once_and_objects_stand_apart() -> None:
    rows = [(row.name.label, row.name.dso, row.inclusive, row.own) for row in function_table(recursive()).rows]
    program = rows[0][1]
    assert rows == [
        ("main", program, 17, 0), ("g", program, 15, 5), ("wait", "[kernel.kallsyms]", 10, 10),
        ("f", program, 10, 0), ("g", "other.so", 2, 2), ("[no stack]", "", 1, 1),
    ]  # fmt: skip


def test_as_a_count_over_every_stack() -> None:
    profile = large_profile(3000, 300, functions=50, seed=5)
    table = function_table(profile)
    inclusive, own = by_hand(profile)
    assert {(row.name.label, row.name.dso): row.inclusive for row in table.rows} == inclusive
    assert {(row.name.label, row.name.dso): row.own for row in table.rows if row.own} == own
    assert sum(row.own for row in table.rows) == int(profile.samples.period.sum())
    assert [row.inclusive for row in table.rows] == sorted(inclusive.values(), reverse=True)


def by_hand(profile: Profile) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Return inclusive and own weights, counted with sets over the stacks that converters see."""
    inclusive: Counter[tuple[str, str]] = Counter()
    own: Counter[tuple[str, str]] = Counter()
    for row in summarize(profile).stacks:
        frames = [(name.label, name.dso) for name in row.frames]
        own[frames[-1]] += row.total.weight
        for frame in set(frames):
            inclusive[frame] += row.total.weight
    return inclusive, own


def test_only_when_asked_for_and_cut_as_said() -> None:
    assert summarize(recursive()).functions is None
    assert document(summarize(recursive()))["functions"] is None
    summary = summarize(recursive(), limits=Limits(groups=2), children=True)
    lines = list(render(summary, Style(unit="ns", stacks=False)))
    at = next(at for at, line in enumerate(lines) if "with all that they call" in line)
    assert re.split(r"  +", lines[at + 2])[1:] == [
        "Self", "Children ns", "Self ns", "Shared object", "Symbol",
    ]  # fmt: skip
    assert re.split(r"  +", lines[at + 4].strip())[:4] == ["94.44%", "0.00%", "17", "0"]
    assert lines[at + 6] == "# and 4 more functions"
    rows = json.loads(json.dumps(document(summary)))["functions"]
    assert rows["more"] == 4 and [row["inclusive"] for row in rows["rows"]] == [17, 15]
