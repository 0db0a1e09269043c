# SPDX-License-Identifier: Apache-2.0
"""speedscope, from its npm package, opens our files and shows frames, totals and threads."""

import base64
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest
from browser.programs import speedscope
from browser.webdriver import Browser, javascript
from builders.converted import converted_bytes
from builders.large import large_profile
from builders.profile import ProfileBuilder, kernel

from perf_offcpu.model.profile import Profile

pytestmark = pytest.mark.long

Show = Callable[[Profile, str], None]
MS = 10**6
WINDOW = (1400, 900)
HOSTILE = "<img src=x onerror=hacked=1>"


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Show]:
    """Write a profile in a format and open it in speedscope, as its own command line does: by a script."""

    def opened(profile: Profile, format_: str) -> None:
        text = converted_bytes(format_, profile)
        (tmp_path / f"written.{format_}.json").write_bytes(text)
        data = base64.b64encode(text).decode()
        script = tmp_path / "load.js"
        script.write_text(f'speedscope.loadFileFromBase64("profile.json", "{data}")')
        browser.open("about:blank")
        browser.open(f"{(speedscope() / 'index.html').as_uri()}#localProfilePath={str(script).lstrip('/')}")
        wait_for(browser, "Sandwich")

    yield opened
    assert browser.console() == []


def page(browser: Browser) -> str:
    return str(browser.run("return document.body.innerText"))


def wait_for(browser: Browser, text: str) -> None:
    end = time.monotonic() + 60
    while text not in page(browser):
        assert time.monotonic() < end, f"'{text}' did not appear in: {page(browser)[:500]}"
        time.sleep(0.05)


def sandwich(browser: Browser) -> dict[str, tuple[str, str]]:
    """Return name → (total, self) of the table that key 3 shows."""
    browser.type("3")
    wait_for(browser, "Symbol Name")
    rows = re.findall(r"^(\S+) \(.*?\)\n\s*(\S+) \(.*?\)\n\s*(.+)$", page(browser), re.MULTILINE)
    return {name: (total, own) for total, own, name in rows}


def colours(browser: Browser) -> int:
    """Return the number of colours of the picture: an empty chart has few."""
    return int(browser.run_async(javascript("speedscope_colours"), browser.picture()))


def small() -> Profile:
    builder = ProfileBuilder(meta={"hostname": "box"})
    for number in range(50):
        at = 10**9 + 10 * MS * number
        builder.sample("reader", ["main", "handle", kernel("io_wait")], 4 * MS, time_ns=at, tid=101)
        builder.sample("writer", ["main", HOSTILE, kernel("futex_wait")], 2 * MS, time_ns=at, tid=102)
    return builder.build()


def own_times(profile: Profile) -> Counter[str]:
    """Return innermost function → ns."""
    own: Counter[str] = Counter()
    leaf = profile.frames.symbol[profile.stacks.frame[profile.samples.stack]]
    for symbol, period in zip(leaf.tolist(), profile.samples.period.tolist(), strict=True):
        own[profile.strings[symbol]] += period
    return own


def test_schema() -> None:
    schema = json.loads((speedscope() / "file-format-schema.json").read_text())
    for profile in (ProfileBuilder().build(), small(), large_profile(2_000, 100)):
        jsonschema.validate(json.loads(converted_bytes("speedscope", profile)), schema)


def test_a_hundred_waits(browser: Browser, show: Show) -> None:
    show(small(), "speedscope")
    wait_for(browser, "all threads")
    assert "(1/3)" in page(browser)
    assert colours(browser) > 20, "nothing was drawn"
    table = sandwich(browser)
    assert table["io_wait"] == ("200.00ms", "200.00ms") and table["futex_wait"] == ("100.00ms", "100.00ms")
    assert table["main"] == ("300.00ms", "0.00ns") and table["handle"] == ("200.00ms", "0.00ns")
    assert table["reader (pid 100, tid 101)"][0] == "200.00ms"
    assert table[HOSTILE][0] == "100.00ms" and browser.run("return typeof hacked") == "undefined"
    browser.type("1n")
    wait_for(browser, "reader (pid 100, tid 101)")
    assert "(2/3)" in page(browser)


@pytest.mark.long
def test_a_hundred_thousand_waits(browser: Browser, show: Show) -> None:
    profile = large_profile(100_000, 5_000)
    show(profile, "speedscope")
    wait_for(browser, "all threads")
    assert "(1/65)" in page(browser) and colours(browser) > 100
    table = sandwich(browser)
    for name, self_ns in own_times(profile).most_common(5):
        assert table[name][1] == (f"{self_ns / 10**9:.2f}s" if self_ns > 10**9 else f"{self_ns / 10**6:.2f}ms")


def test_a_chrome_trace(browser: Browser, show: Show) -> None:
    """Details are part of the names here; slices must nest and have their length."""
    show(small(), "chrome-trace")
    wait_for(browser, "reader (tid 101)")
    assert "(1/2)" in page(browser) and colours(browser) > 5
    browser.type("3")
    wait_for(browser, "Symbol Name")
    text = page(browser)
    assert "200.00ms" in text and 'io_wait {"state":"state unknown","stack":"main;handle;io_wait"}' in text
