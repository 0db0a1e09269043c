# SPDX-License-Identifier: Apache-2.0
"""Write a page of a recording in time: one HTML file that needs nothing else, not even a web server.

It shows threads as lanes over time, coloured by wait class; of any selection the flame graph, tables and a
histogram; and of a single wait its stack and its waker's. The page has a small JSON document (`document`) and
all columns by sample and node, compressed (`columns`); its script sums up what is selected, exactly as
`perf-offcpu report` does for the options that the page names.

The scripts are our own: libraries of charts or timelines keep an object for each span, and a million waits
need columns and sums over pixels.

A column is its least value and, of the differences to it, as many bytes as the largest one needs, all lowest
bytes first. Bytes of one significance resemble each other, so they compress well, and a plane that is zero
costs nothing. The page unpacks them with the browser's DecompressionStream.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.convert.encode.html import write_page
from perf_offcpu.convert.html.document import describe
from perf_offcpu.convert.registry import Options
from perf_offcpu.model.profile import Profile

_LEVEL = 6


def packed(columns: Mapping[str, NDArray[np.integer]]) -> tuple[dict[str, dict[str, int]], str]:
    """Return (directory, text): where each column is, for the page's JSON, and all columns as base64.

    A row of the directory has `at` (byte), `length` (values), `planes` (bytes a value) and `least` (the value
    to add). Values above 2^53 are rounded by JavaScript.
    """
    squeeze, parts, offset = zlib.compressobj(_LEVEL), [], 0
    directory = {}
    for name, column in columns.items():
        values = np.asarray(column)
        least = int(values.min()) if len(values) else 0
        planes = _planes(values, least)
        directory[name] = {"at": offset, "length": len(values), "planes": len(planes), "least": least}
        for plane in planes:
            parts.append(squeeze.compress(plane.tobytes()))
            offset += len(plane)
    parts.append(squeeze.flush())
    return directory, base64.b64encode(b"".join(parts)).decode()


def _planes(values: NDArray[np.integer], least: int) -> NDArray[Any]:
    """Return uint8[planes, n]: the bytes of the differences to the least value, lowest first."""
    differences = values.astype(np.int64).view(np.uint64) - np.uint64(least & (2**64 - 1))
    largest = int(differences.max(initial=np.uint64(0)))
    width = (largest.bit_length() + 7) // 8
    planes: NDArray[Any] = differences.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T
    return planes


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
    write_page(out, "html/page.html", ("flamegraph/base.css", "html/page.css"), _SCRIPTS, document, columns=text)
