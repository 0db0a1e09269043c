# SPDX-License-Identifier: Apache-2.0
"""Pages read as HTML, and names that would be markup."""

from __future__ import annotations

import html.parser
import json
from typing import Any

HOSTILE = [
    "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "<!--<script>", "a\u2028b\u2029c",
    "$data ${script} $$", "quote\"'&amp;", "\x00\x1b[2J",
]  # fmt: skip


class Page(html.parser.HTMLParser):
    """The elements of a page and the texts of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: dict[str, str] = {}
        self.attributes: list[tuple[str, str | None]] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._open = f"{tag}#{dict(attrs).get('id', '')}"

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        self.texts[self._open] = self.texts.get(self._open, "") + data

    @property
    def profile(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.texts["script#profile"])
        return parsed
