# SPDX-License-Identifier: Apache-2.0
"""Layout of PERF_RECORD_SAMPLE, and of the trailer that ends every other kernel record. The attr of an event alone
decides which fields its samples have (`SampleShape`); their order is that of perf_output_sample() in
kernel/events/core.c, not that of the bits. Counts and arrays are rows of their own, so that the same table serves one
record (`SAMPLE.unpack`) and whole columns (`columnar`)."""

import enum
from collections.abc import Callable
from typing import NamedTuple, Self

from perf_offcpu.abi.attr import Attr, BranchSampleType, ReadFormat, SampleType
from perf_offcpu.binary.layout import BYTE, U32, U64, Field, Layout


class CallchainContext(enum.IntEnum):
    """enum perf_callchain_context: words of a callchain that are markers, not addresses (u64)."""

    HV, KERNEL, USER, USER_DEFERRED = 2**64 - 32, 2**64 - 128, 2**64 - 512, 2**64 - 640
    GUEST, GUEST_KERNEL, GUEST_USER = 2**64 - 2048, 2**64 - 2176, 2**64 - 2560
    MAX = 2**64 - 4095


class SampleShape(NamedTuple):
    """The fields of an attr that decide the layout of its records; `flags` is its sample_type."""

    flags: SampleType
    read_format: ReadFormat = ReadFormat(0)
    branch_sample_type: int = 0
    sample_regs_user: int = 0
    sample_regs_intr: int = 0

    @classmethod
    def of(cls, attr: Attr) -> Self:
        """Return the shape of the records of an event with this attr."""
        others = attr.branch_sample_type, attr.sample_regs_user, attr.sample_regs_intr
        return cls(attr.sample_type, attr.read_format, *others)


Predicate = Callable[[SampleShape], bool]


def _reading(bit: ReadFormat | None = None, group: bool | None = None) -> Predicate:
    """Return a predicate: the shape has READ, `bit` in read_format (None: any), and GROUP as in `group` (None: any)."""

    def present(shape: SampleShape) -> bool:
        form = shape.read_format
        return (
            bool(shape.flags & SampleType.READ)
            and (bit is None or bool(form & bit))
            and (group is None or bool(form & ReadFormat.GROUP) == group)
        )

    return present


def _branches(bit: BranchSampleType) -> Predicate:
    return lambda shape: bool(shape.flags & SampleType.BRANCH_STACK and shape.branch_sample_type & bit)


def _registers(mask: str) -> Callable[[SampleShape], int]:
    return lambda shape: int(getattr(shape, mask)).bit_count()


READ_ENTRY = Layout(
    "read_format entry",
    ("value", U64),
    Field("id", U64, if_=_reading(ReadFormat.ID)),
    Field("lost", U64, if_=_reading(ReadFormat.LOST)),
    source="include/uapi/linux/perf_event.h, PERF_FORMAT_GROUP",
)

BRANCH_ENTRY = Layout("perf_branch_entry", ("from to flags", U64), source="include/uapi/linux/perf_event.h")

SAMPLE = Layout(
    "PERF_RECORD_SAMPLE",
    Field("identifier", U64, if_=SampleType.IDENTIFIER, doc="id of the event that took the sample"),
    Field("ip", U64, if_=SampleType.IP),
    Field("pid", U32, if_=SampleType.TID, doc="tgid"),
    Field("tid", U32, if_=SampleType.TID),
    Field("time", U64, if_=SampleType.TIME, doc="ns, on the event's clock"),
    Field("addr", U64, if_=SampleType.ADDR),
    Field("id", U64, if_=SampleType.ID),
    Field("stream_id", U64, if_=SampleType.STREAM_ID),
    ("cpu cpu_res", U32, SampleType.CPU),
    ("period", U64, SampleType.PERIOD),
    Field("read_value", U64, if_=_reading(group=False)),
    Field("read_nr", U64, if_=_reading(group=True)),
    Field("read_time_enabled", U64, if_=_reading(ReadFormat.TOTAL_TIME_ENABLED)),
    Field("read_time_running", U64, if_=_reading(ReadFormat.TOTAL_TIME_RUNNING)),
    Field("read_id", U64, if_=_reading(ReadFormat.ID, group=False)),
    Field("read_lost", U64, if_=_reading(ReadFormat.LOST, group=False)),
    Field("read_group", READ_ENTRY, count="read_nr", if_=_reading(group=True)),
    Field("callchain_nr", U64, if_=SampleType.CALLCHAIN),
    Field("callchain", U64, count="callchain_nr", if_=SampleType.CALLCHAIN, doc="leaf first, markers kept"),
    Field("raw_size", U32, if_=SampleType.RAW, doc="the kernel rounds up: counts 0-7 bytes of padding"),
    Field("raw", BYTE, count="raw_size", if_=SampleType.RAW),
    Field("branch_nr", U64, if_=SampleType.BRANCH_STACK),
    Field("branch_hw_idx", U64, if_=_branches(BranchSampleType.HW_INDEX)),
    Field("branch_stack", BRANCH_ENTRY, count="branch_nr", if_=SampleType.BRANCH_STACK),
    Field("branch_counters", U64, count="branch_nr", if_=_branches(BranchSampleType.COUNTERS)),
    Field("regs_user_abi", U64, if_=SampleType.REGS_USER, doc="0 none, 1 32-bit, 2 64-bit"),
    Field("regs_user", U64, _registers("sample_regs_user"), SampleType.REGS_USER, where="regs_user_abi"),
    Field("stack_user_size", U64, if_=SampleType.STACK_USER),
    Field("stack_user", BYTE, count="stack_user_size", if_=SampleType.STACK_USER, where="stack_user_size"),
    Field("stack_user_dyn_size", U64, if_=SampleType.STACK_USER, where="stack_user_size"),
    Field("weight", U64, if_=SampleType.WEIGHT | SampleType.WEIGHT_STRUCT),
    Field("data_src", U64, if_=SampleType.DATA_SRC),
    Field("transaction", U64, if_=SampleType.TRANSACTION),
    Field("regs_intr_abi", U64, if_=SampleType.REGS_INTR),
    Field("regs_intr", U64, _registers("sample_regs_intr"), SampleType.REGS_INTR, where="regs_intr_abi"),
    Field("phys_addr", U64, if_=SampleType.PHYS_ADDR),
    Field("cgroup", U64, if_=SampleType.CGROUP, doc="cgroup id"),
    Field("data_page_size", U64, if_=SampleType.DATA_PAGE_SIZE),
    Field("code_page_size", U64, if_=SampleType.CODE_PAGE_SIZE),
    Field("aux_size", U64, if_=SampleType.AUX),
    Field("aux", BYTE, count="aux_size", if_=SampleType.AUX),
    source="include/uapi/linux/perf_event.h; kernel/events/core.c: perf_output_sample()",
)

TRAILER = Layout(
    "sample_id",
    ("pid tid", U32, SampleType.TID),
    ("time", U64, SampleType.TIME),
    ("id", U64, SampleType.ID),
    ("stream_id", U64, SampleType.STREAM_ID),
    ("cpu cpu_res", U32, SampleType.CPU),
    ("identifier", U64, SampleType.IDENTIFIER),
    source="include/uapi/linux/perf_event.h: struct sample_id, with attr.sample_id_all",
)
"""Last in every kernel record but SAMPLE: read it backwards from the record's end."""
