# SPDX-License-Identifier: Apache-2.0
"""Layout of `struct perf_event_attr`: what an event measures and which fields its records carry.

Source: include/uapi/linux/perf_event.h. The structure has grown from 64 to 144 bytes; its `size` field is
what its producer knew of it. Missing fields read as zero.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from perf_offcpu.binary.fields import S32, U16, U32, U64, Buffer, Field, Order
from perf_offcpu.binary.layout import Layout
from perf_offcpu.errors import LayoutError

ATTR_SIZE_VER0 = 64
ATTR_SIZE_PERF_6_1 = 128
"""The largest attr that perf 6.1 accepts in a file; it holds everything that this project records."""
ATTR_SIZE_MAX = 144


class PerfType(enum.IntEnum):
    """enum perf_type_id."""

    HARDWARE = 0
    SOFTWARE = 1
    TRACEPOINT = 2
    HW_CACHE = 3
    RAW = 4
    BREAKPOINT = 5


class SoftwareConfig(enum.IntEnum):
    """enum perf_sw_ids, as attr.config of PerfType.SOFTWARE."""

    CPU_CLOCK = 0
    TASK_CLOCK = 1
    PAGE_FAULTS = 2
    CONTEXT_SWITCHES = 3
    CPU_MIGRATIONS = 4
    PAGE_FAULTS_MIN = 5
    PAGE_FAULTS_MAJ = 6
    ALIGNMENT_FAULTS = 7
    EMULATION_FAULTS = 8
    DUMMY = 9
    BPF_OUTPUT = 10
    CGROUP_SWITCHES = 11


class SampleType(enum.IntFlag):
    """enum perf_event_sample_format: the fields of a sample (attr.sample_type)."""

    IP = 1 << 0
    TID = 1 << 1
    TIME = 1 << 2
    ADDR = 1 << 3
    READ = 1 << 4
    CALLCHAIN = 1 << 5
    ID = 1 << 6
    CPU = 1 << 7
    PERIOD = 1 << 8
    STREAM_ID = 1 << 9
    RAW = 1 << 10
    BRANCH_STACK = 1 << 11
    REGS_USER = 1 << 12
    STACK_USER = 1 << 13
    WEIGHT = 1 << 14
    DATA_SRC = 1 << 15
    IDENTIFIER = 1 << 16
    TRANSACTION = 1 << 17
    REGS_INTR = 1 << 18
    PHYS_ADDR = 1 << 19
    AUX = 1 << 20
    CGROUP = 1 << 21
    DATA_PAGE_SIZE = 1 << 22
    CODE_PAGE_SIZE = 1 << 23
    WEIGHT_STRUCT = 1 << 24


class ReadFormat(enum.IntFlag):
    """enum perf_event_read_format (attr.read_format)."""

    TOTAL_TIME_ENABLED = 1 << 0
    TOTAL_TIME_RUNNING = 1 << 1
    ID = 1 << 2
    GROUP = 1 << 3
    LOST = 1 << 4


class BranchSampleType(enum.IntFlag):
    """The bits of attr.branch_sample_type that change a sample's layout."""

    HW_INDEX = 1 << 17
    COUNTERS = 1 << 19


class AttrFlag(enum.IntFlag):
    """The bit field at offset 40, bit 0 first."""

    DISABLED = 1 << 0
    INHERIT = 1 << 1
    PINNED = 1 << 2
    EXCLUSIVE = 1 << 3
    EXCLUDE_USER = 1 << 4
    EXCLUDE_KERNEL = 1 << 5
    EXCLUDE_HV = 1 << 6
    EXCLUDE_IDLE = 1 << 7
    MMAP = 1 << 8
    COMM = 1 << 9
    FREQ = 1 << 10
    INHERIT_STAT = 1 << 11
    ENABLE_ON_EXEC = 1 << 12
    TASK = 1 << 13
    WATERMARK = 1 << 14
    PRECISE_IP_1 = 1 << 15
    PRECISE_IP_2 = 1 << 16
    MMAP_DATA = 1 << 17
    SAMPLE_ID_ALL = 1 << 18
    EXCLUDE_HOST = 1 << 19
    EXCLUDE_GUEST = 1 << 20
    EXCLUDE_CALLCHAIN_KERNEL = 1 << 21
    EXCLUDE_CALLCHAIN_USER = 1 << 22
    MMAP2 = 1 << 23
    COMM_EXEC = 1 << 24
    USE_CLOCKID = 1 << 25
    CONTEXT_SWITCH = 1 << 26
    WRITE_BACKWARD = 1 << 27
    NAMESPACES = 1 << 28
    KSYMBOL = 1 << 29
    BPF_EVENT = 1 << 30
    AUX_OUTPUT = 1 << 31
    CGROUP = 1 << 32
    TEXT_POKE = 1 << 33
    BUILD_ID = 1 << 34
    INHERIT_THREAD = 1 << 35
    REMOVE_ON_EXEC = 1 << 36
    SIGTRAP = 1 << 37
    DEFER_CALLCHAIN = 1 << 38
    DEFER_OUTPUT = 1 << 39


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


class Attr(NamedTuple):
    """The attr of an event. Fields as in the layout ATTR; unknown flag bits are kept."""

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
        """Return the attr as `size` bytes (default: its own `size`), with that as its `size` field.

        Raises:
            LayoutError: a field after `size` is not zero and would be lost.
        """
        size = self.size if size is None else size
        values = self._asdict() | {"size": size}
        data = ATTR.pack(values, order)
        if any(data[size:]):
            raise LayoutError(f"perf_event_attr: fields after byte {size} are in use")
        data = data[:size] + bytes(max(0, size - len(data)))
        if order == ">":
            data = data[: _FLAGS_AT.start] + _foreign_flags(self.flags) + data[_FLAGS_AT.stop :]
        return data

    def cut(self, size: int = ATTR_SIZE_PERF_6_1) -> Attr:
        """Return the attr without fields and flags that a reader of `size` bytes does not know."""
        known = AttrFlag((1 << 38) - 1)
        return self._replace(size=size, flags=self.flags & known, config3=0, config4=0)


def unpack_attr(data: Buffer, order: Order = "<") -> Attr:
    """Read an attr of any size up to its own `size`; missing fields are zero, unknown ones dropped.

    Raises:
        LayoutError: fewer than 64 bytes, the first published size.
    """
    if len(data) < ATTR_SIZE_VER0:
        raise LayoutError(f"perf_event_attr: {len(data)} bytes, at least {ATTR_SIZE_VER0} expected")
    stated = int.from_bytes(data[4:8], "little" if order == "<" else "big") or ATTR_SIZE_VER0
    known = bytes(data[: min(max(stated, ATTR_SIZE_VER0), len(data), ATTR_SIZE_MAX)])
    values: dict[str, Any] = ATTR.unpack(known.ljust(ATTR_SIZE_MAX, b"\0"), order)
    if order == ">":
        values["flags"] = int.from_bytes(known[_FLAGS_AT].translate(_BIT_REVERSED), "little")
    values["size"] = stated
    values["sample_type"] = SampleType(values["sample_type"])
    values["read_format"] = ReadFormat(values["read_format"])
    values["flags"] = AttrFlag(values["flags"])
    return Attr(**values)


def _foreign_flags(flags: int) -> bytes:
    """Return flags as a bit field, which big-endian compilers fill from the high end of each byte."""
    return int(flags).to_bytes(8, "little").translate(_BIT_REVERSED)
