# SPDX-License-Identifier: Apache-2.0
"""The flame graph in a real browser: drawing, interaction, hostile names."""

from typing import Any

import pytest
from browser.webdriver import KEYS, Browser, Show, javascript, text
from builders.large import large_profile
from builders.profile import Code, ProfileBuilder, kernel

from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

pytestmark = pytest.mark.long

HOSTILE = [
    "<img src=x onerror=hacked=1>", "</script><script>hacked=1</script>", "<svg/onload=hacked=1>",
    "\u2028hacked=1\u2029", "javascript:hacked=1",
]  # fmt: skip
SECONDS = 10**9

FORMAT = "flamegraph"


def boxes(browser: Browser) -> dict[str, dict[str, Any]]:
    """Return the drawn frames by label, which is unique in these profiles."""
    return {box["label"]: box for box in browser.run("return flamegraph.boxes()")}


def middle(box: dict[str, Any]) -> tuple[float, float]:
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def colour_at(browser: Browser, box: dict[str, Any], part: float) -> list[int]:
    """Return red, green, blue near the upper edge of a frame, where no text is."""
    found: list[int] = browser.run(javascript("colour_at"), box["x"] + part * box["width"], box["y"] + 1)
    return found


def simple() -> Profile:
    builder = ProfileBuilder(meta={"hostname": "box", "cmdline": ("record", "./server")}, losses={"records lost": 3})
    builder.sample(
        "server", ["main", "handle", Code("read", "/lib/libc.so.6"), kernel("io_wait")], 6 * SECONDS, count=3
    )
    builder.sample("server", ["main", "idle", kernel("timer_wait")], 3 * SECONDS)
    builder.sample("logger", [], 1 * SECONDS, flags=SampleFlag.NO_USER_STACK)
    return builder.build()


@pytest.fixture
def shown(show: Show) -> Profile:
    show(profile := simple())
    return profile


def test_widths_are_weights(browser: Browser, shown: Profile) -> None:
    drawn = boxes(browser)
    whole = drawn["all"]["width"]
    assert {label: round(box["width"] / whole, 3) for label, box in drawn.items()} == {
        "all": 1.0, "logger": 0.1, "[missed stack]": 0.1, "server": 0.9, "main": 0.9, "handle": 0.6,
        "read": 0.6, "io_wait": 0.6, "idle": 0.3, "timer_wait": 0.3,
    }  # fmt: skip
    assert drawn["main"]["y"] < drawn["server"]["y"] < drawn["all"]["y"], "flames grow upwards"
    assert drawn["idle"]["x"] == pytest.approx(drawn["handle"]["x"] + drawn["handle"]["width"])


def test_title_totals_and_facts(browser: Browser, shown: Profile) -> None:
    assert browser.run("return document.title") == "Off-CPU time (offcpu-time) on box: record ./server"
    assert text(browser, "title") == browser.run("return document.title")
    assert text(browser, "summary") == "10 s (10,000,000,000 ns) waiting in 5 waits"
    assert "Lost3 records lost" in text(browser, "facts")


def test_click_zooms_and_reset_brings_all_back(browser: Browser, shown: Profile) -> None:
    before = boxes(browser)
    browser.click(before["logger"]["x"] + 3, before["io_wait"]["y"] + 3)
    assert boxes(browser) == before, "nothing is there"
    browser.click(*middle(before["handle"]))
    zoomed = boxes(browser)
    assert zoomed["handle"]["width"] == zoomed["io_wait"]["width"] == pytest.approx(before["all"]["width"])
    assert zoomed["main"]["width"] == before["all"]["width"], "its callers span the view"
    assert "idle" not in zoomed and "logger" not in zoomed
    reset = "const box = document.getElementById('reset').getBoundingClientRect(); return [box.x + 5, box.y + 5]"
    browser.click(*browser.run(reset))
    assert boxes(browser) == before
    assert browser.run("return document.getElementById('reset').disabled") is True


def test_tooltip(browser: Browser, shown: Profile) -> None:
    browser.hover(*middle(boxes(browser)["read"]))
    lines = browser.run("return Array.from(document.querySelectorAll('#tip div'), (line) => line.textContent)")
    assert lines == ["read", "in libc.so.6", "waiting: 6 s (6,000,000,000 ns), 3 waits, average 2 s", "60.00 % of all"]
    browser.hover(600, 10)
    assert browser.run("return document.getElementById('tip').hidden") is True


def test_tooltip_has_states_and_wakers(browser: Browser, show: Show) -> None:
    builder = ProfileBuilder().sample("w", ["main"], 1, tid=7, pid=7, state=1)
    builder.sample("a", ["main", "f"], 3 * SECONDS, state=1, waker_tid=7, waker_pid=7)
    show(builder.sample("a", ["main", "f"], SECONDS, state=2).build())
    browser.hover(*middle(boxes(browser)["f"]))
    lines = text(browser, "tip")
    assert "state: interruptible sleep 75.00 %, uninterruptible sleep 25.00 %" in lines
    assert "woken by: w 75.00 %" in lines


def test_compared_red_has_grown_and_blue_has_shrunk(browser: Browser, show: Show) -> None:
    old = ProfileBuilder().sample("a", ["grown"], SECONDS).sample("a", ["shrunk"], 4 * SECONDS).build()
    new = ProfileBuilder().sample("a", ["grown"], 3 * SECONDS).sample("a", ["shrunk"], SECONDS)
    show(new.sample("a", ["fresh"], SECONDS).build(), diff=old)
    drawn = boxes(browser)
    red, _, blue = colour_at(browser, drawn["grown"], 0.9)
    assert red > blue
    red, _, blue = colour_at(browser, drawn["shrunk"], 0.9)
    assert blue > red
    browser.hover(*middle(drawn["grown"]))
    assert "before: 1,000,000,000 ns, change +2,000,000,000 ns (+200.00 %)" in text(browser, "tip")
    browser.hover(*middle(drawn["fresh"]))
    assert "change +1,000,000,000 ns (new)" in text(browser, "tip")


def test_search(browser: Browser, shown: Profile) -> None:
    frame = boxes(browser)["idle"]
    plain = colour_at(browser, frame, 0.9)
    browser.type("/")
    assert browser.run("return document.activeElement.id") == "search"
    browser.type("IDLE|timer")
    assert text(browser, "matched") == "30.00 % matched: 3,000,000,000 ns"  # nested matches count once
    assert colour_at(browser, frame, 0.9) != plain
    browser.type(KEYS["escape"])
    assert text(browser, "matched") == "" and colour_at(browser, frame, 0.9) == plain
    browser.type("/nothing like it")
    assert text(browser, "matched") == "no match"


def test_search_for_an_invalid_expression(browser: Browser, show: Show) -> None:
    show(ProfileBuilder().sample("a", ["operator[](", "f"], 5).build())
    browser.type("/[](")
    assert text(browser, "matched") == "100.00 % matched: 5 ns"
    assert browser.run("return document.getElementById('search').getAttribute('aria-invalid')") == "true"


def test_keys(browser: Browser, shown: Profile) -> None:
    browser.run("document.getElementById('graph').focus()")

    def status_after(*keys: str) -> str:
        browser.type("".join(KEYS[key] for key in keys))
        return text(browser, "status").split(" · ")[0]

    assert status_after("up") == "all"
    assert status_after("up") == "server"  # the widest
    assert status_after("left") == "logger" and status_after("right", "up", "up") == "handle"
    assert status_after("right") == "idle" and status_after("enter") == "idle"
    assert boxes(browser)["idle"]["width"] == pytest.approx(boxes(browser)["all"]["width"])
    assert status_after("down") == "main" and status_after("escape") == "all" and "handle" in boxes(browser)


def test_hostile_names_stay_text(browser: Browser, show: Show) -> None:
    meta = {"hostname": HOSTILE[0], "cmdline": tuple(HOSTILE), "source": HOSTILE[1]}
    builder = ProfileBuilder(events={HOSTILE[0]: "ns"}, meta=meta, losses={HOSTILE[1]: 1})
    for name in HOSTILE:
        builder.sample(name, [name, Code(name + " ", HOSTILE[0])], SECONDS, event=HOSTILE[0])
    show(builder.build(), title=HOSTILE[1])
    assert text(browser, "title") == HOSTILE[1] == browser.run("return document.title")
    shown = {box["label"] for box in browser.run("return flamegraph.boxes()")}
    assert {HOSTILE[0], HOSTILE[1], HOSTILE[2], HOSTILE[4], "\\u2028hacked=1\\u2029"} <= shown
    for box in browser.run("return flamegraph.boxes()"):
        browser.hover(*middle(box))
    assert browser.run("return document.querySelectorAll('img, svg, script:not([id]) ~ script').length") == 0
    assert browser.run("return typeof hacked") == "undefined"


def test_the_policy_stops_scripts_and_network(browser: Browser, shown: Profile) -> None:
    answer, hacked, blocked = browser.run(javascript("blocked"))
    assert (answer, hacked) == ("refused", "undefined")
    assert blocked == ["connect-src", "img-src", "script-src-elem"]
    assert any("violates the following Content Security Policy" in message for message in browser.console())


def test_waiting_is_cold_running_is_hot(browser: Browser, show: Show) -> None:
    builder = ProfileBuilder()
    builder.sample("both", ["main", "waits"], 3 * SECONDS).sample("both", ["main", "runs"], SECONDS, event="cpu-clock")
    show(builder.build())
    drawn = boxes(browser)

    def is_cold(label: str, part: float) -> bool:
        red, _, blue = colour_at(browser, drawn[label], part)
        return blue > red

    assert is_cold("waits", 0.5) and not is_cold("runs", 0.5)
    assert is_cold("main", 0.70) and not is_cold("main", 0.80), "three quarters of main are waiting"
    browser.hover(*middle(drawn["main"]))
    assert "waiting: 3 s (3,000,000,000 ns), 1 wait, average 3 s" in text(browser, "tip")
    assert "running: 1 s (1,000,000,000 ns), 1 sample" in text(browser, "tip")


def test_totals_beyond_doubles_are_exact(browser: Browser, show: Show) -> None:
    """3000 threads that wait an hour, and one that waits a nanosecond."""
    builder = ProfileBuilder()
    for _ in range(3000):
        builder.sample("a", ["f"], 3600 * SECONDS)
    show(builder.sample("a", ["g"], 1).build())
    assert "(10,800,000,000,000,001 ns)" in text(browser, "summary")


def test_events_that_count_no_time_and_nothing_to_draw(browser: Browser, show: Show) -> None:
    show(ProfileBuilder(events={"cycles": ""}).sample("a", ["f"], 1_234_567, event="cycles").build())
    assert text(browser, "summary") == "1,234,567 events running in 1 sample"
    show(ProfileBuilder().build())
    assert text(browser, "summary") == "no samples" and list(boxes(browser)) == ["all"]


def test_icicle(browser: Browser, shown: Profile) -> None:
    browser.run("document.getElementById('flip').click()")
    browser.settle()
    drawn = boxes(browser)
    assert drawn["all"]["y"] < drawn["server"]["y"] < drawn["main"]["y"]
    browser.click(*middle(drawn["handle"]))
    assert "idle" not in boxes(browser)


def test_dark_and_light(browser: Browser, shown: Profile) -> None:
    lightness = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
    browser.prefer("dark")
    assert browser.run(lightness) < 60
    dark = colour_at(browser, boxes(browser)["main"], 0.9)
    browser.prefer("light")
    assert browser.run(lightness) > 200 and sum(colour_at(browser, boxes(browser)["main"], 0.9)) > sum(dark)
    for expected in ("light", "dark", "auto"):
        browser.run("document.getElementById('theme').click()")
        assert text(browser, "theme") == f"Theme: {expected}"
        assert (browser.run(lightness) < 60) == (expected == "dark")


@pytest.mark.parametrize(("width", "height"), [(320, 480), (390, 844), (844, 390)])
def test_small_screens(browser: Browser, shown: Profile, width: int, height: int) -> None:
    browser.resize(width, height)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    drawn = boxes(browser)
    assert drawn["all"]["x"] >= 0 and drawn["all"]["width"] <= width
    assert drawn["all"]["y"] + drawn["all"]["height"] <= height, "the root is out of sight"
    browser.click(*middle(drawn["handle"]))
    assert boxes(browser)["handle"]["width"] == pytest.approx(boxes(browser)["all"]["width"])
    assert text(browser, "status").startswith("handle · waiting: 6 s")


def test_deep_stacks_scroll(browser: Browser, show: Show) -> None:
    show(ProfileBuilder().sample("a", [f"level_{depth}" for depth in range(250)], 5).build())
    visible = "return flamegraph.boxes().filter((box) => box.y > 80 && box.y < innerHeight).map((box) => box.label)"
    assert "a" in browser.run(visible), "the view begins at the root"
    browser.run("document.getElementById('view').scrollTop = 0")
    browser.settle()
    assert "level_249" in browser.run(visible) and "a" not in browser.run(visible)
    browser.click(600, boxes(browser)["level_240"]["y"] + 5)
    assert "level_240" in browser.run(visible)


def test_a_hundred_thousand_nodes_stay_quick(browser: Browser, show: Show) -> None:
    profile = large_profile(200_000, 6_000)
    show(profile)
    assert browser.run("return flamegraph.nodes()") > 100_000
    assert f"{sum(profile.samples.period.tolist()):,} ns" in text(browser, "summary")
    times: dict[str, list[float]] = {"worker-1": [], "all": [], "search": []}
    for _ in range(4):
        for label in ("worker-1", "all"):
            browser.click(*middle(boxes(browser)[label]))
            times[label].append(browser.run("return flamegraph.drawMs()"))
    browser.type("/")
    for letter in "function_1":
        browser.type(letter)
        times["search"].append(browser.run("return flamegraph.drawMs()"))
    assert text(browser, "matched").endswith(" ns")
    assert max(map(min, times.values())) < 250, f"ms of the fastest of each: {times}"


def test_the_legend_says_what_colours_mean(browser: Browser, show: Show) -> None:
    waits = ProfileBuilder().sample("a", ["f", kernel("futex_wait")], 3 * SECONDS, syscall=202)
    waits.sample("a", ["g", kernel("pipe_read")], SECONDS)
    show(waits.build())
    assert text(browser, "legend") == "waiting, userwaiting, kernel"
    plain = colour_at(browser, boxes(browser)["f"], 0.9)
    button = "document.getElementById('colours').getBoundingClientRect()"
    browser.click(*browser.run(f"const box = {button}; return [box.x + 5, box.y + 5]"))
    assert text(browser, "legend") == "most of its time:lockpipe"
    red, green, blue = colour_at(browser, boxes(browser)["f"], 0.9)
    assert [red, green, blue] != plain and red > 2 * green, "red, the colour of locks"
    assert colour_at(browser, boxes(browser)["a"], 0.9) == [red, green, blue], "most of it"
    browser.hover(*middle(boxes(browser)["a"]))
    assert "class: lock 75.00 %, pipe 25.00 %" in text(browser, "tip")
    show(waits.sample("a", ["f"], SECONDS, event="cpu-clock").build())
    assert text(browser, "legend").endswith("running, userrunning, kernelwall clock: a frame shows both shares")
    show(simple(), diff=simple())
    assert text(browser, "legend").startswith("grown since then (paler: less)as beforeshrunk")
    assert browser.run("return document.getElementById('colours').hidden") is True
