# SPDX-License-Identifier: Apache-2.0
"""Show intervals on the whole terminal, with Textual. Only `commands/top.py` imports this module, when it is asked for:
Textual is an optional package. A thread reads the intervals, and a message brings each to the screen. What is shown is
made of the last one and of what was chosen by keys: grouping, order, filter, and the rows that Enter went into."""

import asyncio
import os
import signal
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from perf_offcpu.report.style import cut, fitting, names, pad
from perf_offcpu.structs import frozen
from perf_offcpu.tables import read_table
from perf_offcpu.text import printable
from perf_offcpu.top import plain
from perf_offcpu.top.flame_view import FlameView, Graph
from perf_offcpu.top.interval import Interval
from perf_offcpu.top.segments import write_new
from perf_offcpu.top.thread_page import History, page, sparkline, wait_lines

_MOST_ROWS: Final = 500
_NAME: Final = 40
_PATIENCE_S: Final = 10.0
_AGAIN: Final = "\0"
"""Appended to the table's key of a row, once for each earlier row with the same printed label."""
_IDLE: Final = {"hide": "show", "show": "only", "only": "hide"}
_ORDERS: Final = "blocked runnable running waits average longest now since".split()


@frozen
class Source:
    """Source of the intervals that the screen shows: the parts of `Segments` or `AgentSegments` that it needs."""

    intervals: Iterable[Interval]  # with idle threads; read by a thread of its own
    end: Callable[[], None]  # ends the iteration, from any thread
    cost: Callable[[], Mapping[str, float]]  # returns part of this program → CPU time, % of a CPU
    unread: Callable[[], int]  # returns the number of recordings that were not read in time
    keep: Callable[[Callable[[list[str]], None]], None]  # writes the last recordings, calls back with their paths


@dataclass
class Arrived(Message):
    """Message that an interval is over."""

    interval: Interval
    cost: Mapping[str, float]  # as of `Source.cost`


@dataclass
class Ended(Message):
    """Message that no further interval comes; `problem`: the error, None if the recorder ended."""

    problem: Exception | None


class HelpScreen(ModalScreen[None]):
    """Help on the keys; any key closes it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Yield the widget with the help text."""
        yield Static(Text(self._text), id="help")

    def on_key(self) -> None:
        """Close the help screen."""
        self.dismiss()


class TopApp(App[None]):
    """The full-screen view. `problem`: the error that ended it, or None; `signal`: the signal that did, or 0."""

    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "screen.tcss"
    BINDINGS: ClassVar[list[Any]] = [
        Binding("tab", "turn(1)", "Group", priority=True),
        Binding("shift+tab", "turn(-1)", show=False, priority=True),
        Binding("less_than_sign", "order(-1)", show=False),
        Binding("greater_than_sign", "order(1)", "Order"),
        Binding("slash", "filter", "Filter"),
        Binding("escape", "no_filter", show=False),
        Binding("i", "idle", "Idle"),
        Binding("enter", "stacks", show=False),
        Binding("backspace", "leave", "Back"),
        Binding("g", "flame", "Graph"),
        Binding("f", "freeze", "Freeze"),
        Binding("w", "write", "Write"),
        Binding("s", "picture", show=False),
        Binding("question_mark", "help", "Help"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        *(Binding(str(number), f"choose({number})", show=False) for number in range(10)),
    ]

    def __init__(self, source: Source, keys: Sequence[str], key: str, idle: str) -> None:
        super().__init__()
        self.problem: Exception | None = None
        self.signal = 0
        self._source, self._keys, self._key, self._idle = source, keys, key, idle
        self._order, self._wanted, self._is_frozen, self._is_flame = _ORDERS[0], "", False, False
        self._into: list[tuple[str, str]] = []  # (key, label) of the rows that Enter went into; label "": all
        self._order_of: dict[str, str] = {}  # title of a column → order
        self._interval: Interval | None = None
        self._cost: Mapping[str, float] = {}
        self._history, self._note = History(), ""

    def compose(self) -> ComposeResult:
        """Yield the widgets of the screen."""
        yield Static(Text("Recording begins …"), id="head")
        yield Static("", id="path")
        yield DataTable(cursor_type="row", zebra_stripes=True, id="table")
        with VerticalScroll(id="stacks"):
            yield Static("", id="stack_text")
        yield FlameView()
        yield Input(placeholder="name contains", id="filter")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Start the thread that reads intervals, and handle SIGINT and SIGTERM."""
        self.query_one(DataTable).focus()
        end = partial(self._on_signal, asyncio.get_running_loop())
        self._handlers = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
        threading.Thread(target=self._read, daemon=True).start()

    def _on_signal(self, loop: asyncio.AbstractEventLoop, number: int, _frame: object) -> None:
        """End the program: after _PATIENCE_S by force, as a terminal that reads nothing would block it for ever."""
        self.signal = number
        last = threading.Timer(_PATIENCE_S, os._exit, (128 + number,))
        last.daemon = True
        last.start()
        loop.call_soon_threadsafe(self.exit)

    def _read(self) -> None:
        """Read the intervals, in a thread, and post each as a message; then post the end."""
        problem = None
        try:
            for interval in self._source.intervals:
                self.post_message(Arrived(interval, self._source.cost()))
        except Exception as error:
            problem = error
        self.post_message(Ended(problem))

    def on_unmount(self) -> None:
        """End the thread that reads, and restore the signal handlers."""
        self._source.end()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def on_arrived(self, message: Arrived) -> None:
        """Show a new interval, unless the screen is frozen."""
        self._history.add(message.interval, int(message.interval.showing(self._idle).now().sum()))
        if not self._is_frozen:
            self._interval, self._cost = message.interval, message.cost
            self._show()

    def on_ended(self, message: Ended) -> None:
        """Exit after an error; if the recorder has ended, keep the last interval on the screen."""
        if message.problem is not None:
            self.problem = message.problem
            self.exit()
        else:
            self.sub_title = "ended"
            self._is_frozen = True
            self._show_path()

    def on_resize(self) -> None:
        """Lay out the screen after the next refresh: the new size is set after this handler."""
        self.call_after_refresh(self._show)

    # Keys

    def action_turn(self, step: int) -> None:
        """Group rows by the key that comes `step` places after the current one."""
        self._group_by(self._keys[(self._keys.index(self._key) + step) % len(self._keys)])

    def action_choose(self, number: int) -> None:
        """Group rows by the key of this number, from 1; 0 is 10."""
        if 0 < (number or 10) <= len(self._keys):
            self._group_by(self._keys[(number or 10) - 1])

    def action_order(self, step: int) -> None:
        """Sort rows by the column that comes `step` places after the current one."""
        self._order = _ORDERS[(_ORDERS.index(self._order) + step) % len(_ORDERS)]
        self._show()

    def action_idle(self) -> None:
        """Switch between hiding idle threads, showing them, and showing them alone."""
        self._idle = _IDLE[self._idle]
        self._show()

    def action_freeze(self) -> None:
        """Freeze the screen at the shown interval, or end that."""
        self._is_frozen = not self._is_frozen
        self._show_path()

    def action_write(self) -> None:
        """Write the last recordings into the working directory at the end of the interval, then show their names."""
        if self.sub_title == "ended":
            self._tell("the recording has ended")
            return
        self._tell("writing …")
        self._source.keep(lambda paths: self.call_from_thread(self._tell, ", ".join(paths) or "nothing was written"))

    def action_picture(self) -> None:
        """Write the screen as an SVG file into the working directory, and show its name or the error."""
        name = time.strftime("perf-offcpu-top-%Y%m%d%H%M%S.svg")
        try:
            write_new(name, [self.export_screenshot().encode()])
        except OSError as problem:
            name = f"{name}: {problem.strerror}"
        self._tell(name)

    def _tell(self, note: str) -> None:
        self._note = note
        self._show_path()

    def action_filter(self) -> None:
        """Show the input field of the filter, a text that labels contain."""
        field = self.query_one(Input)
        field.display = True
        field.focus()

    def action_no_filter(self) -> None:
        """Remove the filter and its input field."""
        field = self.query_one(Input)
        field.value, field.display = "", False
        self.query_one(DataTable).focus()

    def action_help(self) -> None:
        """Show the help on the keys."""
        keys = textwrap.fill(", ".join(self._keys), 56).replace("\n", f"\n{'':18}")
        self.push_screen(HelpScreen(dict(read_table(__file__))["help"]["text"].format(keys=keys)))

    def action_leave(self) -> None:
        """Go back: zoom out of a part of the flame graph, leave the flame graph, or leave the row that Enter opened."""
        if self._is_flame:
            if self.query_one(FlameView).leave_zoom():
                self._show_path()
            else:
                self.action_flame()
        elif self._into:
            self._key, _ = self._into.pop()
            self._show()

    def action_stacks(self) -> None:
        """Go from the page of a thread to the table of its stacks."""
        if self._is_page and not self._is_flame:
            self._into.append((self._key, ""))
            self._key = "stack"
            self._show()

    def action_flame(self) -> None:
        """Show the flame graph, or leave it."""
        self._is_flame = not self._is_flame
        self._show()
        if not self._is_flame and not self._is_text:
            self.query_one(DataTable).focus()

    def on_flame_view_moved(self) -> None:
        """Show the path with the function that is now chosen."""
        self._show_path()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter rows by the text typed so far."""
        self._wanted = event.value
        self._show()

    def on_input_submitted(self) -> None:
        """Move the focus to the table; the filter stays."""
        self.query_one(DataTable).focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open a row: show its threads; of a thread, its page; of a stack of a thread, its single waits."""
        if event.row_key.value is not None:
            self._into.append((self._key, event.row_key.value.rstrip(_AGAIN)))
            self._key = "thread"
            self.action_no_filter()
            self._show()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort rows by the column that was clicked."""
        self._order = self._order_of.get(event.label.plain, self._order)
        self._show()

    # What is shown

    @property
    def _is_page(self) -> bool:
        """Return True if the page of a thread is open."""
        key, label = self._into[-1] if self._into else ("", "")
        return key == "thread" and bool(label) and not self._is_waits

    @property
    def _is_waits(self) -> bool:
        """Return True if the single waits of a stack of a thread are open."""
        return any(not label for _, label in self._into[:-1])

    @property
    def _is_text(self) -> bool:
        """Return True if lines of text are shown in place of a table."""
        return self._is_page or self._is_waits

    def _group_by(self, key: str) -> None:
        if not self._is_text:
            self._key = key
            self._show()

    def _show(self) -> None:
        """Lay out the screen from the interval and from what was chosen by keys."""
        if self._interval is None:
            return
        interval = self._interval.showing(self._idle)
        self.query_one("#head", Static).update(Text("\n".join(self._head(interval))))
        for key, label in self._into:
            interval = interval.narrowed(key, label) if label else interval
        self.query_one("#stacks").display = self._is_text and not self._is_flame
        table: DataTable[Text] = self.query_one(DataTable)
        table.display = not self._is_text and not self._is_flame
        flame = self.query_one(FlameView)
        flame.display = self._is_flame
        if self._is_flame:
            flame.show(Graph(interval))
            flame.focus()
        elif self._is_text:
            lines = wait_lines(interval) if self._is_waits else page(interval, self._history)
            self.query_one("#stack_text", Static).update(Text("\n".join(lines)))
            self.query_one("#stacks").focus()
        else:
            self._fill(table, interval)
            if not isinstance(self.focused, Input):
                table.focus()
        self._show_path()

    def _show_path(self) -> None:
        """Show the line on what is shown: opened rows, grouping and order, filter, note."""
        width = max(self.size.width - 2, 20)
        words = [f"{key} {cut(label, width // 3)}" for key, label in self._into if label]
        flame = self.query_one(FlameView)
        if self._is_flame and flame.chosen is not None:
            box = flame.chosen
            words.append(f"{box.label}: {box.ns / max(flame.whole_ns, 1):.0%} of the time blocked")
        elif not self._is_flame:
            text = "single waits" if self._is_waits else "waits and stacks: Enter" if self._is_page else ""
            words.append(text or f"by {self._key}, most {self._order} first")
        words += [f"idle: {self._idle}"] + (["frozen"] if self._is_frozen else [])
        words += [f"filter: {self._wanted}"] if self._wanted else []
        words += [self._note] if self._note else []
        path = printable(" › ".join(words))
        self.query_one("#path", Static).update(Text(path if len(path) <= width else f"…{path[1 - width :]}"))

    def _head(self, interval: Interval) -> list[str]:
        width = max(self.size.width - 2, 20)
        lines = [plain.head(interval), plain.cause_text(interval)]
        lines.append(f"C{plain.cost_text(self._cost)[1:]}. {plain.losses_text(interval, self._source.unread())}")
        blocked = f"Blocked now, last minute: {sparkline(self._history.now())}"
        return [cut(line, width) for line in (*lines, *plain.bars(interval, width), blocked)]

    def _fill(self, table: "DataTable[Text]", interval: Interval) -> None:
        """Fill the table; the cursor stays on its row, if the table still has it."""
        matching = [row for row in interval.rows(self._key) if self._wanted.lower() in row.label.lower()]
        rows = sorted(matching, key=lambda row: (-(getattr(row, self._order) or 0), row.label))[:_MOST_ROWS]
        *numbers, name = plain.columns_of(interval, self._key, rows)
        self._order_of = dict(zip((column.title for column in numbers), _ORDERS, strict=True))
        name = names(name.title, [cut(label, max(_NAME, self.size.width // 3)) for label in name.cells])
        shown = fitting([name, *numbers], self.size.width - 2)
        cursor_row, cursor_column, before = table.cursor_row, table.cursor_column, None
        if table.is_valid_row_index(cursor_row):
            before = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value
        table.clear(columns=True)
        for column in shown:
            table.add_column(Text(column.title), width=column.width)
        seen = Counter[str]()
        for row, *cells in zip(rows, *(column.cells for column in shown), strict=True):
            texts = (pad(text, column.width, column.left) for text, column in zip(cells, shown, strict=True))
            table.add_row(*map(Text, texts), key=row.label + _AGAIN * seen[row.label])
            seen[row.label] += 1
        keys = [row.value for row in table.rows]
        cursor_row = keys.index(before) if before in keys else min(cursor_row, len(keys) - 1)
        if cursor_row >= 0:
            table.move_cursor(row=cursor_row, column=cursor_column)
