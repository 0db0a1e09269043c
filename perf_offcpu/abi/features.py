# SPDX-License-Identifier: Apache-2.0
"""Layout of header features of perf.data: facts about the machine. Source: tools/perf/util/header.[ch]. Each feature is
a bit in the file header; bodies follow the data, in ascending order of bits. This table holds the bodies that this
project reads, writes or dumps; others pass through as bytes."""

import enum

from perf_offcpu.binary.layout import BYTE, S32, STRING, TEXT, U8, U16, U32, U64, Field, Layout

MAGIC = b"PERFILE2"
MAGIC_SWAPPED = MAGIC[::-1]  # the magic is a number: a big-endian recorder writes its bytes in the other order
MAGIC_V1 = b"PERFFILE"
FILE_HEADER_SIZE = 104
FILE_HEADER_SIZE_OLD = 72
PIPE_HEADER_SIZE = 16
FEATURE_BITS = 256
SECTION = Layout("perf_file_section", ("offset size", U64))
PIPE_HEADER = Layout("perf_pipe_file_header", ("magic size", U64))

FILE_HEADER = Layout(
    "perf_file_header",
    ("magic", U64),
    Field("size", U64, doc="of this header: 104; 72 before features existed; 16 marks the pipe form"),
    Field("attr_size", U64, doc="stride of the attr section: attr.size + 16"),
    ("attrs", SECTION),
    Field("data", SECTION, doc="size 0: the recorder was killed"),
    Field("event_types", SECTION, doc="unused since 2.6.39"),
    Field("features", U64, count=FEATURE_BITS // 64, doc="bitmap; see abi.features"),
    source="tools/perf/util/header.h",
)


Feature = enum.IntEnum(
    "Feature",
    "TRACING_DATA BUILD_ID HOSTNAME OSRELEASE VERSION ARCH NRCPUS CPUDESC CPUID TOTAL_MEM CMDLINE EVENT_DESC "
    "CPU_TOPOLOGY NUMA_TOPOLOGY BRANCH_STACK PMU_MAPPINGS GROUP_DESC AUXTRACE STAT CACHE SAMPLE_TIME "
    "MEM_TOPOLOGY CLOCKID DIR_FORMAT BPF_PROG_INFO BPF_BTF COMPRESSED CPU_PMU_CAPS CLOCK_DATA "
    "HYBRID_TOPOLOGY PMU_CAPS CPU_DOMAIN_INFO E_MACHINE CLN_SIZE",
)
"""Bit numbers of header features (HEADER_*), from 1 on. Unknown bits stay integers."""

_ONE_STRING = Layout("perf_header_string", ("text", STRING))
_STRINGS = Layout("perf_header_strings", ("nr", U32), Field("texts", _ONE_STRING, count="nr"))
PMU_MAPPING = Layout("pmu_mapping", ("type", U32), ("name", STRING))
_NUMA_NODE = Layout("numa_node", ("node", U32), ("total_kb free_kb", U64), ("cpus", STRING))
_GROUP = Layout("group_desc entry", ("name", STRING), ("leader nr_members", U32))
_CACHE_LEVEL = Layout("cpu_cache_level", ("level line_size sets ways", U32), ("type size cpus", STRING))
_CAP = Layout("pmu_cap", ("name value", STRING))
_PMU_CAPS = Layout("pmu_caps entry", ("nr", U32), Field("caps", _CAP, count="nr"), ("pmu", STRING))
_HYBRID_NODE = Layout("hybrid_topology node", ("pmu cpus", STRING))


def _counted(name: str, items: str, layout: Layout) -> Layout:
    return Layout(name, ("nr", U32), Field(items, layout, count="nr"))


_TEXTS = (Feature.HOSTNAME, Feature.OSRELEASE, Feature.VERSION, Feature.ARCH, Feature.CPUDESC, Feature.CPUID)
FEATURE_LAYOUTS: dict[int, Layout] = {
    **dict.fromkeys(_TEXTS, _ONE_STRING),
    Feature.NRCPUS: Layout("nr_cpus", ("available online", U32)),
    Feature.TOTAL_MEM: Layout("total_mem", ("kb", U64)),
    Feature.CMDLINE: _STRINGS,
    Feature.NUMA_TOPOLOGY: _counted("numa_topology", "nodes", _NUMA_NODE),
    Feature.PMU_MAPPINGS: _counted("pmu_mappings", "mappings", PMU_MAPPING),
    Feature.GROUP_DESC: _counted("group_desc", "groups", _GROUP),
    Feature.CACHE: Layout("cache", ("version nr", U32), Field("levels", _CACHE_LEVEL, count="nr")),
    Feature.SAMPLE_TIME: Layout("sample_time", Field("first", U64, doc="ns"), Field("last", U64, doc="ns")),
    Feature.CLOCKID: Layout("clockid", Field("resolution", U64, doc="ns")),
    Feature.DIR_FORMAT: Layout("dir_format", ("version", U64)),
    Feature.CPU_PMU_CAPS: _counted("cpu_pmu_caps", "caps", _CAP),
    Feature.COMPRESSED: Layout(
        "compressed",
        ("version", U32),
        Field("type", U32, doc="1 zstd"),
        ("level ratio", U32),
        Field("mmap_len", U32, doc="most bytes that one record decompresses to"),
    ),
    Feature.CLOCK_DATA: Layout(
        "clock_data",
        ("version clockid", U32),
        Field("wall_clock", U64, doc="CLOCK_REALTIME, ns, at the same moment as"),
        Field("clockid_time", U64, doc="ns on `clockid`"),
    ),
    Feature.HYBRID_TOPOLOGY: _counted("hybrid_topology", "nodes", _HYBRID_NODE),
    Feature.PMU_CAPS: _counted("pmu_caps", "pmus", _PMU_CAPS),
    Feature.E_MACHINE: Layout("e_machine", ("e_machine e_flags", U32)),
    Feature.CLN_SIZE: Layout("cln_size", ("cln_size", U32)),
}

EVENT_DESC_HEADER = Layout("event_desc", ("nr attr_size", U32))
"""Begin of EVENT_DESC; for each event, in the file's order, follow `attr_size` bytes of attr and EVENT_DESC_ENTRY."""

EVENT_DESC_ENTRY = Layout("event_desc entry", ("nr_ids", U32), ("name", STRING), Field("ids", U64, count="nr_ids"))

BUILD_ID_ENTRY = Layout(
    "perf_record_header_build_id",
    ("type", U32),
    Field("misc", U16, doc="cpumode; bit 15: `build_id_size` is valid"),
    ("size", U16),
    ("pid", S32),
    Field("build_id", BYTE, count=20),
    ("build_id_size", U8),
    Field("reserved", BYTE, count=3),
    ("filename", TEXT),
    source="tools/perf/util/header.h; type is 0 here and sizes may be 4 mod 8",
)
BUILD_ID_FIXED_SIZE = 36  # bytes of an entry before its name
