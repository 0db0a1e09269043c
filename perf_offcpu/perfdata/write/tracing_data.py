# SPDX-License-Identifier: Apache-2.0
"""Write the feature TRACING_DATA: the inverse of `perfdata.tracing_data`, which describes the container."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence

from perf_offcpu.binary.fields import Order
from perf_offcpu.perfdata.tracing_data import COUNT, FILE, MACHINE, MAGIC

_VERSION = b"0.6\0"


def tracing_data_body(
    headers: tuple[bytes, bytes], systems: Mapping[bytes, Sequence[bytes]], order: Order = "<"
) -> bytes:
    """Return the body for tracepoints of a machine with 8-byte longs.

    Args:
        headers: content of tracefs's events/header_page and events/header_event.
        systems: name of each system → content of the `format` files of its tracepoints.
    """
    machine = {"big_endian": int(order == ">"), "long_size": 8, "page_size": mmap.PAGESIZE}
    parts = [MAGIC, _VERSION, MACHINE.pack(machine, order)]
    for name, header in zip((b"header_page\0", b"header_event\0"), headers, strict=True):
        parts += [name, _file(header, order)]
    parts += [_count(0, order), _count(len(systems), order)]  # none of ftrace's own events
    for system, formats in systems.items():
        parts += [system + b"\0", _count(len(formats), order)]
        parts += [_file(one, order) for one in formats]
    # No symbols, printk formats and comms: maps, build-ids and COMM records say more.
    return b"".join([*parts, _count(0, order), _count(0, order), _file(b"", order)])


def _count(number: int, order: Order) -> bytes:
    return COUNT.pack({"count": number}, order)


def _file(data: bytes, order: Order) -> bytes:
    return FILE.pack({"size": len(data), "data": data}, order)
