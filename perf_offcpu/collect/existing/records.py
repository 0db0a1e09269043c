# SPDX-License-Identifier: Apache-2.0
"""Pack records in the kernel's form for tasks and mappings that existed before the recording. Their trailer is zero,
which to perf means "of the first event" and "deliver now, before anything with a time"."""

import sys
from collections.abc import Mapping
from typing import Any

from perf_offcpu.abi.records import RECORD_HEADER, CpuMode, Misc, RecordType
from perf_offcpu.abi.sample import TRAILER
from perf_offcpu.collect.events.evsels import SAMPLE_TYPE
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.perfdata.features import BUILD_ID_BYTES
from perf_offcpu.perfdata.write.writer import pack_record

MOST_NAME = 4096 - 8 - 1
"""Longest name of a mapped file or control group that the kernel puts into a record; perf has room for 4096 bytes.
Source: perf_event_mmap_event() in kernel/events/core.c."""

TOO_LONG = b"//toolong"  # the kernel's name of files whose path is longer
KERNEL_PID = 2**32 - 1  # pid -1: the kernel's own maps belong to every process
ZERO_TRAILER = bytes(TRAILER.size(SAMPLE_TYPE))

_SIZE = RECORD_HEADER.offset("size")
_TIME_LEFT = len(ZERO_TRAILER) - TRAILER.offset("time", SAMPLE_TYPE)
"""Distance in bytes from the field `time` of a trailer to the end of the record."""

_NO_INODE = {"maj": 0, "min": 0, "ino": 0, "ino_generation": 0}


def synthesized(record_type: RecordType, misc: int, values: Mapping[str, Any]) -> bytes:
    """Pack a record with a trailer (sample_id) of zeros. `misc`: that of its header. `values`: field name → value."""
    return pack_record(record_type, misc, values, ZERO_TRAILER, NATIVE)


def with_time(records: bytes, time_ns: int) -> bytes:
    """Return a copy of records made by `synthesized` whose trailers have the time `time_ns` instead of 0."""
    changed, time, end = bytearray(records), time_ns.to_bytes(8, sys.byteorder), 0
    while end < len(changed):
        end += int.from_bytes(changed[end + _SIZE : end + _SIZE + 2], sys.byteorder)
        changed[end - _TIME_LEFT : end - _TIME_LEFT + 8] = time
    return bytes(changed)


def mmap2(cpumode: CpuMode, mapping: Mapping[str, Any], build_id: bytes = b"", misc: int = 0) -> bytes:
    """Pack an MMAP2 record with a trailer of zeros. `mapping`: its fields, as in `abi.records`; device and inode are 0
    if missing. `build_id`: replaces these, unless b"". `misc`: further bits of the header."""
    if not build_id:
        return synthesized(RecordType.MMAP2, cpumode | misc, _NO_INODE | dict(mapping))
    padded = build_id.ljust(BUILD_ID_BYTES, b"\0")
    identity = {"build_id_size": len(build_id), "reserved_1": 0, "reserved_2": 0, "build_id": padded}
    return synthesized(RecordType.MMAP2, cpumode | misc | Misc.MMAP_BUILD_ID, identity | dict(mapping))
