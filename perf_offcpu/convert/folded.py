# SPDX-License-Identifier: Apache-2.0
"""Write folded stacks: the input of flamegraph.pl, inferno, speedscope, Perfetto and many other tools.

    comm;root;…;leaf WEIGHT

One line for each distinct stack of a thread name, sorted; WEIGHT is an integer: ns of off-cpu time, or occurrences of
the event. The unit is not in the file: `flamegraph.pl --countname=ns`. In a coarser unit a line is off by less than one
and the total by at most a half (`callpaths.weights.in_units`); lines of 0 are left out. Source of the format:
stackcollapse-perf.pl and flamegraph.pl of https://github.com/brendangregg/FlameGraph."""

from typing import TextIO

import numpy as np

from perf_offcpu.callpaths.options import NameKind
from perf_offcpu.callpaths.tree import build_paths
from perf_offcpu.callpaths.weights import in_units, unit_factor
from perf_offcpu.convert.encode.text_columns import path_texts
from perf_offcpu.convert.registry import Options
from perf_offcpu.model.profile import Profile
from perf_offcpu.text import folded_field, folded_root


def write(profile: Profile, out: TextIO, options: Options) -> None:
    """Write folded stacks; with `options.diff` each has two weights, the older one first, as difffolded.pl writes."""
    factor = unit_factor(profile, options.unit)
    totals = folded_totals(profile, options)
    if options.diff is not None and unit_factor(options.diff, options.unit) == factor:
        before = folded_totals(options.diff, options)
        lines = sorted(totals.keys() | before.keys())
        pairs = zip(*(_weights(sums, lines, factor) for sums in (before, totals)), strict=True)
        texts = [f"{old} {new}" if old or new else "" for old, new in pairs]
    else:
        lines = sorted(totals)
        texts = [str(weight) if weight else "" for weight in _weights(totals, lines, factor)]
    out.writelines(f"{line} {text}\n" for line, text in zip(lines, texts, strict=True) if text)


def _weights(totals: dict[str, int], lines: list[str], factor: int) -> list[int]:
    """Return the weight of each line, 0 without one, in units of `factor`."""
    return list(in_units(np.array([totals.get(line, 0) for line in lines], np.int64), factor).tolist())


def folded_totals(profile: Profile, options: Options) -> dict[str, int]:
    """Sum the weights (periods) of the samples by stack, `comm;root;…;leaf`; sums of 0 are left out."""
    tree = build_paths(profile, options)
    weight = tree.total(profile.samples.period)
    nodes = np.flatnonzero(weight)
    labels = [(folded_root if name.kind == NameKind.ROOT else folded_field)(name.label) for name in tree.names]
    lines = path_texts(tree, nodes, labels)
    totals: dict[str, int] = {}
    for line, ns in zip(lines, weight[nodes].tolist(), strict=True):
        totals[line] = totals.get(line, 0) + ns  # names that differ only in dso or `;` meet here
    return totals
