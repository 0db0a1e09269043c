# SPDX-License-Identifier: Apache-2.0
"""Layout of the records of perf.data: type numbers, misc bits and payloads. A record is {u32 type, u16 misc, u16 size},
the payload, and, for kernel records other than SAMPLE of events with sample_id_all, the trailer (`abi.sample.TRAILER`).
`RECORD_LAYOUTS` holds the payloads. Sources: include/uapi/linux/perf_event.h (1-22),
tools/lib/perf/include/perf/event.h (64 on)."""

import enum

from perf_offcpu.binary.layout import BYTE, REST, S32, TEXT, U8, U16, U32, U64, Field, Layout, Neighbours


class RecordType(enum.IntEnum):
    """enum perf_event_type and enum perf_user_event_type. Unknown numbers stay integers."""

    MMAP, LOST, COMM, EXIT, THROTTLE, UNTHROTTLE, FORK, READ, SAMPLE = range(1, 10)
    MMAP2, AUX, ITRACE_START, LOST_SAMPLES, SWITCH, SWITCH_CPU_WIDE, NAMESPACES = range(10, 17)
    KSYMBOL, BPF_EVENT, CGROUP, TEXT_POKE, AUX_OUTPUT_HW_ID, CALLCHAIN_DEFERRED = range(17, 23)
    HEADER_ATTR, HEADER_EVENT_TYPE, HEADER_TRACING_DATA, HEADER_BUILD_ID = range(64, 68)
    FINISHED_ROUND, ID_INDEX, AUXTRACE_INFO, AUXTRACE, AUXTRACE_ERROR, THREAD_MAP = range(68, 74)
    CPU_MAP, STAT_CONFIG, STAT, STAT_ROUND, EVENT_UPDATE, TIME_CONV, HEADER_FEATURE = range(74, 81)
    COMPRESSED, FINISHED_INIT, COMPRESSED2, BPF_METADATA, SCHEDSTAT_CPU, SCHEDSTAT_DOMAIN = range(81, 87)


FIRST_USER_TYPE = RecordType.HEADER_ATTR  # records from this type on are made by perf itself and have no trailer


class Misc(enum.IntFlag):
    """Bits of a record header's `misc`. The meaning of bits 12-15 depends on the record type."""

    CPUMODE_MASK = 7
    PROC_MAP_PARSE_TIMEOUT = 1 << 12
    MMAP_DATA = COMM_EXEC = FORK_EXEC = SWITCH_OUT = 1 << 13
    EXACT_IP = SWITCH_OUT_PREEMPT = MMAP_BUILD_ID = 1 << 14
    BUILD_ID_SIZE = LOST_SAMPLES_BPF = 1 << 15


CpuMode = enum.IntEnum("CpuMode", "UNKNOWN KERNEL USER HYPERVISOR GUEST_KERNEL GUEST_USER", start=0)
"""Values of the low bits of `misc` (CPUMODE_MASK): the CPU mode in which the code at an address runs."""

RECORD_HEADER = Layout(
    "perf_event_header",
    ("type", U32),
    ("misc", U16),
    Field("size", U16, doc="of the whole record, header included"),
    source="include/uapi/linux/perf_event.h",
)


def _mmap_has_inode(misc: int | None) -> bool:
    return not (misc or 0) & Misc.MMAP_BUILD_ID


_TASK_FIELDS = (
    ("pid", U32),
    Field("ppid", U32, doc="tgid of the parent (FORK of a thread: of its creator)"),
    ("tid ptid", U32),
    Field("time", U64, doc="ns"),
)

NAMESPACE = Layout("perf_ns_link_info", ("dev ino", U64))
ID_INDEX_ENTRY = Layout("id_index_entry", ("id idx cpu tid", U64))
THREAD_MAP_ENTRY = Layout("thread_map_entry", ("pid", U64), Field("comm", BYTE, count=16))
STAT_CONFIG_ENTRY = Layout("perf_record_stat_config_entry", ("tag val", U64))
METADATA_ENTRY = Layout("perf_record_bpf_metadata_entry", Field("key", BYTE, count=64), Field("value", BYTE, count=256))

_ROWS: dict[RecordType, list[Field | Neighbours]] = {
    RecordType.MMAP: [("pid tid", U32), ("addr len pgoff", U64), ("filename", TEXT)],
    RecordType.LOST: [("id lost", U64)],
    RecordType.COMM: [("pid tid", U32), ("comm", TEXT)],
    RecordType.EXIT: [*_TASK_FIELDS],
    RecordType.THROTTLE: [("time id stream_id", U64)],
    RecordType.UNTHROTTLE: [("time id stream_id", U64)],
    RecordType.FORK: [*_TASK_FIELDS],
    RecordType.READ: [("pid tid", U32), Field("values", U64, count=REST)],
    # The shape of MMAP2 is its record's misc word: the 24-byte union holds an inode or a build-id.
    RecordType.MMAP2: [
        ("pid tid", U32),
        ("addr len pgoff", U64),
        ("maj min", U32, _mmap_has_inode),
        ("ino ino_generation", U64, _mmap_has_inode),
        ("build_id_size reserved_1", U8, Misc.MMAP_BUILD_ID),
        ("reserved_2", U16, Misc.MMAP_BUILD_ID),
        Field("build_id", BYTE, count=20, if_=Misc.MMAP_BUILD_ID),
        ("prot flags", U32),
        ("filename", TEXT),
    ],
    RecordType.AUX: [("offset size flags", U64)],
    RecordType.ITRACE_START: [("pid tid", U32)],
    RecordType.LOST_SAMPLES: [("lost", U64)],
    RecordType.SWITCH: [],
    RecordType.SWITCH_CPU_WIDE: [("next_prev_pid next_prev_tid", U32)],
    RecordType.NAMESPACES: [
        ("pid tid", U32),
        ("nr_namespaces", U64),
        Field("link_info", NAMESPACE, count="nr_namespaces"),
    ],
    RecordType.KSYMBOL: [
        ("addr", U64),
        ("len", U32),
        Field("ksym_type", U16, doc="1 BPF, 2 out of line"),
        Field("flags", U16, doc="1 unregister"),
        ("name", TEXT),
    ],
    RecordType.BPF_EVENT: [("type flags", U16), ("id", U32), Field("tag", BYTE, count=8)],
    RecordType.CGROUP: [("id", U64), ("path", TEXT)],
    RecordType.TEXT_POKE: [
        ("addr", U64),
        ("old_len new_len", U16),
        Field("old_bytes", BYTE, count="old_len"),
        Field("new_bytes", BYTE, count="new_len"),
    ],
    RecordType.AUX_OUTPUT_HW_ID: [("hw_id", U64)],
    RecordType.CALLCHAIN_DEFERRED: [("cookie nr", U64), Field("ips", U64, count="nr")],
    RecordType.HEADER_EVENT_TYPE: [("event_id", U64), Field("name", BYTE, count=64)],
    RecordType.HEADER_TRACING_DATA: [("size", U32)],
    RecordType.HEADER_BUILD_ID: [
        ("pid", S32),
        Field("build_id", BYTE, count=20),
        ("size", U8),
        Field("reserved", BYTE, count=3),
        ("filename", TEXT),
    ],
    RecordType.FINISHED_ROUND: [],
    RecordType.ID_INDEX: [("nr", U64), Field("entries", ID_INDEX_ENTRY, count="nr")],
    RecordType.AUXTRACE_INFO: [("type reserved", U32), Field("priv", U64, count=REST)],
    RecordType.AUXTRACE: [
        Field("size", U64, doc="bytes of trace that follow this record, outside its header's size"),
        ("offset reference", U64),
        ("idx tid cpu reserved", U32),
    ],
    RecordType.AUXTRACE_ERROR: [("type code cpu pid tid fmt", U32), ("ip time", U64), Field("msg", BYTE, count=64)],
    RecordType.THREAD_MAP: [("nr", U64), Field("entries", THREAD_MAP_ENTRY, count="nr")],
    RecordType.CPU_MAP: [("type", U16), Field("data", BYTE, count=REST)],
    RecordType.STAT_CONFIG: [("nr", U64), Field("data", STAT_CONFIG_ENTRY, count="nr")],
    RecordType.STAT: [
        ("id", U64),
        ("cpu thread", U32),
        ("val", U64),
        Field("ena", U64, doc="ns enabled"),
        Field("run", U64, doc="ns running"),
    ],
    RecordType.STAT_ROUND: [("type time", U64)],
    RecordType.EVENT_UPDATE: [
        Field("kind", U64, doc="0 unit, 1 scale, 2 name, 3 cpus"),
        ("id", U64),
        Field("data", BYTE, count=REST),
    ],
    RecordType.TIME_CONV: [("time_shift time_mult time_zero", U64)],
    RecordType.HEADER_FEATURE: [("feat_id", U64), Field("data", BYTE, count=REST)],
    RecordType.COMPRESSED: [Field("data", BYTE, count=REST)],
    RecordType.FINISHED_INIT: [],
    RecordType.COMPRESSED2: [("data_size", U64), Field("data", BYTE, count="data_size")],
    RecordType.BPF_METADATA: [
        Field("prog_name", BYTE, count=512),
        ("nr_entries", U64),
        Field("entries", METADATA_ENTRY, count="nr_entries"),
    ],
}

RECORD_LAYOUTS: dict[int, Layout] = {
    kind: Layout(f"PERF_RECORD_{kind.name}" if kind < FIRST_USER_TYPE else kind.name, *rows)
    for kind, rows in _ROWS.items()
}

HEADER_ATTR_IDS = Layout("HEADER_ATTR ids", Field("ids", U64, count=REST))
"""The ids of the event, which follow its attr (`attr.size` bytes) in a HEADER_ATTR record."""

CALLCHAIN_DEFERRED_V12 = Layout(
    "PERF_RECORD_CALLCHAIN_DEFERRED (v12)",
    ("nr", U64),
    Field("ips", U64, count="nr"),
    source="posted in July 2025, in no released kernel; see decode.deferred",
)

KSYMBOL_TYPE_BPF = 1
KSYMBOL_UNREGISTER = 1
PROT_EXEC = 4
EVENT_UPDATE_NAME = 2
