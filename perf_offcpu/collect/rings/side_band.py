# SPDX-License-Identifier: Apache-2.0
"""Mend side-band records on their way into the file: MMAP2 records get the build-id of the mapped file.

The kernel can put build-ids there itself (attr.build_id). But while one recorder asks for them, the records of all
others on the machine claim to hold one, too, and perf 6.1 crashes on that (`perfdata.events`). So the recorder reads
them from the files, once per file, when the record comes: from /proc/PID/map_files, or by its path if the process has
ended already. The inode shows if it still is the mapped file. Where another recorder's request put the claim into our
records, it is removed.

MMAP2 records of data are there for perf's own unwinder, which reads call frame information in files that are mapped for
reading. Records of other data (heap, stacks, data segments) are left out: half of the records of an exec.

KSYMBOL and BPF_EVENT records are cut to their size. When several recorders listen, the kernel adds the size of the
trailer to the same header once for each (kernel/events/core.c: perf_event_ksymbol_output() and perf_event_bpf_output(),
seen in 6.18): all but the first get old bytes of their ring after the trailer, in which perf finds no known id.

Side-band records have rings of their own: they are examined one by one, and samples must not displace them."""

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b

from perf_offcpu import losses
from perf_offcpu.abi.records import RECORD_HEADER, RECORD_LAYOUTS, Misc, RecordType
from perf_offcpu.binary.layout import Buffer
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.existing.kernel_maps import KernelMaps
from perf_offcpu.collect.existing.maps import MappedBuildIds, key_of, path_here, read_build_id, remember
from perf_offcpu.collect.existing.records import ZERO_TRAILER
from perf_offcpu.collect.python.processes import MappingFollower
from perf_offcpu.collect.rings.rings import Sink
from perf_offcpu.collect.system.helper import Helper, ask_each
from perf_offcpu.errors import FileFullError
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.features import BUILD_ID_BYTES

PATIENCE_S = 0.5  # longest time to read one file; rings of samples are emptied meanwhile
_HEAD = RECORD_HEADER.size()
_LAYOUT = RECORD_LAYOUTS[RecordType.MMAP2]
_UNION = _HEAD + _LAYOUT.offset("maj", 0)
_NAME = _HEAD + _LAYOUT.offset("filename", 0)
_UNION_END = _UNION + 4 + BUILD_ID_BYTES
_MISC = RECORD_HEADER.offset("misc")
_GROWING = (int(RecordType.KSYMBOL), int(RecordType.BPF_EVENT))
_SYMBOL_NAME = _HEAD + RECORD_LAYOUTS[RecordType.KSYMBOL].offset("name", 0)
_BPF_EVENT_SIZE = _HEAD + RECORD_LAYOUTS[RecordType.BPF_EVENT].size() + len(ZERO_TRAILER)
_PROT = _HEAD + _LAYOUT.offset("prot", 0)
_PROT_WRITE, _PROT_EXEC = 2, 4  # in the first byte: little-endian machines
_LOST = (int(RecordType.LOST), int(RecordType.LOST_SAMPLES))
_TASKS = (int(RecordType.FORK), int(RecordType.EXIT))
_MMAP2, _FLAG = int(RecordType.MMAP2), int(Misc.MMAP_BUILD_ID)
# Plain integers: operations on enums take most of the time where many programs start.
_MMAP_DATA, _BPF_EVENT = int(Misc.MMAP_DATA), int(RecordType.BPF_EVENT)
_SLASH = ord("/")


def _is_own_data(record: memoryview) -> bool:
    """Return True for an MMAP2 record to leave out: of data (MMAP_DATA) that is anonymous or writable."""
    if not int.from_bytes(record[_MISC : _MISC + 2], sys.byteorder) & _MMAP_DATA:
        return False
    if record[_NAME] != _SLASH or record[_NAME + 1] == _SLASH:
        return True
    return bool(int.from_bytes(record[_PROT : _PROT + 4], sys.byteorder) & _PROT_WRITE)


def _true_size(kind: int, record: memoryview) -> int:
    """Return the size of a KSYMBOL or BPF_EVENT record: fixed fields, name padded to 8 bytes, trailer."""
    if kind == _BPF_EVENT:
        return _BPF_EVENT_SIZE
    name = bytes(record[_SYMBOL_NAME:]).partition(b"\0")[0]
    return _SYMBOL_NAME + (len(name) // 8 + 1) * 8 + len(ZERO_TRAILER)


def _without_losses(pieces: Sequence[Buffer]) -> bytes:
    """Return the records without LOST and LOST_SAMPLES, whose losses must count in one file only."""
    data = b"".join(pieces)
    view, offset, kept = memoryview(data), 0, []
    types, shorts = view.cast("I"), view.cast("H")
    while offset < len(data):
        size = shorts[offset // 2 + 3]
        if types[offset // 4] not in _LOST:
            kept.append(view[offset : offset + size])
        offset += size
    return b"".join(kept)


class SideBand:
    """Mend side-band records and pass them on, from the rings to a file: add build-ids to MMAP2, leave out those of
    anonymous or writable data, cut stale bytes. `build_ids`: gathers the build-ids of mapped files. `kernel`: its
    `changes` are counted up. `lost`: counts files whose build-id could not be read in time. `followers`: see the MMAP2,
    FORK and EXIT records. `sink`: receives the records. `meanwhile`: is called again and again while files are read."""

    def __init__(
        self, build_ids: MappedBuildIds, kernel: KernelMaps, lost: Losses, followers: Sequence[MappingFollower] = ()
    ) -> None:
        self._followers = followers
        self._build_ids, self._kernel, self._lost = build_ids, kernel, lost
        self._known: dict[bytes, bytes] = {}  # `_key` of a record → build-id
        self._helper = Helper(_read_build_id, PATIENCE_S)
        self.sink: Sink | None = None
        self.meanwhile: Callable[[], object] = lambda: None
        self._next: Sink | None = None

    def close(self) -> None:
        """End the helper that reads files."""
        self._helper.close()

    @contextlib.contextmanager
    def also_to(self, sink: Sink) -> Iterator[None]:
        """Pass the records also to a second sink, during the `with` block: the next file, which is being begun."""
        self._next = sink
        try:
            yield
        finally:
            self._next = None

    def append(self, *pieces: Buffer) -> None:
        """Mend complete records and append them to the sink. Raises FileFullError: it is full; none count as taken."""
        assert self.sink is not None
        data = bytearray().join(pieces)
        try:
            sound = self._sound_pieces(data)
            self.sink.append(*sound)
            if self._next is not None:
                self._next.append(_without_losses(sound))
        except FileFullError as problem:
            # Bytes taken there are not bytes of `data`, of which some were cut out: nothing counts as taken.
            raise FileFullError(str(problem), 0, 0) from None

    def _sound_pieces(self, data: bytearray) -> list[Buffer]:
        """Return the mended records as adjacent pieces of `data`, without MMAP2 of anonymous or writable data and
        without stale bytes after records; other MMAP2 records get their build-ids."""
        pieces: list[Buffer] = []
        mapped: list[memoryview] = []
        view = memoryview(data)
        types, shorts = view.cast("I"), view.cast("H")
        offset = kept = 0
        while offset < len(data) and (size := shorts[offset // 2 + 3]):
            kind = types[offset // 4]
            if kind == _MMAP2 and _is_own_data(view[offset : offset + size]):
                pieces.append(view[kept:offset])
                kept = offset + size
            elif kind == _MMAP2:
                mapped.append(view[offset : offset + size])
            elif kind in _TASKS:
                for follower in self._followers:
                    follower.see_task(kind, view[offset : offset + size])
            elif kind in _GROWING:
                self._kernel.changes += 1
            if kind in _GROWING and (true_size := _true_size(kind, view[offset : offset + size])) < size:
                view[offset + 6 : offset + 8] = true_size.to_bytes(2, sys.byteorder)
                pieces.append(view[kept : offset + true_size])
                kept = offset + size
            offset += size
        if mapped:
            self._complete(mapped)
        for record, follower in itertools.product(mapped, self._followers):
            follower.see_mapping(record)
        return [*pieces, view[kept:]]

    def _complete(self, records: list[memoryview]) -> None:
        """Write build-ids into MMAP2 records, in place; clear the build-id flag of records of files without one."""
        keys = [_key(record) for record in records]
        # The last record of a file counts: code, whose mapping stays. Linkers map over the ends of the others.
        of_code_last = sorted(zip(keys, records, strict=True), key=lambda pair: pair[1][_PROT] & _PROT_EXEC)
        new = {key: record for key, record in of_code_last if key and key not in self._known}
        build_ids = self._read(new) if new else {}
        for record, key in zip(records, keys, strict=True):
            misc = int.from_bytes(record[_MISC : _MISC + 2], sys.byteorder) & ~_FLAG
            if build_id := self._known.get(key) or build_ids.get(key):
                misc |= _FLAG
                padded = bytes((len(build_id), 0, 0, 0)) + build_id.ljust(BUILD_ID_BYTES, b"\0")
                record[_UNION:_UNION_END] = padded
            record[_MISC : _MISC + 2] = misc.to_bytes(2, sys.byteorder)

    def _read(self, records: dict[bytes, memoryview]) -> dict[bytes, bytes]:
        """Return `_key` → build-id of mapped files, b"" if a file has none, no entry if it could not be read.
        `records`: `_key` → an MMAP2 record of the file."""
        build_ids: dict[bytes, bytes] = {}
        items: list[tuple[tuple[int, int], bytes, tuple[int, int, int, int, bytes]]] = []
        for key, record in records.items():
            values = _LAYOUT.unpack(bytes(record[_HEAD:_NAME]) + b"\0" * 8, NATIVE, 0)
            place = values["pid"], values["addr"], values["addr"] + values["len"]
            device, name = (values["maj"], values["min"]), _name_of(record)
            if (kept_id := self._build_ids.get(key_of(device, values["ino"], name))) is None:
                items.append((device, key, (*place, values["ino"], name)))
            else:
                build_ids[key] = kept_id
        answers = ask_each(self._helper, items, self._build_ids.avoided, self.meanwhile)
        for (device, key, (*_, inode, name)), answer in answers:
            if answer.is_stuck:
                self._lost.add(losses.FILES_UNREAD)
            elif answer.value is not None:  # else the process has ended
                build_ids[key], seen_at = answer.value
                self._build_ids.learn(key_of(device, inode, name), seen_at or name, build_ids[key])
        for key, build_id in build_ids.items():
            remember(self._known, key, build_id)
        return build_ids


def _key(record: memoryview) -> bytes:
    """Return a hash of inode and name of the file in an MMAP2 record; b"" if it maps no file."""
    name = _name_of(record)
    if name[:1] != b"/" or name.startswith(b"//"):
        return b""
    return blake2b(bytes(record[_UNION:_UNION_END]) + name, digest_size=16).digest()


def _name_of(record: memoryview) -> bytes:
    return bytes(record[_NAME : len(record) - len(ZERO_TRAILER)]).rstrip(b"\0")


def _read_build_id(item: tuple[object, object, tuple[int, int, int, int, bytes]]) -> tuple[bytes, bytes] | None:
    """Return (build-id or b"", path as the recorder sees it, b"" if it is the path of the record); None if the file is
    not found. `item`: (device, key, (pid, start, end, inode, name) of the mapping)."""
    pid, start, end, inode, name = item[2]
    build_id = read_build_id(pid, start, end, inode, name, maps=False)
    return None if build_id is None else (build_id, path_here(pid, start, end, name))
