# SPDX-License-Identifier: Apache-2.0
"""The full-screen view of `top`, driven by keys (Textual's pilot)."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from builders.profile import ProfileBuilder
from builders.refused import refused
from textual.pilot import Pilot
from textual.widgets import DataTable, Static
from unit.top.test_interval import COST, profile

from perf_offcpu.commands.top import KEYS
from perf_offcpu.errors import PerfOffcpuError
from perf_offcpu.top.flame_view import FlameView
from perf_offcpu.top.interval import Interval, interval_of
from perf_offcpu.top.screen import HelpScreen, Source, TopApp
from perf_offcpu.top.thread_page import sparkline

Driver = Pilot[None]


def app_of(*intervals: Interval) -> TopApp:
    source = Source(intervals, lambda: None, lambda: COST, lambda: 0, lambda done: done(["perf.data.1"]))
    return TopApp(source, KEYS, "comm", "hide")


def drive(app: TopApp, steps: Callable[[Driver], Awaitable[None]]) -> None:
    async def run() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            while app._interval is None:
                await pilot.pause(0.01)
            await pilot.pause()
            await steps(pilot)

    asyncio.run(run())


def labels(app: TopApp) -> list[str | None]:
    return [row.value for row in app.query_one(DataTable).rows]


def text(app: TopApp, widget: str) -> str:
    return str(app.query_one(widget, Static).render())


def screens(app: TopApp) -> list[bool]:
    return [isinstance(screen, HelpScreen) for screen in app.screen_stack]


def shown() -> TopApp:
    return app_of(interval_of(profile(), idle="show"))


def test_keys_choose_rows_and_their_order() -> None:
    app = shown()

    async def steps(pilot: Driver) -> None:
        assert labels(app) == ["a", "b", "runs\\x1b[31m"]
        await pilot.press("i")
        assert "idle" in labels(app) and "idle: show" in text(app, "#path")
        await pilot.press("i", "i", "greater_than_sign", "greater_than_sign")
        assert labels(app) == ["runs\\x1b[31m", "a", "b"], "by time running"
        await pilot.press("4")
        assert set(labels(app)) == {"disk", "lock", "other"}
        await pilot.press("shift+tab", "less_than_sign", "less_than_sign")
        assert labels(app)[0] == "b 3"

    drive(app, steps)


def test_enter_goes_to_threads_and_stacks_and_backspace_back() -> None:
    app = shown()

    async def steps(pilot: Driver) -> None:
        await pilot.press("enter")
        assert labels(app) == ["a 1", "a 2"] and text(app, "#path").startswith("comm a › by thread")
        await pilot.press("enter")
        shown = text(app, "#stack_text")
        assert "1.250" not in shown and "futex_wait" in shown
        assert "Running   0.250 s/s; last minute: ▂" in shown and "Blocked   0.625 s/s; last minute: ▅" in shown
        assert "500.000 ms, so far: lock, in [unknown], on m in a" in shown
        assert "Waits that ended, the longest 1 of 1:\n    3000.000 ms, 1.000 s ago: lock" in shown
        await pilot.press("tab")
        assert "waits and stacks" in text(app, "#path"), "there is no other grouping of a page"
        await pilot.press("enter")
        assert labels(app) == ["main: futex_wait < main"] and " › a 1 › by stack" in text(app, "#path").replace(
            "thread ", ""
        )
        await pilot.press("enter")
        assert text(app, "#stack_text").splitlines() == [
            "Blocked now:",
            "     500.000 ms, so far: lock, in [unknown], on m in a",
            "",
            "Waits that ended, the latest 1 of 1:",
            "    3000.000 ms, 1.000 s ago: lock, in [unknown], on m in a, woken by [unknown]",
        ]
        await pilot.press("enter", "tab", "backspace", "6", "enter")
        assert "object m in a › single waits" in text(app, "#path"), "other rows of a thread have single waits, too"
        await pilot.press("backspace", "backspace", "backspace")
        assert labels(app) == ["a 1", "a 2"]
        await pilot.press("backspace", "backspace")
        assert labels(app)[0] == "a"

    drive(app, steps)


def test_a_page_that_an_object_led_to_has_the_times_of_its_thread() -> None:
    app = shown()

    async def steps(pilot: Driver) -> None:
        await pilot.press("6", "down", "enter", "enter")
        assert app._into == [("object", "m in a"), ("thread", "a 1")]
        assert "Running   0.250 s/s; last minute: ▂" in text(app, "#stack_text")
        app._interval = interval_of(ProfileBuilder(meta={"begin_ns": 1, "end_ns": 2}).build())
        app._show()
        assert "s/s" not in text(app, "#stack_text"), "nothing is known of the thread"

    drive(app, steps)


def test_clicks_choose_enter_and_sort() -> None:
    app = shown()

    async def steps(pilot: Driver) -> None:
        await pilot.click(DataTable, offset=(30, 2))
        assert app.query_one(DataTable).cursor_row == 1 and not app._into
        app._show()  # as a new interval does
        await pilot.click(DataTable, offset=(30, 2))
        assert app._into == [("comm", "b")] and labels(app) == ["b 3"]
        await pilot.press("backspace")
        places = [column.label.plain.strip() for column in app.query_one(DataTable).ordered_columns]
        assert places[:3] == ["Comm", "Blocked s/s", "For CPU s/s"]
        await pilot.click(DataTable, offset=(app.query_one(DataTable).ordered_columns[0].get_render_width(
            app.query_one(DataTable)) + 14, 0))  # fmt: skip
        assert "most runnable first" in text(app, "#path")

    drive(app, steps)


def test_names_that_are_equal_when_printed_are_rows_of_their_own() -> None:
    comms = list(enumerate(("a\n", "a\\n", "a"), 1))
    builder = ProfileBuilder(meta={"begin_ns": 0, "end_ns": 10**9}, comms=[(tid, tid, 0, name) for tid, name in comms])
    for tid, name in comms:
        builder.sample(name, ["f"], 4 - tid, tid=tid, time_ns=10**9)
    app = app_of(interval_of(builder.build(), idle="show"))

    async def steps(pilot: Driver) -> None:
        assert [label.rstrip("\0") for label in filter(None, labels(app))] == ["a\\n", "a\\n", "a"]
        await pilot.press("down", "enter")
        assert set(labels(app)) == {"a\\n 1", "a\\n 2"}

    drive(app, steps)


def test_a_flame_graph_is_walked_and_zoomed() -> None:
    app = shown()

    async def steps(pilot: Driver) -> None:
        await pilot.press("g")
        flame = app.query_one(FlameView)
        lines = [str(flame.render_line(y).text) for y in range(flame.virtual_size.height)]
        assert lines[0].startswith("all") and lines[1].startswith("a ") and all(len(line) == 77 for line in lines)
        await pilot.press("down", "down")
        assert flame.chosen is not None and flame.chosen.path[1:] == (flame.chosen.label,)
        assert text(app, "#path").startswith(f"{flame.chosen.label}: ") and " % of the time" not in text(app, "#path")
        await pilot.press("enter")
        assert flame.zoom == flame.chosen.path and flame.render_line(2).text.startswith(flame.chosen.label)
        await pilot.resize_terminal(200, 60)
        await pilot.pause()
        assert flame.chosen.width == 197 and flame.chosen.path == flame.zoom
        await pilot.press("up", "backspace", "backspace", "right", "left")
        assert not flame.leave_zoom(), "the whole graph is shown"
        await pilot.click(FlameView, offset=(196, 1))
        assert text(app, "#path").startswith("b: "), "what only runs has no time there"
        await pilot.press("backspace")
        assert not app._is_flame and labels(app) == ["a", "b", "runs\\x1b[31m"]

    drive(app, steps)


def test_the_screen_and_the_last_minute_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = shown()

    async def steps(pilot: Driver) -> None:
        await pilot.press("s")
        (picture,) = tmp_path.iterdir()
        assert picture.name in text(app, "#path") and "blocked now" in picture.read_text().replace("&#160;", " ")
        app._source = replace(app._source, keep=lambda done: Thread(target=done, args=(["perf.data.1"],)).start())
        app.sub_title = ""
        await pilot.press("w")
        while "perf.data.1" not in text(app, "#path"):
            await pilot.pause(0.01)

    drive(app, steps)


def test_a_filter_is_typed_and_removed() -> None:
    app = shown()

    async def steps(pilot: Driver) -> None:
        await pilot.press("slash", *"RUN", "enter")
        assert labels(app) == ["runs\\x1b[31m"] and "filter: RUN" in text(app, "#path")
        await pilot.press("slash", "q", "escape")
        assert len(labels(app)) == 3, "q was typed, and ended nothing"

    drive(app, steps)


def test_head_and_help_fit_on_a_small_terminal() -> None:
    app = shown()

    async def steps(pilot: Driver) -> None:
        head = text(app, "#head").splitlines()
        assert "2 threads blocked now" in head[0] and head[1].startswith("First cause: ")
        assert any(line.startswith("disk") and "█" in line for line in head) and head[-1].endswith("█")
        footer = "".join(segment.text for segment in pilot.app.screen._compositor.render_strips()[-1])
        assert footer.rstrip().endswith("q Quit"), "all keys fit"
        assert all(len(line) <= 78 for line in head) and app.query_one(DataTable).size.height > 5
        await pilot.press("question_mark")
        app._show()  # as a new interval does
        assert screens(app) == [False, True]
        await pilot.press("x")
        assert screens(app) == [False]
        await pilot.resize_terminal(200, 60)
        await pilot.pause()
        wide = len(app.query_one(DataTable).columns)
        await pilot.resize_terminal(60, 20)
        await pilot.pause()
        assert len(app.query_one(DataTable).columns) < wide

    drive(app, steps)


def test_a_frozen_screen_stays_and_the_end_of_the_command_freezes() -> None:
    first, second = (interval_of(profile(), idle="show") for _ in range(2))
    app = app_of(first, second)

    async def steps(pilot: Driver) -> None:
        while not app._is_frozen:
            await pilot.pause(0.01)
        assert app._interval is second and "frozen" in text(app, "#path")
        await pilot.press("q")

    drive(app, steps)
    assert app.problem is None and not app.is_running


def test_a_problem_of_the_recorder_ends_it() -> None:
    def intervals() -> Iterator[Interval]:
        yield from ()
        raise PerfOffcpuError("there is no process 1")

    app = TopApp(Source(intervals(), lambda: None, lambda: COST, lambda: 0, lambda done: None), KEYS, "comm", "hide")
    asyncio.run(app.run_async(headless=True))
    assert str(app.problem) == "there is no process 1"


def test_many_threads_and_hostile_names() -> None:
    builder = ProfileBuilder(meta={"begin_ns": 0, "end_ns": 10**9})
    for number in range(5000):
        builder.sample(f"[red]{number}\n", [f"f{depth}" for depth in range(3)], number + 1, tid=number, time_ns=10**9)
    builder.sample("deep", [f"f{depth}" for depth in range(250)], 10**9, tid=6000, time_ns=10**9)
    app = app_of(interval_of(builder.build(), idle="show"))

    async def steps(pilot: Driver) -> None:
        assert labels(app)[:2] == ["deep", "[red]4999\\n"] and len(labels(app)) == 500
        app._key = "comm"
        await pilot.press("enter", "enter")
        assert len(text(app, "#stack_text").splitlines()) > 250
        await pilot.press("g")
        flame = app.query_one(FlameView)
        assert flame.virtual_size.height == 252
        for _ in range(251):
            flame.action_below()
        await pilot.pause()
        assert flame.scroll_offset.y > 200 and flame.chosen is not None and flame.chosen.label == "f249"

    drive(app, steps)


def test_without_textual(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    assert "pip install 'perf-offcpu[tui]', or take --plain" in refused(capsys, "top", status=1)


@pytest.mark.parametrize(("values", "line"), [([], ""), ([0, 0], "  "), ([0, 1, 8], " ▁█")])
def test_a_sparkline(values: list[int], line: str) -> None:
    assert sparkline(values) == line
