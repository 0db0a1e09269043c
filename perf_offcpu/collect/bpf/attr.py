# SPDX-License-Identifier: Apache-2.0
"""Layouts and numbers of the bpf(2) system call: `union bpf_attr`, `struct bpf_prog_info` and their enums.

Names and order are those of include/uapi/linux/bpf.h. Everything named here exists since Linux 5.13 or
longer; structures end where this project's interest ends, and the kernel takes what follows for zero.
"""

from __future__ import annotations

import ctypes
import enum
from typing import ClassVar

NAME_BYTES = 16  # BPF_OBJ_NAME_LEN, with the final NUL
BPF_ANY = 0


class Command(enum.IntEnum):
    """`enum bpf_cmd`."""

    MAP_CREATE = 0
    MAP_LOOKUP_ELEM = 1
    MAP_UPDATE_ELEM = 2
    MAP_DELETE_ELEM = 3
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


class MapCreate(ctypes.Structure):
    """Arguments of MAP_CREATE."""

    _fields_: ClassVar = [
        ("map_type", ctypes.c_uint32),
        ("key_size", ctypes.c_uint32),
        ("value_size", ctypes.c_uint32),
        ("max_entries", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
        ("inner_map_fd", ctypes.c_uint32),
        ("numa_node", ctypes.c_uint32),
        ("map_name", ctypes.c_char * NAME_BYTES),
        ("map_ifindex", ctypes.c_uint32),
        ("btf_fd", ctypes.c_uint32),
        ("btf_key_type_id", ctypes.c_uint32),
        ("btf_value_type_id", ctypes.c_uint32),
    ]


class Element(ctypes.Structure):
    """Arguments of commands on one map entry."""

    _fields_: ClassVar = [
        ("map_fd", ctypes.c_uint32),
        ("key", ctypes.c_uint64),
        ("value_or_next_key", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    ]


class Batch(ctypes.Structure):
    """Arguments of commands on many map entries."""

    _fields_: ClassVar = [
        ("in_batch", ctypes.c_uint64),
        ("out_batch", ctypes.c_uint64),
        ("keys", ctypes.c_uint64),
        ("values", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
        ("map_fd", ctypes.c_uint32),
        ("elem_flags", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    ]


class ProgramLoad(ctypes.Structure):
    """Arguments of PROG_LOAD."""

    _fields_: ClassVar = [
        ("prog_type", ctypes.c_uint32),
        ("insn_cnt", ctypes.c_uint32),
        ("insns", ctypes.c_uint64),
        ("license", ctypes.c_uint64),
        ("log_level", ctypes.c_uint32),
        ("log_size", ctypes.c_uint32),
        ("log_buf", ctypes.c_uint64),
        ("kern_version", ctypes.c_uint32),
        ("prog_flags", ctypes.c_uint32),
        ("prog_name", ctypes.c_char * NAME_BYTES),
        ("prog_ifindex", ctypes.c_uint32),
        ("expected_attach_type", ctypes.c_uint32),
        ("prog_btf_fd", ctypes.c_uint32),
        ("func_info_rec_size", ctypes.c_uint32),
        ("func_info", ctypes.c_uint64),
        ("func_info_cnt", ctypes.c_uint32),
        ("line_info_rec_size", ctypes.c_uint32),
        ("line_info", ctypes.c_uint64),
        ("line_info_cnt", ctypes.c_uint32),
        ("attach_btf_id", ctypes.c_uint32),
        ("attach_prog_fd", ctypes.c_uint32),
    ]


class RawTracepointOpen(ctypes.Structure):
    """Arguments of RAW_TRACEPOINT_OPEN."""

    _fields_: ClassVar = [("name", ctypes.c_uint64), ("prog_fd", ctypes.c_uint32)]


class ProgramTestRun(ctypes.Structure):
    """Arguments of PROG_TEST_RUN."""

    _fields_: ClassVar = [
        ("prog_fd", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("data_in", ctypes.c_uint64),
        ("data_out", ctypes.c_uint64),
        ("repeat", ctypes.c_uint32),
        ("duration", ctypes.c_uint32),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_uint64),
        ("ctx_out", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
    ]


class LinkCreate(ctypes.Structure):
    """Arguments of LINK_CREATE, as far as iterators need them."""

    _fields_: ClassVar = [
        ("prog_fd", ctypes.c_uint32),
        ("target_fd", ctypes.c_uint32),
        ("attach_type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("iter_info", ctypes.c_uint64),
        ("iter_info_len", ctypes.c_uint32),
    ]


class IterCreate(ctypes.Structure):
    """Arguments of ITER_CREATE."""

    _fields_: ClassVar = [("link_fd", ctypes.c_uint32), ("flags", ctypes.c_uint32)]


class EnableStats(ctypes.Structure):
    """Arguments of ENABLE_STATS."""

    _fields_: ClassVar = [("type", ctypes.c_uint32)]


class ObjectId(ctypes.Structure):
    """Arguments of commands that go by an object's id."""

    _fields_: ClassVar = [
        ("start_id", ctypes.c_uint32),
        ("next_id", ctypes.c_uint32),
        ("open_flags", ctypes.c_uint32),
    ]


class ObjectInfo(ctypes.Structure):
    """Arguments of OBJ_GET_INFO_BY_FD."""

    _fields_: ClassVar = [
        ("bpf_fd", ctypes.c_uint32),
        ("info_len", ctypes.c_uint32),
        ("info", ctypes.c_uint64),
    ]


class ProgramInfo(ctypes.Structure):
    """`struct bpf_prog_info`, the parts of interest by name."""

    _fields_: ClassVar = [
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("_tag_to_map_ids", ctypes.c_uint8 * 56),
        ("name", ctypes.c_char * NAME_BYTES),
        ("_ifindex_to_prog_tags", ctypes.c_uint8 * 112),
        ("run_time_ns", ctypes.c_uint64),
        ("run_cnt", ctypes.c_uint64),
        ("recursion_misses", ctypes.c_uint64),
    ]


class MapInfo(ctypes.Structure):
    """`struct bpf_map_info`."""

    _fields_: ClassVar = [
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("key_size", ctypes.c_uint32),
        ("value_size", ctypes.c_uint32),
        ("max_entries", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
        ("name", ctypes.c_char * NAME_BYTES),
        ("ifindex", ctypes.c_uint32),
        ("btf_vmlinux_value_type_id", ctypes.c_uint32),
        ("netns_dev", ctypes.c_uint64),
        ("netns_ino", ctypes.c_uint64),
        ("btf_id", ctypes.c_uint32),
        ("btf_key_type_id", ctypes.c_uint32),
        ("btf_value_type_id", ctypes.c_uint32),
    ]


class BtfLoad(ctypes.Structure):
    """Arguments of BTF_LOAD."""

    _fields_: ClassVar = [
        ("btf", ctypes.c_uint64),
        ("btf_log_buf", ctypes.c_uint64),
        ("btf_size", ctypes.c_uint32),
        ("btf_log_size", ctypes.c_uint32),
        ("btf_log_level", ctypes.c_uint32),
    ]


class BtfInfo(ctypes.Structure):
    """`struct bpf_btf_info`, its beginning."""

    _fields_: ClassVar = [("btf", ctypes.c_uint64), ("btf_size", ctypes.c_uint32), ("id", ctypes.c_uint32)]
