# SPDX-License-Identifier: Apache-2.0
"""The page of a recording in a real browser: sums, controls, names, screens, the network."""

import json
import random
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.webdriver import KEYS, Browser, Show, javascript, text
from builders.large import large_profile
from builders.profile import ProfileBuilder, kernel
from builders.program import run

from perf_offcpu.analysis.classes.wait_classes import BY_LABEL
from perf_offcpu.analysis.selection.select import Selection, select_events, select_samples
from perf_offcpu.analysis.selection.time_windows import parse_windows
from perf_offcpu.api import load
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag, Tasks
from perf_offcpu.report.document import document
from perf_offcpu.report.summary import summarize

DATA = Path(__file__).resolve().parents[1] / "data"
MS = 10**6
HOSTILE = [
    "<img src=x onerror=hacked=1>", "</script><script>hacked=1</script>", "'; touch /tmp/hacked; '",
    "\u2028hacked=1\u2029", "<!--<script>",
]  # fmt: skip
FORMAT = "html"


@pytest.fixture(autouse=True)
def no_network(browser: Browser) -> Iterator[None]:
    """No page loads anything."""
    yield
    assert browser.run("return performance.getEntriesByType('resource').map((one) => one.name)") == []


def threads(number: int = 3) -> Profile:
    """Threads that wait in turn for a lock, a disk and a pipe, 10 ms each, from 1 s on."""
    builder = ProfileBuilder(meta={"hostname": "box", "arch": "x86_64", "source": "p.data"})
    where = [("futex_wait", 202), ("io_schedule", 0), ("pipe_read", 0)]
    for at in range(30):
        for thread in range(number):
            function, call = where[(at + thread) % 3]
            end = 10**9 + (at + 1) * 20 * MS + thread
            builder.sample(
                f"t{thread}", ["main", f"work_{thread}", kernel(function)], 10 * MS + at, time_ns=end,
                tid=101 + thread, pid=100 + thread // 2, state=1, syscall=call, runq_ns=MS,
                wakeup_ns=end - MS, waker_tid=101 + (thread + 1) % number,
                waker_pid=100 + (thread + 1) % number // 2, waker_path=["main", "unlock"], cpu=thread,
            )  # fmt: skip
    builder.sample("t0", ["main", kernel("futex_wait")], 3 * MS, tid=101, pid=100, count=50,
                   flags=SampleFlag.AGGREGATED, time_ns=10**9 + 200 * MS)  # fmt: skip
    return builder.build()


@pytest.fixture
def shown(show: Show) -> Profile:
    show(profile := threads())
    return profile


def press(browser: Browser, selector: str) -> None:
    """Click on an element, wherever it is in the window."""
    browser.click(*browser.run(javascript("press"), selector))


def place(browser: Browser, tid: int, at_ns: float) -> tuple[float, float]:
    """Return where a thread's lane shows a time (ns since the origin)."""
    x, y = browser.run(javascript("place"), tid, at_ns)
    return x, y


def drag(browser: Browser, begin: tuple[float, float], end: tuple[float, float]) -> None:
    browser.run(javascript("drag"), *begin, *end, False)
    browser.settle()


# ---- sums ----------------------------------------------------------------------------------------------


def check_sums(sums: dict[str, Any], profile: Profile, selection: Selection) -> None:
    """Compare the page's sums with those of `report --json`: every weight to the unit."""
    for key in ("class", "waker", "syscall", "state"):
        rows = sums["keys"][key]
        found = document(summarize(select_samples(profile, selection), keys=(key,), verdict=False))
        expected = {r["values"][0]: (r["weight"], r["count"], r["runq"] or 0) for r in found["groups"]["rows"]}
        assert {label: (int(w), c, int(r)) for label, w, c, r in rows} == expected, key
    total = found["subject"]
    assert [int(sums["total"][0]), sums["total"][1]] == [total["weight"], total["count"]]
    stacks = {(row["comm"], *(one["name"] for one in row["frames"])): row["weight"] for row in found["stacks"]}
    assert {tuple(path): int(weight) for path, weight, _ in sums["stacks"]} == stacks
    buckets = {str(one["from"]): (one["weight"], one["count"]) for one in found["histogram"]["buckets"] if one["count"]}
    assert {edge: (int(weight), count) for edge, weight, count in sums["lengths"]} == buckets
    by_tid: dict[int, int] = {}
    assert total["unit"] == "ns"
    for row in found["threads"]:
        by_tid[row["tid"]] = by_tid.get(row["tid"], 0) + row["weight"]
    assert {tid: int(weight) for tid, weight, _ in sums["tracks"]} == {t: w for t, w in by_tid.items() if w}


def selections(profile: Profile, number: int, seed: int) -> Iterator[tuple[list[Any], Selection]]:
    """Return random (from, to, tids, classes) and the same for the report."""
    rng = random.Random(seed)
    times = profile.samples.time_ns[profile.samples.time_ns >= 0]
    first, last = int(times.min()), int(times.max())
    tids = sorted(set(profile.samples.tid.tolist()))
    for _ in range(number):
        span = sorted(rng.randint(first, last) for _ in range(2)) if rng.random() < 0.8 else None
        chosen = rng.sample(tids, rng.randint(1, len(tids))) if rng.random() < 0.6 else None
        classes = rng.sample(sorted(BY_LABEL), 3) if rng.random() < 0.5 else None
        window = parse_windows(",".join(f"{t // 10**9}.{t % 10**9:09}" for t in span)) if span else ()
        selection = Selection(
            windows=window, tids=tuple(chosen or ()), classes=tuple(BY_LABEL[one] for one in classes or ())
        )
        yield [span, chosen, classes], selection


@pytest.mark.long
@pytest.mark.parametrize("made", [threads, lambda: large_profile(4000, 300)], ids=["threads", "large"])
def test_sums_of_selections_are_those_of_the_report(browser: Browser, show: Show, made: Callable[[], Profile]) -> None:
    profile = made()
    show(profile)
    script = javascript("selected_sums")
    seen = 0
    for (span, tids, classes), selection in selections(profile, 12, 7):
        sums = browser.run(script, span and list(map(str, span)), tids, classes)
        check_sums(sums, profile, selection)
        seen += int(sums["total"][1])
    assert seen, "all selections were empty"


def test_the_command_of_a_selection_has_its_sums(browser: Browser, tmp_path: Path) -> None:
    """A page of the command line, with a real recording; its command, run as it stands."""
    options = ["-i", str(DATA / "demo.data"), "--kallsyms", str(DATA / "demo.kallsyms")]
    options += ["--symfs", str(DATA / "demo.symfs")]
    page = tmp_path / "demo.html"
    run("report", "--html", str(page), *options)
    browser.show(page, "window.page")
    assert text(browser, "verdict").startswith("./waiter --rounds 10 · 0.249 s · 14 threads on 2 CPUs")
    script = javascript("selected_command")
    for span, tracks, classes in (
        ((10 * MS, 90 * MS), [0, 1, 2, 5], ["sleep", "lock"]),
        ((0, 60 * MS), [3, 4, 6], ["poll", "lock", "other"]),
    ):
        command, sums = browser.run(script, *span, tracks, classes)
        program, verb, *words = shlex.split(command)
        assert (program, verb) == ("perf-offcpu", "report")
        for key in ("class", "object", "waker", "syscall", "state"):
            found = json.loads(run("report", "--json", "--sort", key, *words).stdout)
            assert found["subject"]["weight"] == int(sums["total"][0]) > 0
            expected = {row["values"][0]: (row["weight"], row["count"]) for row in found["groups"]["rows"]}
            assert {label: (int(weight), count) for label, weight, count, _ in sums["keys"][key]} == expected, key
    assert browser.console() == []


@pytest.mark.parametrize("name", ["atend", "direct", "hybrid", "sched"])
def test_recordings_of_perf(browser: Browser, show: Show, name: str) -> None:
    profile = select_events(load(DATA / "perf-7.2" / f"{name}.data"))
    show(profile)
    check_sums(browser.run("return page.sums()"), profile, Selection())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_extreme_values(browser: Browser, show: Show, seed: int) -> None:
    """Times, ids and lengths that only damaged recordings have: the page draws, and its total is right."""
    rng, builder = random.Random(seed), ProfileBuilder()
    for _ in range(40):
        time = rng.choice([-1, 0, 5, 2**31, 2**40, 2**53 + 1, 2**60]) + rng.randint(0, 1000)
        builder.sample(
            rng.choice(["a", "\x00\x1b", ""]), ["f"] * rng.randint(0, 30), rng.choice([0, 1, 2**33, 2**50]),
            time_ns=rng.choice([time, -1]), tid=rng.choice([-1, 0, 2**31 - 1]), pid=rng.choice([-1, 0, 7]),
            runq_ns=rng.choice([-1, 0, 2**51]), wakeup_ns=rng.choice([-1, time]), count=rng.choice([0, 2**40]),
            flags=SampleFlag(rng.choice([0, 2, 4, 8, 128])), state=rng.choice([-1, 2**30]), cpu=2**31 - 1,
        )  # fmt: skip
    profile = builder.build()
    show(profile)
    assert browser.run(javascript("extremes")) == str(int(profile.samples.period.sum()))


def test_weights_above_2_to_53_stay_exact(browser: Browser, show: Show) -> None:
    builder = ProfileBuilder()
    for tid in range(3):
        builder.sample("a", ["f"], 2**53 + 1, tid=tid, time_ns=2**54)
    show(builder.build())
    assert browser.run("return page.sums()")["total"] == [str(3 * (2**53 + 1)), 3]
    assert f"{3 * (2**53 + 1):,} ns" in text(browser, "sums")


# ---- controls ------------------------------------------------------------------------------------------


def test_a_drag_over_lanes_selects_time_and_threads(browser: Browser, shown: Profile) -> None:
    drag(browser, place(browser, 101, 100 * MS), place(browser, 102, 300 * MS))
    script = """
        const { sel } = page.state;
        return [sel.from, sel.to, [...sel.tracks].map((track) => page.rec.data.tracks.tid[track])];
    """
    sel = browser.run(script)
    assert sel[0] == pytest.approx(100 * MS, abs=MS) and sel[1] == pytest.approx(300 * MS, abs=MS)
    assert sorted(sel[2]) == [101, 102] and text(browser, "subject").startswith("2 threads · 2")
    press(browser, "#zoomsel")
    assert browser.run("return page.lanes.view.to - page.lanes.view.from") < 220 * MS
    press(browser, "#clear")
    assert text(browser, "subject") == "Everything"


def test_a_drag_on_the_axis_selects_all_threads(browser: Browser, shown: Profile) -> None:
    x0, _ = place(browser, 101, 100 * MS)
    x1, _ = place(browser, 101, 200 * MS)
    y = browser.run("const box = document.getElementById('axis').getBoundingClientRect(); return box.bottom - 6")
    drag(browser, (x0, y), (x1, y))
    assert browser.run("return page.state.sel.tracks") is None and text(browser, "subject").startswith("100")


def test_a_click_shows_a_wait_its_stack_and_its_waker(browser: Browser, shown: Profile) -> None:
    browser.click(*place(browser, 102, 27 * MS))
    panel = text(browser, "panel")
    assert "Thread" in panel and "t1 102 (pid 100)" in panel
    assert "10 ms (10,000,001 ns)" in panel and "1 ms (1,000,000 ns): woken, not yet running" in panel
    assert "Stack of the waker" in panel and "unlock" in panel and "pipe_read" in panel
    assert "read" in panel and "t2 103 (pid 101)" in panel
    press(browser, "#panel dd:last-of-type button")
    assert browser.run("return page.rec.data.tracks.tid[page.state.cursor]") == 103


def test_objects_and_holders(browser: Browser, show: Show) -> None:
    builder = ProfileBuilder()
    lock = builder.thing("balance_lock in bank")
    for tid, holder in ((11, 12), (12, 13), (13, 11)):
        builder.sample(
            "teller", ["main", "book", kernel("futex_wait")], 5 * MS + tid, pid=10, tid=tid, object=lock,
            holder_tid=holder, switch_out_ns=10**9, time_ns=10**9 + 5 * MS + tid, syscall=202,
        )  # fmt: skip
    profile = builder.build()
    profile.tasks = Tasks.from_rows([(tid, 10, 0, -1) for tid in (11, 12, 13)])
    show(profile)
    sums = browser.run("return page.sums().keys")
    assert [row[:2] for row in sums["object"]] == [["balance_lock in bank", str(15 * MS + 36)]]
    assert sums["function"][0][0] == "book"
    held = {int(label.rpartition(" ")[2]): int(weight) for label, weight, *_ in sums["holder"]}
    assert held == {12: 5 * MS + 11, 13: 5 * MS + 12, 11: 5 * MS + 13}
    browser.run("page.chooseWait(0)")
    assert "balance_lock in bank" in text(browser, "panel")
    press(browser, "#panel dd:last-of-type button, #panel dd:has(button) ~ dd button")
    assert browser.run("return page.rec.data.tracks.tid[page.state.cursor]") == 12, "the holder's lane"


def test_waits_drawn_by_length_have_a_weight_besides(browser: Browser, show: Show) -> None:
    builder = ProfileBuilder()
    for at in range(6):
        builder.sample(
            "a", ["f", kernel("futex_wait")], 4 * MS, tid=1 + at % 2, time_ns=10**9 + 10 * MS * at, syscall=202,
            flags=SampleFlag.SAMPLED, longest_ns=(1 + at) * 500_000, count=8 // (1 + at), runq_ns=MS,
        )  # fmt: skip
    profile = builder.build()
    show(profile)
    sums = browser.run("return page.sums()")
    check_sums(sums, profile, Selection())
    assert sums["total"][0] == str(24 * MS) and len(sums["lengths"]) > 1
    lengths = browser.run("return [...page.rec.end].map((end, row) => end - page.rec.begin[row])")
    assert sorted(lengths) == [(1 + at) * 500_000 for at in range(6)]
    browser.run("page.chooseWait(0)")
    panel = text(browser, "panel")
    assert "500 us (500,000 ns)" in panel and "4 ms (4,000,000 ns) in about 8 waits: drawn by length" in panel
    assert "125 us" in panel, "the run queue within its length"


def test_keys(browser: Browser, shown: Profile) -> None:
    browser.run("document.getElementById('lanes').focus()")
    span = "return page.lanes.view.to - page.lanes.view.from"
    whole = browser.run(span)
    browser.type("+")
    assert browser.run(span) == pytest.approx(whole / 2)
    begin = browser.run("return page.lanes.view.from")
    browser.type(KEYS["left"])
    assert browser.run("return page.lanes.view.from") == pytest.approx(begin - whole / 20)
    browser.type("-0" + KEYS["down"] + KEYS["down"] + "]")
    assert browser.run(span) == pytest.approx(whole)
    first = browser.run("return page.state.wait")
    browser.type("]]")
    assert browser.run("return page.state.wait") == first + 2
    browser.type("[")
    assert browser.run("return page.state.wait") == first + 1
    assert "woken by" in text(browser, "status"), "a screen reader hears the wait"
    browser.type(KEYS["enter"])
    assert browser.run("return page.state.sel.tracks.size") == 1
    browser.type(KEYS["escape"])
    assert text(browser, "subject") == "Everything" and browser.run("return page.state.wait") == -1


def test_wheel_zooms_and_pans(browser: Browser, shown: Profile) -> None:
    turn = javascript("wheel")
    x, y = place(browser, 101, 200 * MS)
    from_, to = browser.run(turn, x, y, {"deltaY": -300, "ctrlKey": True})
    assert place(browser, 101, 200 * MS)[0] == pytest.approx(x, abs=1), "the time under the pointer stays"
    moved, _ = browser.run(turn, x, y, {"deltaY": 100, "shiftKey": True})
    assert moved > from_ and to - from_ < 600 * MS
    browser.run(turn, x, y, {"deltaY": 100})
    assert browser.run("return page.lanes.view.from") == moved, "the bare wheel scrolls"


def test_fingers_pan_and_zoom(browser: Browser, shown: Profile) -> None:
    before, panned, zoomed, selected = browser.run(javascript("fingers"))
    assert panned[0] > before[0] and panned[1] - panned[0] == pytest.approx(before[1] - before[0])
    assert zoomed[1] - zoomed[0] == pytest.approx((panned[1] - panned[0]) / 3, rel=0.01) and selected is None


def test_the_command_tells_processes_apart(browser: Browser, show: Show) -> None:
    show(ProfileBuilder().sample("a", ["f"], MS, tid=7, pid=1).sample("b", ["f"], MS, tid=7, pid=2).build())
    browser.run("page.selectTracks([1])")
    assert browser.run("return document.getElementById('command').value") == "perf-offcpu report --tid 7 --pid 2"


def test_classes_of_the_legend_select(browser: Browser, show: Show) -> None:
    profile = threads()
    show(profile)
    chips = "return [...document.querySelectorAll('#classes button')].map((one) => one.textContent)"
    assert browser.run(chips) == ["lock", "disk", "pipe"]
    press(browser, "#classes button:nth-child(3)")
    check_sums(browser.run("return page.sums()"), profile, Selection(classes=(BY_LABEL["pipe"],)))
    assert browser.run("return document.querySelectorAll('#panel tr.chosen').length") == 1
    press(browser, "#panel tbody tr:first-child button")
    assert text(browser, "subject") == "Everything"


def test_search_marks_waits_and_frames(browser: Browser, shown: Profile) -> None:
    browser.type("/work_1")
    assert text(browser, "matched") == "300 ms in 30 waits match"
    assert browser.run("return page.state.dim.reduce((sum, one) => sum + one, 0)") == 61
    browser.type(KEYS["escape"])
    assert text(browser, "matched") == "" and browser.run("return page.state.dim") is None


def test_lanes_by_process_and_in_other_orders(browser: Browser, shown: Profile) -> None:
    lanes = """
        const { tid } = page.rec.data.tracks;
        return page.lanes.view.lanes.map((one) => (one.track < 0 ? -one.pid : tid[one.track]));
    """
    assert browser.run(lanes) == [101, 102, 103]
    press(browser, "#group")
    assert browser.run(lanes) == [-100, 101, 102, 103], "a process of one thread has one lane"
    x, y = place(browser, 101, 0)
    left = browser.run("return document.getElementById('lanes').getBoundingClientRect().left")
    browser.click(left + 6, y - 17)
    assert browser.run(lanes) == [-100, 103], "a click on the mark folds the process"
    browser.click(left + 60, y - 17)
    assert text(browser, "subject") == "2 threads"
    browser.run("const s = document.getElementById('sort'); s.value = 'tid'; s.dispatchEvent(new Event('change'));")
    assert browser.run(lanes) == [-100, 103]


def test_tables_flame_graph_and_histogram_follow_the_selection(browser: Browser, shown: Profile) -> None:
    browser.run("page.selectTracks([1])")
    browser.settle()
    labels = {box["label"] for box in browser.run("return page.graph.boxes()")}
    assert "work_1" in labels and "work_0" not in labels
    weights = "return [...document.querySelectorAll('#panel tr[data-weight]')].map((row) => row.dataset.weight)"
    for tab in ("waker", "syscall", "state", "thread", "stack"):
        press(browser, f"#tab-{tab}")
        assert sum(map(int, browser.run(weights))) == 300 * MS + sum(range(30)), tab
    press(browser, "#tab-length")
    assert "10 ms – 20 ms" in text(browser, "panel")
    bars = "[...document.querySelectorAll('#panel td.meter i')].map((one) => one.offsetWidth)"
    assert min(browser.run(f"return {bars}")) > 30, "the only bucket is the largest"
    browser.run("page.select(page.everything())")
    assert "Not in the buckets: 3 ms (3,000,000 ns) in sums of 50 waits" in text(browser, "panel")
    assert "3 ms (3,000,000 ns) in sums of 50 short waits" in text(browser, "placeless")


def test_idle_threads_can_be_left_out(browser: Browser, show: Show) -> None:
    profile = threads()
    show(profile, idle=frozenset({(100, 102)}))
    tids = "return page.lanes.view.lanes.map((one) => page.rec.data.tracks.tid[one.track])"
    assert browser.run(tids) == [101, 103, 102], "idle ones come last"
    press(browser, "#idle")
    assert browser.run(tids) == [101, 103] and text(browser, "idle") == "Hide 1 idle"
    check_sums(browser.run("return page.sums()"), profile, Selection(tids=(101, 103)))
    press(browser, "#idle")
    assert browser.run(tids) == [101, 103, 102] and text(browser, "subject") == "Everything"


def test_critical_path_has_a_lane(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "path.html"
    options = ["-i", str(DATA / "demo.data"), "--kallsyms", str(DATA / "demo.kallsyms")]
    run("convert", "--html", "--critical-path", "--comm", "waiter", "-o", str(page), *options)
    browser.show(page, "window.page")
    title, command = browser.run("return [page.lanes.view.lanes[0].name, document.getElementById('command').value]")
    assert title.startswith("critical path of waiter (pid ") and "--comm" not in command
    script = """
        const box = document.getElementById("lanes").getBoundingClientRect();
        return [box.left + page.lanes.xOf(arguments[0]), box.top + 8];
    """
    browser.hover(*browser.run(script, 100 * MS))
    lines = browser.run("return [...document.querySelectorAll('#tip div')].map((one) => one.textContent)")
    assert lines[0].startswith("waiter: lock wait in ") and lines[2] == "through waiter"
    path = json.loads(run("report", "--json", "--critical-path", "--comm", "waiter", *options).stdout)
    assert browser.run("const { path } = page.rec.data; return path.end.at(-1) - path.begin[0]") == path["total"]
    assert browser.console() == []


def test_buttons_of_the_flame_graph(browser: Browser, shown: Profile) -> None:
    assert "lock" in text(browser, "flamelegend")
    press(browser, "#byclass")
    assert "waiting, kernel" in text(browser, "flamelegend")
    before = {box["label"]: box["y"] for box in browser.run("return page.graph.boxes()")}
    press(browser, "#icicle")
    after = {box["label"]: box["y"] for box in browser.run("return page.graph.boxes()")}
    assert before["all"] > before["main" if "main" in before else "t0"] and after["all"] < min(
        y for label, y in after.items() if label != "all"
    )


COLOUR = javascript("pixels")


PAUSED = ((-10, 11), (19, 600))  # times that are recorded, ms


@pytest.mark.parametrize(("parts", "host", "times", "expected"), [
    (PAUSED, (), (15, 35), ["nothing", "running"]),
    # The first host is recorded for 14 ms, the other one, without threads here, until the end.
    (((-10, 600),), (-10, 14), (13, 35), ["running", "nothing"]),
], ids=["pause", "host"])  # fmt: skip
def test_nothing_runs_while_nothing_is_recorded(
    browser: Browser, show: Show, parts: Any, host: Any, times: tuple[int, int], expected: list[str]
) -> None:
    profile, origin = threads(), 10**9 + 10 * MS
    meta = profile.meta
    meta.parts = tuple((origin + begin * MS, origin + end * MS) for begin, end in parts)
    meta.hosts = (((origin + host[0] * MS, origin + host[1] * MS),), meta.parts) if host else ()
    show(profile)
    colours = [browser.run(COLOUR, *place(browser, 102, at * MS)) for at in times]
    theme = browser.run("return laneLook(page.rec).theme")
    assert colours == [theme[name] for name in expected]


def test_colours_of_lanes_and_themes(browser: Browser, shown: Profile) -> None:
    lock = browser.run(COLOUR, *place(browser, 101, 4 * MS))
    queue = browser.run(COLOUR, *place(browser, 101, 9.5 * MS))
    running = browser.run(COLOUR, *place(browser, 101, 14 * MS))
    assert lock[0] > 180 > lock[1], "red"
    assert queue[0] > 200 and queue[1] > 140 > queue[2], "waiting for a CPU has a colour of its own"
    assert min(running) > 200, "running is pale"
    press(browser, "#theme")
    press(browser, "#theme")
    assert text(browser, "theme") == "Theme: dark"
    assert max(browser.run(COLOUR, *place(browser, 101, 14 * MS))) < 80


# ---- names, screens ------------------------------------------------------------------------------------


def test_hostile_names_stay_text(browser: Browser, show: Show) -> None:
    builder = ProfileBuilder(meta={"hostname": HOSTILE[0], "source": HOSTILE[1]}, losses={HOSTILE[2]: 1})
    for at, name in enumerate(HOSTILE):
        builder.sample(name, [name, kernel(name)], MS, tid=at + 1, time_ns=10**9 + at * MS, waker_path=[name])
    show(builder.build(), title=HOSTILE[0], sentences=(HOSTILE[1],), selected=("-i", HOSTILE[2]))
    browser.run("page.chooseWait(0)")
    for tab in ("class", "waker", "thread", "stack", "length", "wait"):
        press(browser, f"#tab-{tab}")
    browser.hover(*place(browser, 1, 0))
    assert browser.run("return [typeof hacked, document.querySelectorAll('img, svg').length]") == ["undefined", 0]
    assert text(browser, "title") == HOSTILE[0] and HOSTILE[1] in text(browser, "verdict")
    command = browser.run("return document.getElementById('command').value")
    assert shlex.split(command) == ["perf-offcpu", "report", "-i", HOSTILE[2]]


@pytest.mark.parametrize("size", [(320, 568), (768, 1024), (3840, 2160)], ids=str)
def test_screens(browser: Browser, show: Show, size: tuple[int, int]) -> None:
    show(threads(20))
    browser.resize(*size)
    browser.settle()
    wide = browser.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1], "nothing is wider than the screen"
    x, _ = place(browser, 101, 40 * MS)
    assert 0 < x < size[0]
    assert browser.run(javascript("hidden")) == []


def test_names_for_screen_readers(browser: Browser, shown: Profile) -> None:
    assert browser.run(javascript("nameless")) == [] and browser.run("return document.documentElement.lang") == "en"


def test_paper_shows_lanes_flame_graph_and_table(browser: Browser, show: Show) -> None:
    show(threads(20))
    browser.resize(1000, 500)
    heights = "return ['lanebox', 'view'].map((id) => document.getElementById(id).clientHeight)"
    assert browser.run(heights)[0] < 20 * 17
    browser._devtools("Emulation.setEmulatedMedia", {"media": "print"})
    browser.run("dispatchEvent(new Event('beforeprint'))")
    browser.settle()
    lanes, graph = browser.run(heights)
    assert lanes >= 20 * 17 and graph >= 5 * 18
    assert browser.run("return document.getElementById('about').open") is True
    assert browser.run("return getComputedStyle(document.getElementById('search')).display") == "none"
    browser._devtools("Emulation.setEmulatedMedia", {"media": ""})
    browser.run("dispatchEvent(new Event('afterprint'))")
    browser.settle()
    assert browser.run(heights)[0] < 20 * 17


def test_cpu_samples_are_no_waits(browser: Browser, show: Show) -> None:
    builder = ProfileBuilder().sample("a", ["main", kernel("futex_wait")], 5 * MS, tid=1, syscall=202)
    builder.sample("a", ["main", "compute"], 10 * MS, tid=1, event="cpu-clock")
    builder.sample("b", ["main", "compute"], 10 * MS, tid=2, event="cpu-clock")
    both = builder.build()
    show(both)
    check_sums(browser.run("return page.sums()"), both, Selection())
    assert text(browser, "sums").endswith("in 1 wait, 20 ms (20,000,000 ns) in 2 CPU samples")
    assert browser.run("return page.lanes.view.lanes.map((one) => page.rec.data.tracks.tid[one.track])") == [1, 2]
    assert {"compute", "futex_wait"} <= {box["label"] for box in browser.run("return page.graph.boxes()")}
    show(select_events(both, ("cpu-clock",)))
    assert text(browser, "sums") == "20 ms (20,000,000 ns) in 2 samples"
    assert browser.run("return page.sums().tracks.map((one) => one[1])") == ["10000000", "10000000"]


def test_an_empty_page(browser: Browser, show: Show) -> None:
    show(ProfileBuilder().build())
    assert browser.run("return page.sums().total") == ["0", 0]
    assert "nothing is selected" in text(browser, "panel")
