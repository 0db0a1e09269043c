# SPDX-License-Identifier: Apache-2.0
"""Lay out a flame graph of an interval and show it on the screen of `top`: arrows move a frame, Enter zooms into it.
Functions lie below their callers, each as wide as the time that was blocked in it, beside each other by name, so
that they keep their places from interval to interval."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.events import Click, Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from perf_offcpu.callpaths.calls import subtree_sums
from perf_offcpu.callpaths.options import PathOptions
from perf_offcpu.callpaths.tree import build_paths
from perf_offcpu.model.columns import sum_by
from perf_offcpu.report.style import cut
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable
from perf_offcpu.top.interval import Interval

_COLORS: Final = tuple(Style(color="black", bgcolor=color) for color in ("#e8a33d", "#e0863b", "#eec15a", "#d9743a"))
_CHOSEN: Final = Style(color="white", bgcolor="#1f4e79", bold=True)
Path = tuple[str, ...]
"""Labels from a comm down to a function; () is the whole graph."""
WHOLE: Final = "all"


@frozen
class Box:
    """A function in the picture."""

    begin: int  # first column of the terminal
    width: int  # in columns
    path: Path
    ns: int  # time blocked in the function and its callees

    @property
    def label(self) -> str:
        """Return the name of the function; WHOLE for the whole graph."""
        return self.path[-1] if self.path else WHOLE


class Graph:
    """Call tree of the chosen waits of an interval; `ns`: path → time blocked in the function and its callees."""

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
        """Return the boxes of each line, from left to right: the callers of `zoom` and `zoom` itself, over the whole
        `width` (columns), then its callees. A function narrower than a column is left out with its callees."""
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


class FlameView(ScrollView, can_focus=True):
    """Widget of a flame graph: `chosen` is the box moved by arrow keys, `zoom` the path shown over the whole width."""

    BINDINGS: ClassVar[list[Any]] = [
        Binding("left", "beside(-1)", show=False),
        Binding("right", "beside(1)", show=False),
        Binding("up", "above", show=False),
        Binding("down", "below", show=False),
        Binding("enter", "zoom", "Zoom"),
    ]

    class Moved(Message):
        """Message that another box is chosen."""

    def __init__(self) -> None:
        super().__init__(id="flame")
        self._graph: Graph | None = None
        self._lines: list[list[Box]] = []
        self.zoom: Path = ()
        self._path: Path = ()

    @property
    def chosen(self) -> Box | None:
        """Return the chosen box; None in an empty graph."""
        boxes = self._lines[len(self._path)] if len(self._path) < len(self._lines) else []
        return next((box for box in boxes if box.path == self._path), None)

    @property
    def whole_ns(self) -> int:
        """Return the time blocked in the whole graph, ns."""
        return self._graph.ns[()] if self._graph else 0

    def show(self, graph: Graph) -> None:
        """Show another graph; zoom and chosen function stay, or become their nearest callers in the new graph."""
        self._graph = graph
        while self.zoom not in graph.ns:
            self.zoom = self.zoom[:-1]
        self._lay_out()

    def leave_zoom(self) -> bool:
        """Zoom out to the caller of `zoom`; return False if the whole graph is shown already."""
        if not self.zoom:
            return False
        self.zoom = self.zoom[:-1]
        self._lay_out()
        return True

    def _lay_out(self) -> None:
        width = self.scrollable_content_region.width
        if self._graph is None or not width:
            return
        self._lines = self._graph.lines(self.zoom, width) if self.whole_ns else []
        self.virtual_size = Size(width, len(self._lines))
        while self._path and self.chosen is None:
            self._path = self._path[:-1]
        self.refresh()

    def on_resize(self, _: Resize) -> None:
        """Lay the graph out for the new width."""
        self._lay_out()

    def render_line(self, y: int) -> Strip:
        """Draw a line of boxes, each with its name and a line at its end."""
        y += self.scroll_offset.y
        strips, column = list[Segment](), 0
        for box in self._lines[y] if y < len(self._lines) else []:
            strips.append(Segment(" " * (box.begin - column)))
            name = cut(printable(box.label), box.width - 1) if box.width > 1 else ""
            style = _CHOSEN if box.path == self._path else _COLORS[sum(box.label.encode()) % len(_COLORS)]
            strips.append(Segment(f"{name:<{box.width - 1}}▕", style))
            column = box.begin + box.width
        return Strip(strips).adjust_cell_length(self.scrollable_content_region.width)

    def _choose(self, box: Box) -> None:
        self._path = box.path
        self.scroll_to_region(Region(0, len(box.path), 1, 1), animate=False)
        self.refresh()
        self.post_message(self.Moved())

    def action_beside(self, step: int) -> None:
        """Choose the box `step` boxes to the right (negative: to the left) on the line."""
        if self.chosen is not None:
            boxes = self._lines[len(self._path)]
            index = boxes.index(self.chosen) + step
            self._choose(boxes[min(max(index, 0), len(boxes) - 1)])

    def action_above(self) -> None:
        """Choose the caller of the chosen function."""
        if self._path:
            self._choose(next(box for box in self._lines[len(self._path) - 1] if box.path == self._path[:-1]))

    def action_below(self) -> None:
        """Choose the callee of the chosen function that was blocked longest."""
        depth = len(self._path) + 1
        line = self._lines[depth] if depth < len(self._lines) else []
        callees = [box for box in line if box.path[:-1] == self._path]
        if callees:
            self._choose(max(callees, key=lambda box: box.ns))

    def action_zoom(self) -> None:
        """Zoom into the chosen function: it takes the whole width."""
        self.zoom = self._path
        self._lay_out()

    def on_click(self, event: Click) -> None:
        """Choose the box under the mouse; zoom into it if it is chosen already."""
        y, x = event.y + self.scroll_offset.y, event.x
        for box in self._lines[y] if y < len(self._lines) else []:
            if box.begin <= x < box.begin + box.width:
                if box.path == self._path:
                    self.action_zoom()
                else:
                    self._choose(box)
