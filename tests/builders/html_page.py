# SPDX-License-Identifier: Apache-2.0
"""Pages read as HTML, and names that would be markup."""

import base64
import hashlib
import html.parser
import json
from typing import Any

from builders.profile import Code, ProfileBuilder

from perf_offcpu.model.profile import Profile

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


def named_profile(name: str) -> Profile:
    """Return a profile with a name in every place where a recording can put one."""
    meta = {"hostname": name, "cmdline": (name,), "source": name, "os_release": name, "cpu_desc": name}
    builder = ProfileBuilder(events={name: "ns"}, losses={name: 1}, meta=meta)
    return builder.sample(name, [name, Code("", name)], 5, event=name, waker_path=[name]).build()


def assert_no_markup(page: Page, harmless: Page) -> None:
    """Check that a page of hostile names has the elements of a page of harmless ones."""
    assert page.tags == harmless.tags, "a name became an element"
    assert not any(key.startswith("on") or key == "style" for key, _ in page.attributes)


def assert_no_network(page: Page) -> None:
    """Check that the policy of a page allows its own script and style by their sums, and nothing else."""
    (policy,) = (value for key, value in page.attributes if key == "content" and "default-src" in str(value))
    assert policy is not None and policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    scripts = [text for key, text in page.texts.items() if key == "script#"]
    for text, directive in ((scripts[0], "script-src"), (page.texts["style#"], "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert not any(key in {"src", "href"} for key, _ in page.attributes)
