# SPDX-License-Identifier: Apache-2.0
"""Measure the page (convert --html) in Chromium:  python benchmarks/page.py [WAITS ...]

Writes synthetic recordings (tests/builders/large.py), opens their pages in headless Chromium from a file URL,
and prints the size of the file, the time to write it, the time to open it (from loading to the first picture,
and of it the page's own script), frames a second while panning over all lanes, the time of one such
picture, and of a new selection of half of the time. Needs chromium and chromium-driver.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / room) for room in ("", "tests")]

from browser.webdriver import Browser  # noqa: E402
from builders.large import large_profile  # noqa: E402

from perf_offcpu.convert.registry import FORMATS  # noqa: E402

STACKS = {100: 30, 100_000: 5_000, 1_000_000: 50_000}
_READY = "const done = arguments[0]; const ask = () => window.page ? done() : setTimeout(ask, 1); ask();"
_PAN = """
    const done = arguments[0], frames = 120, draws = [];
    page.lanes.zoom(0.5);
    page.lanes.pan(-9);
    let at = 0, began = 0;
    const step = (now) => {
      if (at === 0) began = now; else draws.push(page.lanes.view.drawMs);
      if (at++ === frames) {
        draws.sort((a, b) => a - b);
        done([1000 * frames / (now - began), draws[frames >> 1], draws[Math.floor(frames * 0.95)]]);
        return;
      }
      page.lanes.pan(0.008);
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
"""
_SELECT = """
    const [first, last] = page.rec.data.span, began = performance.now();
    page.selectTimes(first, (first + last) / 2);
    return performance.now() - began;
"""


def measure(browser: Browser, waits: int) -> str:
    """Return a row of the table."""
    profile = large_profile(waits, STACKS.get(waits, waits // 20))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        began = time.monotonic()
        with path.open("w", encoding="utf-8", newline="\n") as out:
            FORMATS["html"].write(profile, out)
        written, size = time.monotonic() - began, path.stat().st_size
        began = time.monotonic()
        browser.open(path.as_uri())
        browser.run_async(_READY)
        browser.settle()
        opened = time.monotonic() - began
    script = browser.run("return page.openMs")
    rate, median, slow = browser.run_async(_PAN)
    select = browser.run(_SELECT)
    return (
        f"{waits:>9,} {size / 1e6:8.2f} MB {written:7.2f} s {opened:7.2f} s {script / 1000:7.2f} s "
        f"{rate:7.1f} {median:6.1f} ms {slow:6.1f} ms {select:7.0f} ms"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure the page in Chromium.")
    parser.add_argument("waits", type=int, nargs="*", default=list(STACKS))
    print("    waits       size      write      open    script  pan fps  median    95 %     select")
    with Browser(1400, 900) as browser:
        browser.resize(1400, 900)
        for waits in parser.parse_args().waits:
            print(measure(browser, waits), flush=True)


if __name__ == "__main__":
    main()
