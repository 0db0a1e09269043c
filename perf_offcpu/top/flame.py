# SPDX-License-Identifier: Apache-2.0
"""Lay out a flame graph of an interval for the terminal: functions below their callers, each as wide as the time that
was blocked in it, beside each other by name, so that they keep their places from interval to interval."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from perf_offcpu.analysis.group import sum_by
from perf_offcpu.callpaths.calls import subtree_sums
from perf_offcpu.callpaths.options import PathOptions
from perf_offcpu.callpaths.tree import build_paths
from perf_offcpu.structs import frozen
from perf_offcpu.top.interval import Interval

Path = tuple[str, ...]
"""Labels from a comm to a function; () is the whole graph."""
WHOLE: Final = "all"


@frozen
class Box:
    """A function, and the columns of the terminal that it takes."""

    begin: int
    width: int
    path: Path
    ns: int  # blocked in it and in what it calls

    @property
    def label(self) -> str:
        """Return the name of the function."""
        return self.path[-1] if self.path else WHOLE


class Graph:
    """Stacks of the chosen waits of an interval, merged from their roots on; `ns`: path → time blocked."""

    def __init__(self, interval: Interval) -> None:
        rows = np.flatnonzero(interval.chosen)
        tree = build_paths(interval.profile.select(rows), PathOptions())
        own = sum_by(tree.of_sample.astype(np.int64), interval.blocked_ns()[rows], len(tree))
        self.ns: dict[Path, int] = {(): int(own.sum())}
        self._callees: dict[Path, list[Path]] = {}
        paths: list[Path] = []
        nodes = zip(tree.parent.tolist(), tree.name.tolist(), subtree_sums(tree, own).tolist(), strict=True)
        for parent, name, ns in nodes:  # a node comes after its parent
            above = paths[parent] if parent >= 0 else ()
            path = (*above, tree.names[name].label)
            paths.append(path)
            if ns and path not in self.ns:
                self._callees.setdefault(above, []).append(path)
            self.ns[path] = self.ns.get(path, 0) + ns

    def lines(self, zoom: Path, width: int) -> list[list[Box]]:
        """Return the boxes of each line, from left to right: the callers of `zoom`, `zoom` itself over the whole width,
        and what it calls. A function narrower than a column is left out, with all that it calls."""
        lines = [[Box(0, width, zoom[:depth], self.ns[zoom[:depth]])] for depth in range(len(zoom) + 1)]
        while below := [box for above in lines[-1] for box in self._below(above)]:
            lines.append(below)
        return lines

    def _below(self, above: Box) -> Sequence[Box]:
        boxes, ns = [], 0
        for path in sorted(self._callees.get(above.path, ())):
            begin, ns = above.width * ns // above.ns, ns + self.ns[path]
            if width := above.width * ns // above.ns - begin:
                boxes.append(Box(above.begin + begin, width, path, self.ns[path]))
        return boxes
