# SPDX-License-Identifier: Apache-2.0
"""Write the descriptions of wait objects and of Python functions while recording goes on. The BPF program queues each
object when it is first seen, and each function when a file has the first wait in it. Names of objects are looked up
soon, because the process may end, in a thread, so that the rings are drained meanwhile."""

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perf_offcpu import losses
from perf_offcpu.abi.counters import CODES, CODES_MAGIC, VERSION
from perf_offcpu.collect.collector import Collector
from perf_offcpu.collect.counters import account_sample
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.jvms import jit_payloads
from perf_offcpu.collect.output.file import OutputFile, Piece
from perf_offcpu.collect.summary import Source
from perf_offcpu.collect.system.background import NAP_S, Future, in_background
from perf_offcpu.collect.system.clock import now_ns
from perf_offcpu.collect.wait_objects import describe

SOON_S = 0.1  # longest time for names in a file that goes on
NAMING_S = 2.0  # longest time for names at the end of a file: some processes may not answer
_MOST_SETS = 256
_MOST_KNOWN = 1 << 14
_IDENTITY = ["id", "kind", "pid", "fd", "device", "inode", "number", "address", "peer_inode"]
"""Members of `struct offcpu_object` that identify an object in `KnownObjects`."""
STEADY_KNOWN_S, STEADY_PORTS_S = 300.0, 20.0
"""Seconds for which names of objects and listening ports stay valid in a steady recording."""
SCAN_SHARE, STEADY_SCAN_SHARE = 0.05, 0.002
"""Largest share of one CPU's time for scans of all processes, which find the other ends of pipes."""


class KnownObjects:
    """Keep descriptions of objects, to use them again for later files: each file needs the descriptions of its objects.
    `valid_s`: time for which a description is used again; 0: never."""

    def __init__(self, valid_s: float) -> None:
        self._valid_s = valid_s
        self._known: dict[tuple[int, ...], tuple[float, describe.Described]] = {}
        self._tidied_s = time.monotonic()

    def described(
        self, rows: NDArray[Any], describe_new: Callable[[NDArray[Any]], list[describe.Described]]
    ) -> list[describe.Described]:
        """Return a description of each row of `struct offcpu_object`: a kept one, or one by `describe_new(rows)`."""
        if not self._valid_s:
            return describe_new(rows)
        now = time.monotonic()
        keys: list[tuple[int, ...]] = rows[_IDENTITY].tolist()
        new = [row for row, key in enumerate(keys) if self._known.get(key, (0.0,))[0] < now]
        if now >= self._tidied_s + self._valid_s:  # objects of processes that have ended never come again
            self._known = {key: entry for key, entry in self._known.items() if entry[0] >= now}
            self._tidied_s = now
        descriptions = dict(zip(new, describe_new(rows[new]), strict=True))
        for row, entry in descriptions.items():
            if len(self._known) < _MOST_KNOWN:
                self._known[keys[row]] = now + self._valid_s, entry
        return [descriptions[row] if row in descriptions else self._known[key][1] for row, key in enumerate(keys)]


class ObjectTable:
    """Take new wait objects from the collector, look up their names in a thread, and write them into files. `drain`
    empties the rings; it is called again and again while names are awaited. `unwritten`: records of objects that could
    not be written, for the end of a file that is almost full."""

    def __init__(self, collector: Source, drain: Callable[[], object]) -> None:
        self._collector, self._drain = collector, drain
        self._naming: Future[list[describe.Described]] | None = None
        is_steady = collector.options.is_steady
        self._known = KnownObjects(STEADY_KNOWN_S if is_steady else 0.0)
        self._describer = describe.Describer(collector.unread.lost, STEADY_PORTS_S if is_steady else describe.PORTS_S)
        self._scan_share = STEADY_SCAN_SHARE if is_steady else SCAN_SHARE
        self._held: NDArray[np.void] = np.empty(0, np.void)  # rows that wait for a scan
        self._scan_due = 0.0
        self._sets: dict[int, NDArray[np.void]] = {}  # epoll instances of this file by id, a row each
        self.unwritten: Iterator[Piece] = iter(())

    def follow(self, files: Iterable[OutputFile], *, scan_now: bool = False) -> None:
        """Write the objects whose names were found meanwhile into all `files`, and begin to name new objects.
        `scan_now`: scan all processes for the objects that need it, even if no scan is due."""
        if self._naming is not None and self._naming.done():
            self._write(self._naming.result(), files)
            self._naming = None
        if self._naming is None and len(rows := self._next_rows(scan_now)):
            self._begin(rows)

    def _next_rows(self, scan_now: bool) -> NDArray[np.void]:
        """Take new wait objects from the collector; return those to name now, as rows of `struct offcpu_object`. Pipes
        and Unix sockets are held back until a scan of all processes is due, or `scan_now`."""
        rows = self._collector.take_objects()
        if len(self._held):
            rows = np.concatenate([self._held, rows])
        if scan_now or not len(rows) or time.monotonic() >= self._scan_due:
            self._held = rows[:0]
            return rows
        waits = describe.needs_scan(rows)
        self._held = rows[waits]
        return rows[~waits]

    def finish(self, files: Iterable[OutputFile]) -> None:
        """Name and write the objects left at a file's end, and epoll instances again, with the files they watch now."""
        files = list(files)
        self._describer.finish_until(time.monotonic() + NAMING_S)
        self._await(files, scan_now=True)
        if self._sets and self._collector.options.object_names:
            sets, self._sets = np.concatenate(list(self._sets.values())), {}
            self._naming = in_background(lambda: self._describer.described_again(sets))
            self._await(files, scan_now=True)
        self._describer.finish_until(math.inf)

    def catch_up(self, files: Iterable[OutputFile]) -> None:
        """Write the objects whose names are found within SOON_S, without a scan of all processes."""
        self._await(files, scan_now=False, until_s=time.monotonic() + SOON_S)

    def close(self) -> None:
        """End the helper that looks up names."""
        self._describer.finish_until(0.0)
        if self._naming is None or self._naming.wait(NAMING_S):
            self._describer.close()

    def _await(self, files: Iterable[OutputFile], *, scan_now: bool, until_s: float = math.inf) -> None:
        self.follow(files, scan_now=scan_now)
        while self._naming is not None and time.monotonic() < until_s:
            self._naming.wait(NAP_S)
            self._drain()
            self.follow(files, scan_now=scan_now)

    def _begin(self, rows: NDArray[np.void]) -> None:
        names = self._collector.options.object_names
        for row in range(len(rows)):
            if describe.is_epoll(rows[row]) and len(self._sets) < _MOST_SETS:
                self._sets[int(rows[row]["id"])] = rows[row : row + 1]
        scans = names and bool(describe.needs_scan(rows).any())

        def work() -> list[describe.Described]:
            begin_s = time.monotonic()
            objects = self._known.described(rows, lambda new: self._describer.describe(new, names=names))
            if scans:
                self._scan_due = time.monotonic() + (time.monotonic() - begin_s) / self._scan_share
            return objects

        self._naming = in_background(work)

    def _write(self, objects: list[describe.Described], files: Iterable[OutputFile]) -> None:
        event = self._collector.counters_event
        for file in files:
            for payload in describe.object_payloads(objects):
                record = account_sample(event, payload, now_ns())
                self.unwritten = iter([Piece(losses.OBJECTS_UNWRITTEN, np.zeros(1, np.uint64), record)])
                file.append(record)
                self.unwritten = iter(())


_MOST_TEXT: Final = 48 << 10  # bytes in a record, with room for its other parts
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_CODECS: Final = {1: "latin-1", 2: "utf-16", 4: "utf-32"}


class CodeTable:
    """Move descriptions of Python functions from the BPF program, and perf maps of JVMs, into files. `drain` empties
    the rings; it is called between writes."""

    def __init__(self, collector: Collector, drain: Callable[[], object]) -> None:
        self._collector, self._drain = collector, drain
        self._written: dict[int, bytes] = {}
        self._written_to: OutputFile | None = None
        self._ended_jvms: set[int] = set()

    def follow(self, files: Iterable[OutputFile]) -> None:
        """Write the descriptions of functions that the BPF program has queued since the last call into all `files`."""
        rows = self._collector.program.maps.take_codes()
        if not len(rows):
            return
        event = self._collector.counters_event
        records = [account_sample(event, payload, now_ns()) for payload in code_payloads(rows)]
        for file in files:
            file.append(*records)

    def write_jit_maps(self, file: OutputFile, *, is_end: bool = True) -> None:
        """Write the perf maps of JVMs that `file` lacks. `is_end`: the file ends. Maps of ended JVMs go into the file
        in which they ended and into the next."""
        jvms, event = self._collector.jvms, self._collector.counters_event
        written = self._written if file is self._written_to else {}
        for pid, text in list(jvms.maps.items()):
            if written.get(pid) is not text:
                for payload in jit_payloads(pid, text):
                    file.append(account_sample(event, payload, now_ns()))
                    self._drain()
        self._written, self._written_to = jvms.maps.copy(), file
        if is_end:
            self._ended_jvms = jvms.forget_ended(self._ended_jvms)


def code_payloads(rows: NDArray[np.void]) -> list[bytes]:
    """Return payloads (`abi.counters.CODES`) that describe Python functions. `rows`: of `struct offcpu_code`."""
    payloads, codes, blob = list[bytes](), list[dict[str, int]](), b""
    for number, row in enumerate(rows, 1):
        texts = {"name": _text_of(row, "name"), "file": _text_of(row, "file")}
        texts["lines"] = bytes(row["lines"][: int(row["lines_size"])])
        numbers = {name: int(row[name]) for name in ("id", "pid", "first_line", "minor")}
        numbers["reserved"] = 0
        codes.append(numbers | {f"{name}_size": len(text) for name, text in texts.items()})
        blob += b"".join(texts.values())
        if len(blob) > _MOST_TEXT or number == len(rows):
            values = {"magic": CODES_MAGIC, "version": VERSION, "nr": len(codes), "size": len(blob), "reserved": 0}
            payloads.append(CODES.pack(values | {"codes": codes, "text": blob}, NATIVE))
            codes, blob = [], b""
    return payloads


def _text_of(row: Any, name: str) -> bytes:
    """Return the text `name` ("name" or "file") of a row of `struct offcpu_code` as UTF-8, control characters as ?."""
    data = row[name][: int(row[f"{name}_size"])].tobytes()
    codec = _CODECS.get(int(row[f"{name}_flags"]) >> 2 & 7, "latin-1")
    return _CONTROL.sub("?", data.decode(codec, "replace")).encode("utf-8", "replace")
