# SPDX-License-Identifier: Apache-2.0
"""Assemble pages of one file: template, styles, scripts and a JSON document.

Names may be hostile: `<`, `>` and `&` are escapes in the JSON, scripts hand names to textContent and fillText
only, and a content security policy allows the one script and the one style whose hashes it names, and no
network.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib import resources
from string import Template
from typing import Any, TextIO

from perf_offcpu.text import for_script_element


def write_page(
    out: TextIO, template: str, styles: Sequence[str], scripts: Sequence[str], document: dict[str, Any], **more: str
) -> None:
    """Write a page; its title is that of the JSON document.

    Args:
        template: the asset with `$$policy`, `$$title`, `$$style`, `$$script` and `$$data`.
        styles, scripts: assets, each kind written as one.
        more: further values of the template; not escaped.
    """
    style, script = ("".join(map(_asset, assets)) for assets in (styles, scripts))
    page = Template(_asset(template)).substitute(
        policy=_policy(style, script),
        title=html.escape(document["title"]),
        style=style,
        script=script,
        data=for_script_element(json.dumps(document, separators=(",", ":"))),
        **more,
    )
    out.write(page)


def _policy(style: str, script: str) -> str:
    """Return the content security policy: these two texts, nothing else, and no network."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _asset(name: str) -> str:
    # direct: the package's own file
    return resources.files("perf_offcpu.convert.html").joinpath("assets", name).read_text("utf-8")
