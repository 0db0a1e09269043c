# SPDX-License-Identifier: Apache-2.0
"""Write a page of a recording in time: one HTML file that needs nothing else, not even a web server.

It shows threads as lanes over time, coloured by wait class; of any selection the flame graph, tables and a
histogram; and of a single wait its stack and its waker's. The page has a small JSON document (`document`) and
all columns by sample and node, compressed (`columns`); its script sums up what is selected, exactly as
`perf-offcpu report` does for the options that the page names.

The scripts are our own: libraries of charts or timelines keep an object for each span, and a million waits
need columns and sums over pixels.
"""

from __future__ import annotations

from typing import TextIO

from perf_offcpu.convert.encode.html import write_page
from perf_offcpu.convert.html.columns import packed
from perf_offcpu.convert.html.document import describe
from perf_offcpu.convert.options import Options
from perf_offcpu.model.profile import Profile

_SCRIPTS = (
    "flamegraph/text.js",
    "flamegraph/flame.js",
    "html/recording.js",
    "html/selection.js",
    "html/paint.js",
    "html/axis.js",
    "html/lanes.js",
    "html/pointer.js",
    "html/panels.js",
    "html/tabs.js",
    "html/search.js",
    "html/page.js",
)


def write(profile: Profile, out: TextIO, options: Options) -> None:
    """Write all samples of the profile as a page."""
    document, columns = describe(profile, options)
    directory, text = packed(columns)
    document["columns"] = directory
    write_page(
        out, "html/page.html", ("flamegraph/base.css", "html/page.css"), _SCRIPTS, document, columns=text
    )
