# SPDX-License-Identifier: Apache-2.0
"""The browser of the tests. Without chromedriver, scripts/test leaves this folder out, and says so."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.webdriver import Browser, Show
from builders.converted import converted_bytes

from perf_offcpu.model.profile import Profile


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """Open a browser for the tests of a file, in the size of the file's WINDOW."""
    with Browser(*getattr(request.module, "WINDOW", ())) as opened:
        yield opened


@pytest.fixture
def show(browser: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Show]:
    """Write a profile in the file's FORMAT and open it, from a file URL; there may be no errors."""
    failed = request.session.testsfailed

    def opened(profile: Profile, **options: Any) -> Path:
        page = tmp_path / "page.html"
        page.write_bytes(converted_bytes(request.module.FORMAT, profile, **options))
        browser.show(page, "window.page" if request.module.FORMAT == "html" else "true")
        return page

    yield opened
    if request.session.testsfailed > failed:
        browser.screenshot(tmp_path / "screenshot.png")
    assert browser.console() == []
