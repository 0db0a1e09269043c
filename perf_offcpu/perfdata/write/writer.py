# SPDX-License-Identifier: Apache-2.0
"""Write perf.data files that stock perf, from 6.1 on, opens without a warning.

    header 104 | ids of all events | attr entries | data ... | feature table | feature bodies

A file can be read even after its writer was killed. `FileWriter(...)` writes a header that is final but for two
things: the data section has size 0, by which readers recognise that a recorder was killed, and there are no features.
`append` adds records; nothing is kept in memory or parsed: ring buffers hold records in the form of the file.
`finish` writes the feature table and the feature bodies after the data, then the final header. Bodies of features
come from `perfdata.features`, records that are not the kernel's from `pack_record`.

Source: tools/perf/util/header.c: perf_session__do_write_header(), perf_header__adds_write()."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from perf_offcpu.abi.attr import ATTR_SIZE_PERF_6_1
from perf_offcpu.abi.features import FEATURE_BITS, FILE_HEADER, FILE_HEADER_SIZE, MAGIC, SECTION
from perf_offcpu.abi.records import HEADER_ATTR_IDS, RECORD_HEADER, RECORD_LAYOUTS, RecordType
from perf_offcpu.binary.layout import Buffer, Order, padding
from perf_offcpu.errors import FileFullError, LayoutError, RecordingError
from perf_offcpu.perfdata.events import EventSpec

ATTR_ENTRY_SIZE = ATTR_SIZE_PERF_6_1 + SECTION.size()  # of all entries alike: perf steps by attr.size + 16
RECORD_SIZE_MAX = 65528  # largest record: its size is a u16 and a multiple of 8
_RECORD_HEADER_SIZE = RECORD_HEADER.size()


class FileWriter:
    """Writes one perf.data file to `fd`, which is empty, open for writing, seekable, and stays the caller's. If there
    are several events, perf wants ids that are unique over all of them and not 0, and at the same place in all samples
    and in all trailers, as with IDENTIFIER in every sample_type. SAMPLE_ID_ALL must be set in all or none. Raises
    RecordingError if the file cannot be written."""

    def __init__(self, fd: int, events: Sequence[EventSpec], path: str, order: Order = "<") -> None:
        self.events, self.path, self.order = tuple(events), path, order
        self._fd = fd
        self._first_ids = ids = self._ids()
        self._attrs_at = FILE_HEADER_SIZE + len(ids)
        attrs = self._attr_entries(FILE_HEADER_SIZE)
        self.data_offset = self._attrs_at + len(attrs)
        self.data_size = 0  # bytes of whole records appended so far
        with naming(path):
            write_all(fd, [self._header(data_size=0, bits=()), ids, attrs])

    def append(self, *pieces: Buffer) -> None:
        """Append whole records. If the disk is too full for all, the first ones stay, and FileFullError is raised."""
        try:
            write_all(self._fd, pieces)
        except OSError as problem:
            written = 0
            with contextlib.suppress(OSError):
                written = os.lseek(self._fd, 0, os.SEEK_CUR) - self.data_offset - self.data_size
            taken, records = whole_records(pieces, written, self.order)
            self.data_size += taken
            end = self.data_offset + self.data_size
            with contextlib.suppress(OSError):  # a device that cannot be cut stays as it is
                os.ftruncate(self._fd, end)
                os.lseek(self._fd, end, os.SEEK_SET)
            text = f"{self.path}: cannot write the recording: {problem.strerror}"
            raise FileFullError(text, taken, records) from None
        self.data_size += sum(map(len, pieces))

    def finish(self, features: Mapping[int, bytes]) -> None:
        """Write the features (bit → body) and the final header. Nothing can be appended afterwards. Raises
        RecordingError if the file cannot be written; it stays readable as one whose writer was killed."""
        if not self.data_size:  # a data section of size 0 would mean that the writer was killed
            self.append(frame_record(RecordType.FINISHED_INIT, 0, b"", self.order))
        bits = sorted(features)
        bodies = [features[bit] for bit in bits]
        offset = self.data_offset + self.data_size + len(bits) * SECTION.size()
        sections = zip(accumulate(map(len, bodies), initial=offset), map(len, bodies), strict=False)
        table = [SECTION.pack({"offset": begin, "size": size}, self.order) for begin, size in sections]
        with naming(self.path):
            write_all(self._fd, [*table, *bodies])
            ids = self._ids()
            if ids != self._first_ids:  # more of them now: at the end of the file
                write_all(self._fd, [ids])
                os.pwrite(self._fd, self._attr_entries(offset + sum(map(len, bodies))), self._attrs_at)
            os.pwrite(self._fd, self._header(self.data_size, bits), 0)

    def learn_ids(self, events: Sequence[EventSpec]) -> None:
        """Replace the events by equal ones with more ids, for CPUs that came later; `finish` writes the ids."""
        self.events = tuple(events)

    def _header(self, data_size: int, bits: Iterable[int]) -> bytes:
        bitmap = sum(1 << bit for bit in bits)
        attrs = {"offset": self._attrs_at, "size": ATTR_ENTRY_SIZE * len(self.events)}
        values: dict[str, Any] = {"magic": int.from_bytes(MAGIC, "little"), "size": FILE_HEADER_SIZE}
        values |= {"attr_size": ATTR_ENTRY_SIZE, "attrs": attrs, "event_types": {"offset": 0, "size": 0}}
        values |= {"data": {"offset": attrs["offset"] + attrs["size"], "size": data_size}}
        values |= {"features": [bitmap >> index & (1 << 64) - 1 for index in range(0, FEATURE_BITS, 64)]}
        return FILE_HEADER.pack(values, self.order)

    def _ids(self) -> bytes:
        return b"".join(HEADER_ATTR_IDS.pack({"ids": event.ids}, self.order) for event in self.events)

    def _attr_entries(self, offset: int) -> bytes:
        """Return the attr section; ids begin at `offset` of the file."""
        entries = []
        for event in self.events:
            section = {"offset": offset, "size": 8 * len(event.ids)}
            entries.append(event.attr.pack(ATTR_SIZE_PERF_6_1, self.order) + SECTION.pack(section, self.order))
            offset += section["size"]
        return b"".join(entries)


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Turn an OSError in the `with` block into a RecordingError that names the recording; BrokenPipeError stays."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise RecordingError(f"{path}: cannot write the recording: {problem.strerror}") from None


def write_all(fd: int, pieces: Sequence[Buffer]) -> None:
    """Write all bytes of `pieces` to `fd`, without copying them and however short single writes are."""
    views = [memoryview(piece).cast("B") for piece in pieces]
    left = [view for view in views if len(view)]
    while left:
        written = os.writev(fd, left[:_IOV_MAX])
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]


_IOV_MAX = os.sysconf("SC_IOV_MAX")


def whole_records(pieces: Sequence[Buffer], limit: int, order: Order) -> tuple[int, int]:
    """Return (bytes, number) of the records that are whole in the first `limit` bytes of the joined pieces."""
    data = b"".join(pieces)
    offset = records = 0
    while offset + _RECORD_HEADER_SIZE <= min(limit, len(data)):
        size = RECORD_HEADER.unpack(data, order, start=offset)["size"]
        if size < _RECORD_HEADER_SIZE or offset + size > limit:
            break
        offset, records = offset + size, records + 1
    return offset, records


def pack_record(kind: int, misc: int, values: Mapping[str, Any], trailer: bytes = b"", order: Order = "<") -> bytes:
    """Return a record from the fields of its layout in `abi.records`, by name. Kernel records other than SAMPLE have a
    `trailer` as long as the first event's, all zero in records that describe the state before the recording (id: the
    first event's; no time). Raises LayoutError if values do not fit the layout, or the record would be too large."""
    return frame_record(kind, misc, RECORD_LAYOUTS[kind].pack(values, order, misc) + trailer, order)


def frame_record(kind: int, misc: int, payload: bytes, order: Order = "<") -> bytes:
    """Return a record, zero-padded to the multiple of 8 that perf demands; raise LayoutError if it is too large."""
    size = _RECORD_HEADER_SIZE + len(payload) + padding(len(payload))
    if size > RECORD_SIZE_MAX:
        raise LayoutError(f"record of type {kind}: {size} bytes, at most {RECORD_SIZE_MAX}")
    header = RECORD_HEADER.pack({"type": kind, "misc": misc, "size": size}, order)
    return header + payload + bytes(padding(len(payload)))
