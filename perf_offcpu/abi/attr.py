# SPDX-License-Identifier: Apache-2.0
"""Layout of `struct perf_event_attr`: what an event measures and which fields its records carry. Source:
include/uapi/linux/perf_event.h. The structure has grown from 64 to 144 bytes; its `size` field is the number of bytes
that its producer knew. Missing fields read as zero."""

import enum
from typing import Any, NamedTuple, Self

from perf_offcpu.binary.layout import S32, U16, U32, U64, Buffer, Field, Layout, Order, to_int
from perf_offcpu.errors import LayoutError

ATTR_SIZE_VER0 = 64
ATTR_SIZE_PERF_6_1 = 128  # largest attr that perf 6.1 accepts in a file; it holds everything that this project records
ATTR_SIZE_MAX = 144
PerfType = enum.IntEnum("PerfType", "HARDWARE SOFTWARE TRACEPOINT HW_CACHE RAW BREAKPOINT", start=0)
"""enum perf_type_id."""

SoftwareConfig = enum.IntEnum(
    "SoftwareConfig",
    "CPU_CLOCK TASK_CLOCK PAGE_FAULTS CONTEXT_SWITCHES CPU_MIGRATIONS PAGE_FAULTS_MIN PAGE_FAULTS_MAJ "
    "ALIGNMENT_FAULTS EMULATION_FAULTS DUMMY BPF_OUTPUT CGROUP_SWITCHES",
    start=0,
)
"""enum perf_sw_ids, from 0 on, as attr.config of PerfType.SOFTWARE."""

SampleType = enum.IntFlag(
    "SampleType",
    "IP TID TIME ADDR READ CALLCHAIN ID CPU PERIOD STREAM_ID RAW BRANCH_STACK REGS_USER STACK_USER WEIGHT "
    "DATA_SRC IDENTIFIER TRANSACTION REGS_INTR PHYS_ADDR AUX CGROUP DATA_PAGE_SIZE CODE_PAGE_SIZE "
    "WEIGHT_STRUCT",
)
"""enum perf_event_sample_format, bit 0 first: the fields of a sample (attr.sample_type)."""

ReadFormat = enum.IntFlag("ReadFormat", "TOTAL_TIME_ENABLED TOTAL_TIME_RUNNING ID GROUP LOST")
"""enum perf_event_read_format, bit 0 first (attr.read_format)."""


class BranchSampleType(enum.IntFlag):
    """The bits of attr.branch_sample_type that change a sample's layout."""

    HW_INDEX = 1 << 17
    COUNTERS = 1 << 19


AttrFlag = enum.IntFlag(
    "AttrFlag",
    "DISABLED INHERIT PINNED EXCLUSIVE EXCLUDE_USER EXCLUDE_KERNEL EXCLUDE_HV EXCLUDE_IDLE MMAP COMM FREQ "
    "INHERIT_STAT ENABLE_ON_EXEC TASK WATERMARK PRECISE_IP_1 PRECISE_IP_2 MMAP_DATA SAMPLE_ID_ALL "
    "EXCLUDE_HOST EXCLUDE_GUEST EXCLUDE_CALLCHAIN_KERNEL EXCLUDE_CALLCHAIN_USER MMAP2 COMM_EXEC "
    "USE_CLOCKID CONTEXT_SWITCH WRITE_BACKWARD NAMESPACES KSYMBOL BPF_EVENT AUX_OUTPUT CGROUP TEXT_POKE "
    "BUILD_ID INHERIT_THREAD REMOVE_ON_EXEC SIGTRAP DEFER_CALLCHAIN DEFER_OUTPUT",
)
"""The bit field at offset 40 of the attr, bit 0 first."""

ATTR = Layout(
    "perf_event_attr",
    Field("type", U32, doc="PerfType, or the number of a dynamic PMU"),
    Field("size", U32, doc="bytes of this structure that the producer knew"),
    ("config", U64),
    Field("sample_period", U64, doc="or sample_freq, with the flag FREQ"),
    Field("sample_type", U64, doc="SampleType"),
    Field("read_format", U64, doc="ReadFormat"),
    Field("flags", U64, doc="AttrFlag; a bit field, see `unpack_attr` for foreign byte order"),
    Field("wakeup", U32, doc="wakeup_events, or wakeup_watermark in bytes with the flag WATERMARK"),
    ("bp_type", U32),
    Field("config1", U64, doc="or bp_addr, kprobe_func, uprobe_path"),
    Field("config2", U64, doc="or bp_len, kprobe_addr, probe_offset"),
    ("branch_sample_type", U64),
    Field("sample_regs_user", U64, doc="mask of user registers in samples"),
    Field("sample_stack_user", U32, doc="bytes of user stack in samples"),
    Field("clockid", S32, doc="clock of all times, with the flag USE_CLOCKID"),
    ("sample_regs_intr", U64),
    ("aux_watermark", U32),
    ("sample_max_stack reserved_2", U16),
    ("aux_sample_size aux_action", U32),
    ("sig_data config3 config4", U64),
    source="include/uapi/linux/perf_event.h",
)

_FLAGS_AT = slice(ATTR.offset("flags"), ATTR.offset("flags") + 8)
_BIT_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
"""For bytes.translate(): reverses the bits of each byte. Big-endian compilers fill bit fields from the high end."""


class Attr(NamedTuple):
    """A struct perf_event_attr, with the fields of the layout ATTR as Python values; unknown flag bits are kept."""

    type: int = 0
    size: int = ATTR_SIZE_PERF_6_1
    config: int = 0
    sample_period: int = 0
    sample_type: SampleType = SampleType(0)
    read_format: ReadFormat = ReadFormat(0)
    flags: AttrFlag = AttrFlag(0)
    wakeup: int = 0
    bp_type: int = 0
    config1: int = 0
    config2: int = 0
    branch_sample_type: int = 0
    sample_regs_user: int = 0
    sample_stack_user: int = 0
    clockid: int = 0
    sample_regs_intr: int = 0
    aux_watermark: int = 0
    sample_max_stack: int = 0
    reserved_2: int = 0
    aux_sample_size: int = 0
    aux_action: int = 0
    sig_data: int = 0
    config3: int = 0
    config4: int = 0

    def pack(self, size: int | None = None, order: Order = "<") -> bytes:
        """Return the attr packed to `size` bytes (default: its own); LayoutError if that cuts off a nonzero field."""
        size = self.size if size is None else size
        data = ATTR.pack(self._asdict() | {"size": size}, order)
        if any(data[size:]):
            raise LayoutError(f"perf_event_attr: fields after byte {size} are in use")
        data = data[:size] + bytes(max(0, size - len(data)))
        if order == ">":
            flags = int(self.flags).to_bytes(8, "little").translate(_BIT_REVERSED)
            data = data[: _FLAGS_AT.start] + flags + data[_FLAGS_AT.stop :]
        return data

    def cut(self, size: int = ATTR_SIZE_PERF_6_1) -> Self:
        """Return the attr with this `size`, without fields that perf 6.1 lacks: config3, config4, flags from bit 38."""
        flags_of_reader = AttrFlag((1 << 38) - 1)
        return self._replace(size=size, flags=self.flags & flags_of_reader, config3=0, config4=0)


def unpack_attr(data: Buffer, order: Order = "<") -> Attr:
    """Unpack an attr; fields after its stated `size`, or after the data, are 0. LayoutError for less than 64 bytes."""
    if len(data) < ATTR_SIZE_VER0:
        raise LayoutError(f"perf_event_attr: {len(data)} bytes, at least {ATTR_SIZE_VER0} expected")
    stated = to_int(data[4:8], order) or ATTR_SIZE_VER0
    stated_bytes = bytes(data[: min(max(stated, ATTR_SIZE_VER0), len(data), ATTR_SIZE_MAX)])
    values: dict[str, Any] = ATTR.unpack(stated_bytes.ljust(ATTR_SIZE_MAX, b"\0"), order)
    if order == ">":
        values["flags"] = int.from_bytes(stated_bytes[_FLAGS_AT].translate(_BIT_REVERSED), "little")
    values |= {"size": stated, "flags": AttrFlag(values["flags"])}
    sample_type, read_format = SampleType(values["sample_type"]), ReadFormat(values["read_format"])
    return Attr(**values)._replace(sample_type=sample_type, read_format=read_format)
