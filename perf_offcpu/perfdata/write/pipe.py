# SPDX-License-Identifier: Apache-2.0
"""Write the pipe form: what a file has in its header comes as records before the data.

    header 16 | ATTR per event | FEATURE per feature | name per event | TRACING_DATA | BUILD_IDs | data ...

Nothing is written twice, so it goes to any descriptor. The limits follow from a record's size of 64 KB:
larger features are left out, and an event has 8174 ids at most.

Source: tools/perf/util/synthetic-events.c: perf_event__synthesize_for_pipe()."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from perf_offcpu import losses
from perf_offcpu.abi.attr import ATTR_SIZE_PERF_6_1
from perf_offcpu.abi.features import MAGIC, PIPE_HEADER, PIPE_HEADER_SIZE, Feature
from perf_offcpu.abi.records import EVENT_UPDATE_NAME, HEADER_ATTR_IDS, Misc, RecordType
from perf_offcpu.binary.layout import NATIVE, Buffer, Order, padding
from perf_offcpu.errors import UsageError
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.features import BUILD_ID_BYTES, BuildId, Features, encoded
from perf_offcpu.perfdata.write.writer import RECORD_SIZE_MAX, frame_record, naming, pack_record, write_all

_HEAD = 8
_MAX_IDS = (RECORD_SIZE_MAX - _HEAD - ATTR_SIZE_PERF_6_1) // 8

_SYNTHESIZED = frozenset(Feature) - {
    Feature.TRACING_DATA,  # has a record of its own
    Feature.BUILD_ID,  # likewise
    Feature.BRANCH_STACK,
    Feature.AUXTRACE,
    Feature.STAT,
    Feature.CACHE,
    Feature.DIR_FORMAT,
    Feature.HYBRID_TOPOLOGY,
    # `perf report` 6.1 stops at a FEATURE record that it does not know; in a file it skips them.
    Feature.CPU_DOMAIN_INFO,
    Feature.E_MACHINE,
    Feature.CLN_SIZE,
}
"""Features that perf 6.1 itself writes as FEATURE records (FEAT_OPR in tools/perf/util/header.c)."""


def event_names(events: Iterable[EventSpec], order: Order) -> Iterator[bytes]:
    """Yield an EVENT_UPDATE record with the name of each event that has ids: a killed recorder writes no EVENT_DESC."""
    for event in events:
        if event.ids:
            values = {"kind": EVENT_UPDATE_NAME, "id": event.ids[0], "data": encoded(event.name) + b"\0"}
            yield pack_record(RecordType.EVENT_UPDATE, 0, values, order=order)


class PipeWriter:
    """Writes one recording in pipe form; the counterpart of `FileWriter`. `features` (bit → body) are complete, because
    they come first; `counters` counts features that do not fit. Raises RecordingError if it cannot be written;
    UsageError if an event has more ids than the form has room for, or the byte order is not this machine's: perf 6.1
    then exchanges pid and tid in samples, and does not swap features."""

    def __init__(
        self,
        fd: int,
        events: Sequence[EventSpec],
        features: Mapping[int, bytes],
        path: str,
        order: Order = "<",
        counters: Losses | None = None,
    ) -> None:
        self.events, self.path, self.order = tuple(events), path, order
        self.data_size = 0
        self._fd, self._counters = fd, Losses() if counters is None else counters
        if order != NATIVE:
            problem = "the recording is of a machine of the other byte order, and perf reads such recordings from files"
            raise UsageError(f"{problem} only: write a file")
        head = PIPE_HEADER.pack({"magic": int.from_bytes(MAGIC, "little"), "size": PIPE_HEADER_SIZE}, order)
        build_ids = Features(features, order, Losses()).build_ids()
        self._write([head, *map(self._attr, self.events), *self._features(features), *event_names(self.events, order)])
        if body := features.get(Feature.TRACING_DATA, b""):  # a record with the number of bytes after it, and these
            body += bytes(padding(len(body)))
            self._write([self._record(RecordType.HEADER_TRACING_DATA, {"size": len(body)}), body])
        self._write([*map(self._build_id, build_ids)])

    def append(self, *pieces: Buffer) -> None:
        """Add whole records; raise BrokenPipeError if the reader is gone, RecordingError if they cannot be written."""
        self._write(pieces)
        self.data_size += sum(map(len, pieces))

    def append_build_ids(self, entries: Iterable[BuildId]) -> None:
        """Add the build-ids of mapped files that were not known yet when the features were written."""
        self.append(*map(self._build_id, entries))

    def finish(self, features: Mapping[int, bytes]) -> None:
        """Do nothing: the form ends with its last record."""

    def _attr(self, event: EventSpec) -> bytes:
        if len(event.ids) > _MAX_IDS:
            problem = f"event {event.name} has {len(event.ids)} ids, the pipe form has room for {_MAX_IDS}"
            raise UsageError(f"{problem}: write a file")
        ids = HEADER_ATTR_IDS.pack({"ids": event.ids}, self.order)
        attr = event.attr.pack(ATTR_SIZE_PERF_6_1, self.order)
        return frame_record(RecordType.HEADER_ATTR, 0, attr + ids, self.order)

    def _features(self, features: Mapping[int, bytes]) -> Iterator[bytes]:
        for bit, body in sorted(features.items()):
            if bit not in _SYNTHESIZED:
                continue
            if len(body) > RECORD_SIZE_MAX - _HEAD - 8:
                self._counters.add(losses.LARGE_FEATURE)
                continue
            yield self._record(RecordType.HEADER_FEATURE, {"feat_id": bit, "data": body})

    def _build_id(self, entry: BuildId) -> bytes:
        build_id = bytes.fromhex(entry.build_id)[:BUILD_ID_BYTES]
        values = {"pid": entry.pid, "build_id": build_id, "size": len(build_id), "filename": entry.filename}
        return self._record(RecordType.HEADER_BUILD_ID, values | {"reserved": b""}, entry.cpumode | Misc.BUILD_ID_SIZE)

    def _record(self, kind: RecordType, values: Mapping[str, Any], misc: int = 0) -> bytes:
        return pack_record(kind, misc, values, order=self.order)

    def _write(self, pieces: Sequence[Buffer]) -> None:
        with naming(self.path):
            write_all(self._fd, pieces)
