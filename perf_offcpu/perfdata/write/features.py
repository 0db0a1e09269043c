# SPDX-License-Identifier: Apache-2.0
"""Write the bodies of header features, for `FileWriter.finish`: the inverse of `perfdata.features`.

Most features are one layout of `abi.features` (`feature_body`); EVENT_DESC and BUILD_ID are lists with
entries of their own. perf 7.2 refuses a whole file for one malformed body, so all of them come from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from perf_offcpu.abi.attr import ATTR_SIZE_PERF_6_1
from perf_offcpu.abi.features import (
    BUILD_ID_ENTRY,
    BUILD_ID_FIXED_SIZE,
    EVENT_DESC_ENTRY,
    EVENT_DESC_HEADER,
    FEATURE_LAYOUTS,
    Feature,
)
from perf_offcpu.abi.records import Misc
from perf_offcpu.binary.fields import Order, padding
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.features import BuildId

BUILD_ID_BYTES = 20
"""Room for a build-id in the feature and in MMAP2 records (SHA-1); longer ones are cut, as perf does."""

HOST_PID = -1
"""`BuildId.pid` of all files that are not a virtual machine's."""


def feature_body(feature: Feature, order: Order = "<", **values: Any) -> bytes:
    """Return the body of a feature that has a layout, from the layout's fields.

    Raises:
        LayoutError: a field is missing or does not fit.
    """
    return FEATURE_LAYOUTS[feature].pack(values, order)


def text_body(text: str, order: Order = "<") -> bytes:
    """Return the body of a feature that is one string: HOSTNAME, OSRELEASE, VERSION, ARCH, CPUDESC, CPUID."""
    return feature_body(Feature.HOSTNAME, order, text=encoded(text))


def cmdline_body(argv: Iterable[str], order: Order = "<") -> bytes:
    """Return the body of CMDLINE."""
    return feature_body(Feature.CMDLINE, order, texts=[{"text": encoded(word)} for word in argv])


def event_desc_body(events: Sequence[EventSpec], order: Order = "<") -> bytes:
    """Return the body of EVENT_DESC: names and ids of the events, in the order of the attr table."""
    head = EVENT_DESC_HEADER.pack({"nr": len(events), "attr_size": ATTR_SIZE_PERF_6_1}, order)
    return head + b"".join(_event_desc_entry(event, order) for event in events)


def _event_desc_entry(event: EventSpec, order: Order) -> bytes:
    # The number of ids comes before the name, so that it cannot be taken from the array after it.
    entry = {"nr_ids": len(event.ids), "name": encoded(event.name), "ids": event.ids}
    return event.attr.pack(ATTR_SIZE_PERF_6_1, order) + EVENT_DESC_ENTRY.pack(entry, order)


def build_id_body(entries: Iterable[BuildId], order: Order = "<") -> bytes:
    """Return the body of BUILD_ID: the build-ids of the mapped files."""
    return b"".join(_build_id_entry(entry, order) for entry in entries)


def _build_id_entry(entry: BuildId, order: Order) -> bytes:
    build_id = bytes.fromhex(entry.build_id)[:BUILD_ID_BYTES]
    filename = entry.filename + b"\0"
    return BUILD_ID_ENTRY.pack(
        {
            "type": 0,
            "misc": entry.cpumode | Misc.BUILD_ID_SIZE,
            "size": BUILD_ID_FIXED_SIZE + len(filename) + padding(len(filename)),
            "pid": entry.pid,
            "build_id": build_id,
            "build_id_size": len(build_id),
            "reserved": b"",
            "filename": entry.filename,
        },
        order,
    )


def encoded(text: str) -> bytes:
    """Encode text as it was read from the system: bytes that are no UTF-8 come back unchanged."""
    return text.encode("utf-8", "surrogateescape")
