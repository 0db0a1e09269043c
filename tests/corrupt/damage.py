# SPDX-License-Identifier: Apache-2.0
"""A sound recording to damage: where its parts lie, and what a reader made of a damaged copy."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from builders import zoo

from perf_offcpu.abi.attr import ATTR
from perf_offcpu.abi.features import FILE_HEADER, SECTION, Feature
from perf_offcpu.abi.records import RecordType
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import Recording


def header_at(*names: str) -> int:
    return FILE_HEADER.offset(names[0]) + (SECTION.offset(names[1]) if len(names) > 1 else 0)


@dataclass
class Damaged:
    """A copy of a recording, to be changed and then read."""

    data: bytearray

    @classmethod
    def of(cls, data: bytes | None = None) -> Damaged:
        """A copy of `data`; of the smallest recording with an event, a sample, and a wait."""
        return cls(bytearray(zoo.minimal() if data is None else data))

    def u64(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self.data, at)[0])

    def put(self, at: int, value: int, size: int = 8) -> Damaged:
        self.data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
        return self

    def put_header(self, value: int, *names: str) -> Damaged:
        return self.put(header_at(*names), value)

    def put_attr(self, number: int, name: str, value: int) -> Damaged:
        """Change a field of an event's attr; `ids_offset` and `ids_size` are what follows it."""
        begin, stride = self.u64(header_at("attrs", "offset")), self.u64(header_at("attr_size"))
        at = begin + number * stride
        offset = {"ids_offset": stride - 16, "ids_size": stride - 8}.get(name)
        size = 4 if name in ("type", "size") else 8
        return self.put(at + (ATTR.offset(name) if offset is None else offset), value, size)

    @cached_property
    def records(self) -> list[tuple[int, int, int]]:
        """(offset, type, size) of each record, as the sound recording has them."""
        offset, offsets = self.u64(header_at("data", "offset")), []
        end = offset + self.u64(header_at("data", "size"))
        while offset < end:
            kind, _, size = struct.unpack_from("<IHH", self.data, offset)
            offsets.append((offset, kind, size))
            offset += size
        return offsets

    def record(self, kind: RecordType, number: int = 0) -> int:
        return [at for at, one, _ in self.records if one == kind][number]

    def put_record(self, kind: RecordType, offset: int, value: int, size: int = 8, number: int = 0) -> Damaged:
        return self.put(self.record(kind, number) + offset, value, size)

    def feature(self, bit: Feature) -> tuple[int, int]:
        """(where its entry in the table is, where its body is)."""
        bits = [one for one in range(256) if self.data[72 + one // 8] >> one % 8 & 1]
        table = self.u64(header_at("data", "offset")) + self.u64(header_at("data", "size"))
        entry = table + 16 * bits.index(bit)
        return entry, self.u64(entry)

    def read(self, **options: Any) -> Recording:
        """What the reader makes of it; well-formed in any case."""
        with zoo.as_file(bytes(self.data)) as path:
            recording = load_recording(path, **options)
        recording.check()
        return recording


def periods(recording: Recording) -> dict[str, list[int]]:
    samples, found = recording.samples, {evsel.name: [] for evsel in recording.evsels}
    for evsel, period in zip(samples.evsel.tolist(), samples.period.tolist(), strict=True):
        found[recording.evsels[evsel].name].append(period)
    return found


SOUND = {"cpu-clock": [10], "offcpu-time": [900]}  # `periods` of the smallest recording
