# SPDX-License-Identifier: Apache-2.0
"""Write descriptions of Python functions. The BPF program queues each one when a file has the first wait in it."""

import re
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.counters import CODES, CODES_MAGIC, VERSION
from perf_offcpu.collect.collector import Collector
from perf_offcpu.collect.counters import account_sample
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.output.file import OutputFile
from perf_offcpu.collect.system.clock import now_ns

_MOST_TEXT: Final = 48 << 10  # bytes in a record, with room for its other parts
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_CODECS: Final = {1: "latin-1", 2: "utf-16", 4: "utf-32"}


class CodeTable:
    """Move descriptions of Python functions from the BPF program into files."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def follow(self, files: Iterable[OutputFile]) -> None:
        """Write the functions that were found since the last call into all `files`."""
        rows = self._collector.program.maps.take_codes()
        if not len(rows):
            return
        event = self._collector.counters_event
        records = [account_sample(event, payload, now_ns()) for payload in code_payloads(rows)]
        for file in files:
            file.append(*records)


def code_payloads(rows: NDArray[np.void]) -> list[bytes]:
    """Return raw payloads (abi.counters.CODES) that describe functions. `rows`: of `struct offcpu_code`."""
    payloads: list[bytes] = []
    codes: list[dict[str, int]] = []
    blob = b""

    def close() -> None:
        values = {"magic": CODES_MAGIC, "version": VERSION, "nr": len(codes), "size": len(blob), "reserved": 0}
        payloads.append(CODES.pack(values | {"codes": codes, "text": blob}, NATIVE))

    for row in rows:
        texts = {"name": _text_of(row, "name"), "file": _text_of(row, "file")}
        texts["lines"] = bytes(row["lines"][: int(row["lines_size"])])
        if codes and len(blob) > _MOST_TEXT:
            close()
            codes, blob = [], b""
        numbers = {name: int(row[name]) for name in ("id", "pid", "first_line", "minor")}
        numbers["reserved"] = 0
        codes.append(numbers | {f"{name}_size": len(text) for name, text in texts.items()})
        blob += b"".join(texts.values())
    close()
    return payloads


def _text_of(row: Any, name: str) -> bytes:
    """Return a text of a function as UTF-8, without control characters."""
    data = row[name][: int(row[f"{name}_size"])].tobytes()
    codec = _CODECS.get(int(row[f"{name}_flags"]) >> 2 & 7, "latin-1")
    return _CONTROL.sub("?", data.decode(codec, "replace")).encode("utf-8", "replace")
