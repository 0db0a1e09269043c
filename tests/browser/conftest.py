# SPDX-License-Identifier: Apache-2.0
"""The browser of the tests. Without chromedriver, scripts/test leaves this folder out, and says so."""

from collections.abc import Iterator

import pytest
from browser.webdriver import Browser


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """Open a browser for the tests of a file, in the size of the file's WINDOW."""
    with Browser(*getattr(request.module, "WINDOW", ())) as opened:
        yield opened
