# SPDX-License-Identifier: Apache-2.0
"""Folded stacks: the input of flamegraph.pl, inferno, speedscope, Perfetto and much else.

    comm;root;…;leaf WEIGHT

One line for each different stack of a thread name, sorted; WEIGHT is an integer: ns of off-cpu time, or
whatever else the event counts. The unit is not in the file: `flamegraph.pl --countname=ns`. In a coarser
unit a line is off by less than one and the total by at most a half (`callpaths.weights.in_units`); lines
that come to 0 are left out. Source of the format: stackcollapse-perf.pl and flamegraph.pl of
https://github.com/brendangregg/FlameGraph.
"""

from __future__ import annotations

from typing import TextIO

import numpy as np

from perf_offcpu.analysis.options import Options
from perf_offcpu.callpaths.names import Name, NameKind
from perf_offcpu.callpaths.tree import build_paths
from perf_offcpu.callpaths.weights import in_units, unit_factor
from perf_offcpu.convert.encode.text_columns import path_texts
from perf_offcpu.model.profile import Profile
from perf_offcpu.text import folded_field, folded_root


def write(profile: Profile, out: TextIO, options: Options) -> None:
    """Write all samples of the profile as folded stacks; with `options.diff`, the older weight first, as
    difffolded.pl does for flamegraph.pl.

    Raises:
        UsageError: its events have different units, or none of time and `options.unit` asks for one.
    """
    factor = unit_factor(profile, options.unit)
    totals = folded_totals(profile, options)
    if options.diff is not None and unit_factor(options.diff, options.unit) == factor:
        before = folded_totals(options.diff, options)
        lines = sorted(totals.keys() | before.keys())
        pairs = zip(_weights(before, lines, factor), _weights(totals, lines, factor), strict=True)
        texts = [f"{old} {new}" if old or new else "" for old, new in pairs]
    else:
        lines = sorted(totals)
        texts = [str(weight) if weight else "" for weight in _weights(totals, lines, factor)]
    out.writelines(f"{line} {text}\n" for line, text in zip(lines, texts, strict=True) if text)


def _weights(totals: dict[str, int], lines: list[str], factor: int) -> list[int]:
    weights: list[int] = in_units(
        np.array([totals.get(line, 0) for line in lines], np.int64), factor
    ).tolist()
    return weights


def folded_totals(profile: Profile, options: Options) -> dict[str, int]:
    """Path as text (`comm;root;…;leaf`) → summed weight, in the unit of the profile; none is 0."""
    tree = build_paths(profile, options)
    weight = tree.total(profile.samples.period)
    nodes = np.flatnonzero(weight)
    totals: dict[str, int] = {}
    for line, ns in zip(
        path_texts(tree, nodes, list(map(_field, tree.names))), weight[nodes].tolist(), strict=True
    ):
        totals[line] = totals.get(line, 0) + ns  # names that differ only in dso or `;` meet here
    return totals


def _field(name: Name) -> str:
    if name.kind == NameKind.ROOT:
        return folded_root(name.label)
    return folded_field(name.label)
