# SPDX-License-Identifier: Apache-2.0
"""Write the packets of a Perfetto trace: clock, tracks, events, task states, and interned data. Names, frames,
callstacks and details are written once; later packets refer to their numbers (iid, from 1 on; 0 none). Source:
protos/perfetto/trace/trace_packet.proto, track_event/*.proto, clock_snapshot.proto, generic_kernel/generic_task.proto,
interned_data and profiling/profile_common.proto of https://github.com/google/perfetto."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.analysis.times.timeline import Track, process_names
from perf_offcpu.callpaths.options import NameKind
from perf_offcpu.callpaths.tree import PathTree
from perf_offcpu.convert.encode.protobuf import Rows, constant, field, joined, lengths, messages, numbers, ragged
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile

MONOTONIC, _REALTIME = 3, 1
SLICE_BEGIN, SLICE_END, INSTANT, COUNTER = 1, 2, 3, 4
_PACKET, _TRACK_EVENT, _TASK_STATE = 1, 11, 117
_FIRST = field(10, 1) + field(13, 1)  # trusted_packet_sequence_id; sequence_flags: SEQ_INCREMENTAL_STATE_CLEARED
FIRST_PACKET = field(_PACKET, _FIRST + field(59, field(58, MONOTONIC)))
"""The packet that begins the sequence; all times of the sequence are of CLOCK_MONOTONIC."""
_LATER = field(10, 1) + field(13, 2)  # trusted_packet_sequence_id; sequence_flags: SEQ_NEEDS_INCREMENTAL_STATE
BLOCKED_UUID, RUNNABLE_UUID, PATH_UUID, _FIRST_UUID = 1, 2, 3, 16
_Tracks = TypeVar("_Tracks", int, I64)


def thread_uuid(track: _Tracks) -> _Tracks:
    """Return the uuid of the Perfetto track of a thread (index in the tracks); uuid + 1: its samples without a time."""
    return _FIRST_UUID + 2 * track


def process_uuids(profile: Profile, tracks: list[Track]) -> dict[int, tuple[int, str]]:
    """Return pid → (uuid of the process's track, name of the process); larger uuids than these are free."""
    names = process_names(profile, tracks).items()
    return {pid: (uuid, name) for uuid, (pid, name) in enumerate(names, thread_uuid(len(tracks)))}


def packet(*fields: bytes) -> bytes:
    """Return a TracePacket of the trace's only packet sequence with the encoded `fields`."""
    return field(_PACKET, _LATER + b"".join(fields))


def clock_packet(profile: Profile) -> bytes:
    """Return the ClockSnapshot packet: the trace's clock, and the wall clock if it is known."""
    meta = profile.meta
    time_ns = meta.wall_clock_at_ns if meta.wall_clock_ns else max(meta.first_ns, 0)
    clocks = field(1, field(1, MONOTONIC) + field(2, time_ns))
    if meta.wall_clock_ns:
        clocks += field(1, field(1, _REALTIME) + field(2, meta.wall_clock_ns))
    return packet(field(8, time_ns), field(6, clocks + field(2, MONOTONIC)))


def track_packets(profile: Profile, tracks: list[Track], with_sums: set[int]) -> Iterator[bytes]:
    """Yield the packets that describe the tracks of processes, threads, and sums (of the indices `with_sums`)."""
    for pid, (uuid, name) in process_uuids(profile, tracks).items():
        process = field(1, pid) + field(6, name)
        yield packet(field(60, field(1, uuid) + field(3, process)))
    for row, track in enumerate(tracks):
        thread = field(1, track.pid) + field(2, track.tid) + field(5, track.comm)
        yield packet(field(60, field(1, thread_uuid(row)) + field(4, thread)))
        if row in with_sums:
            ids = field(1, thread_uuid(row) + 1) + field(5, thread_uuid(row))
            yield packet(field(60, ids + field(2, "sums of short waits: no time")))


def track_packet(uuid: int, title: str, parent: int = 0) -> bytes:
    """Return the packet that names a track which is not a thread's; `parent`: uuid of the track around it, 0 none."""
    inside = field(5, parent) if parent else b""
    return packet(field(60, field(1, uuid) + inside + field(2, title)))


def events(time_ns: I64, kind: int, uuid: NDArray[np.integer], *more: Rows) -> bytes:
    """Return packets of n track events of a kind (SLICE_BEGIN, …). `time_ns`: by the recording's clock; `uuid`: of the
    track, for each event; `more`: further encoded fields."""
    event = joined(constant(field(9, kind), len(time_ns)), numbers(11, uuid), *more)
    return _packets(time_ns, messages(_TRACK_EVENT, event))


def task_states(time_ns: I64, state: NDArray[np.integer], tid: I64, cpu: I64) -> bytes:
    """Return packets of n GenericKernelTaskStateEvents: thread `tid` is in `state` from `time_ns` on."""
    return _packets(time_ns, messages(_TASK_STATE, joined(numbers(1, cpu), numbers(3, tid), numbers(4, state))))


def _packets(time_ns: I64, body: Rows) -> bytes:
    """Return n TracePackets with a timestamp and an encoded field each."""
    return messages(_PACKET, joined(constant(_LATER, len(time_ns)), numbers(8, time_ns), body)).flat()


CATEGORIES, EVENT_NAMES, ANNOTATION_NAMES, _FUNCTIONS = 1, 2, 3, 5
_FRAMES, _CALLSTACKS, _PATHS, _MAPPINGS, _ANNOTATION_STRINGS = 6, 7, 17, 19, 29
_KIND_NATIVE, _KIND_KERNEL = 1, 2
_BLOCK = 1 << 14


class Interned:
    """Strings of InternedData, numbered in order of first use; `parts`: the encoded fields of all strings so far."""

    def __init__(self) -> None:
        self.parts, self._iids = list[bytes](), dict[int, dict[str, int]]()

    def iid(self, kind: int, text: str) -> int:
        """Return the iid of a text of a kind (field number: CATEGORIES, EVENT_NAMES, …); a new text is added."""
        iid_of_content = self._iids.setdefault(kind, {})
        if text not in iid_of_content:
            iid_of_content[text] = len(iid_of_content) + 1
            self.parts.append(field(kind, field(1, iid_of_content[text]) + field(2, text)))
        return iid_of_content[text]

    def iids(self, texts: Iterable[str]) -> I64:
        """Return int64[n]: the iids of event names; new ones are added."""
        return np.array([self.iid(EVENT_NAMES, text) for text in texts], np.int64)

    @property
    def event_names(self) -> int:
        """Return the number of event names interned so far."""
        return len(self._iids.get(EVENT_NAMES, {}))

    def annotation(self, name: str, text: str) -> bytes:
        """Return an encoded DebugAnnotation, `name` with the value `text`; both are interned."""
        return field(4, field(1, self.iid(ANNOTATION_NAMES, name)) + field(17, self.iid(_ANNOTATION_STRINGS, text)))


def frames(tree: PathTree, names: int) -> bytes:
    """Return InternedData of a tree's names: tree.names[i] gets iid `names` + i + 1 as event name, as function and as
    frame. `names`: the number of event names interned before."""
    dsos = {dso: row for row, dso in enumerate(sorted({name.dso for name in tree.names}), 1)}
    parts = []
    for dso, iid in dsos.items():
        parts += [field(_PATHS, field(1, iid) + field(2, dso)), field(_MAPPINGS, field(1, iid) + field(7, iid))]
    for iid, name in enumerate(tree.names, names + 1):
        kind = _KIND_KERNEL if name.kind == NameKind.KERNEL else _KIND_NATIVE
        label = field(1, iid) + field(2, name.label)
        frame = field(1, iid) + field(2, iid) + field(3, dsos[name.dso]) + field(7, kind)
        parts += [field(EVENT_NAMES, label), field(_FUNCTIONS, label), field(_FRAMES, frame)]
    return b"".join(parts)


def callstacks(tree: PathTree, nodes: I64, names: int) -> Iterable[bytes]:
    """Yield InternedData of the callstacks of tree nodes, in blocks: node n gets iid n + 1. `names`: number of event
    names interned before those of the tree's names, as in `frames`."""
    for begin in range(0, len(nodes), _BLOCK):
        block = nodes[begin : begin + _BLOCK]
        paths = tree.paths(block)
        ids = ragged(numbers(2, paths.values + np.uint64(names + 1)), paths.offsets)
        heads = numbers(1, block + 1)
        heads = joined(lengths(_CALLSTACKS, heads.lengths + np.array(list(map(len, ids)))), heads)
        texts = ragged(heads, np.arange(len(block) + 1))
        yield b"".join(part for pair in zip(texts, ids, strict=True) for part in pair)
