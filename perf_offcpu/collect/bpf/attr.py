# SPDX-License-Identifier: Apache-2.0
"""Layouts and numbers of the bpf(2) system call: `union bpf_attr`, `struct bpf_prog_info` and their enums.

Names and order are those of include/uapi/linux/bpf.h. Everything named here exists since Linux 5.13 or
longer. Structures end with the last member that is used: the kernel takes what follows for zero.
"""

from __future__ import annotations

import ctypes
import enum
from typing import ClassVar

NAME_BYTES = 16  # BPF_OBJ_NAME_LEN, with the final NUL


class Command(enum.IntEnum):
    """`enum bpf_cmd`."""

    MAP_CREATE = 0
    MAP_LOOKUP_ELEM = 1
    MAP_UPDATE_ELEM = 2
    MAP_GET_NEXT_KEY = 4
    PROG_LOAD = 5
    PROG_TEST_RUN = 10
    PROG_GET_NEXT_ID = 11
    PROG_GET_FD_BY_ID = 13
    OBJ_GET_INFO_BY_FD = 15
    RAW_TRACEPOINT_OPEN = 17
    BTF_LOAD = 18
    BTF_GET_FD_BY_ID = 19
    MAP_LOOKUP_BATCH = 24
    MAP_DELETE_BATCH = 27
    LINK_CREATE = 28
    ENABLE_STATS = 32
    ITER_CREATE = 33


class ProgramType(enum.IntEnum):
    """`enum bpf_prog_type`."""

    KPROBE = 2
    PERF_EVENT = 7
    RAW_TRACEPOINT = 17
    TRACING = 26


class MapType(enum.IntEnum):
    """`enum bpf_map_type`."""

    ARRAY = 2
    ARRAY_OF_MAPS = 12


class AttachType(enum.IntEnum):
    """`enum bpf_attach_type`."""

    NONE = 0
    TRACE_RAW_TP = 23  # tp_btf programs
    TRACE_ITER = 28


def _u32(*names: str) -> list[tuple[str, type[ctypes.c_uint32]]]:
    return [(name, ctypes.c_uint32) for name in names]


def _u64(*names: str) -> list[tuple[str, type[ctypes.c_uint64]]]:
    return [(name, ctypes.c_uint64) for name in names]


def _name(name: str) -> tuple[str, type[ctypes.Array[ctypes.c_char]]]:
    return name, ctypes.c_char * NAME_BYTES


class MapCreate(ctypes.Structure):
    """Arguments of MAP_CREATE."""

    _fields_: ClassVar = [
        *_u32("map_type", "key_size", "value_size", "max_entries", "map_flags", "inner_map_fd", "numa_node"),
        _name("map_name"),
        *_u32("map_ifindex", "btf_fd", "btf_key_type_id", "btf_value_type_id"),
    ]


class Element(ctypes.Structure):
    """Arguments of commands on one map entry."""

    _fields_: ClassVar = [*_u32("map_fd"), *_u64("key", "value_or_next_key")]


class Batch(ctypes.Structure):
    """Arguments of commands on many map entries."""

    _fields_: ClassVar = [*_u64("in_batch", "out_batch", "keys", "values"), *_u32("count", "map_fd")]


class ProgramLoad(ctypes.Structure):
    """Arguments of PROG_LOAD."""

    _fields_: ClassVar = [
        *_u32("prog_type", "insn_cnt"),
        *_u64("insns", "license"),
        *_u32("log_level", "log_size"),
        *_u64("log_buf"),
        *_u32("kern_version", "prog_flags"),
        _name("prog_name"),
        *_u32("prog_ifindex", "expected_attach_type", "prog_btf_fd", "func_info_rec_size"),
        *_u64("func_info"),
        *_u32("func_info_cnt", "line_info_rec_size"),
        *_u64("line_info"),
        *_u32("line_info_cnt", "attach_btf_id"),
    ]


class RawTracepointOpen(ctypes.Structure):
    """Arguments of RAW_TRACEPOINT_OPEN."""

    _fields_: ClassVar = [*_u64("name"), *_u32("prog_fd")]


class ProgramTestRun(ctypes.Structure):
    """Arguments of PROG_TEST_RUN."""

    _fields_: ClassVar = _u32("prog_fd", "retval")


class LinkCreate(ctypes.Structure):
    """Arguments of LINK_CREATE, as far as iterators need them."""

    _fields_: ClassVar = _u32("prog_fd", "target_fd", "attach_type")


class IterCreate(ctypes.Structure):
    """Arguments of ITER_CREATE."""

    _fields_: ClassVar = _u32("link_fd")


class ObjectId(ctypes.Structure):
    """Arguments of commands that take the id of an object."""

    _fields_: ClassVar = _u32("start_id", "next_id")


class ObjectInfo(ctypes.Structure):
    """Arguments of OBJ_GET_INFO_BY_FD."""

    _fields_: ClassVar = [*_u32("bpf_fd", "info_len"), *_u64("info")]


class ProgramInfo(ctypes.Structure):
    """`struct bpf_prog_info`; members that are not used have no name of their own."""

    _fields_: ClassVar = [
        *_u32("type", "id"),
        ("_tag_to_map_ids", ctypes.c_uint8 * 56),
        _name("name"),
        ("_ifindex_to_prog_tags", ctypes.c_uint8 * 112),
        *_u64("run_time_ns", "run_cnt", "recursion_misses"),
    ]


class MapInfo(ctypes.Structure):
    """`struct bpf_map_info`."""

    _fields_: ClassVar = [
        *_u32("type", "id", "key_size", "value_size", "max_entries", "map_flags"),
        _name("name"),
        *_u32("ifindex", "btf_vmlinux_value_type_id"),
        *_u64("netns_dev", "netns_ino"),
        *_u32("btf_id", "btf_key_type_id", "btf_value_type_id"),
    ]


class BtfLoad(ctypes.Structure):
    """Arguments of BTF_LOAD."""

    _fields_: ClassVar = [*_u64("btf", "btf_log_buf"), *_u32("btf_size")]


class BtfInfo(ctypes.Structure):
    """`struct bpf_btf_info`, its beginning."""

    _fields_: ClassVar = [*_u64("btf"), *_u32("btf_size")]
