# SPDX-License-Identifier: Apache-2.0
"""Layouts and numbers of the bpf(2) system call: `union bpf_attr`, `struct bpf_prog_info` and their enums. Names and
order are those of include/uapi/linux/bpf.h. Everything named here exists since Linux 5.13 or longer. Structures end
with the last member that is used: the kernel takes missing members for zero."""

import ctypes
import enum

NAME_BYTES = 16  # BPF_OBJ_NAME_LEN, with the final NUL


class Command(enum.IntEnum):
    """Values of `enum bpf_cmd` that are used here."""

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
    MAP_LOOKUP_AND_DELETE_ELEM = 21
    MAP_LOOKUP_BATCH = 24
    MAP_DELETE_BATCH = 27
    LINK_CREATE = 28
    ENABLE_STATS = 32
    ITER_CREATE = 33


class ProgramType(enum.IntEnum):
    """Values of `enum bpf_prog_type` that are used here."""

    KPROBE = 2
    PERF_EVENT = 7
    RAW_TRACEPOINT = 17
    TRACING = 26


class MapType(enum.IntEnum):
    """Values of `enum bpf_map_type` that are used here."""

    ARRAY = 2
    PERF_EVENT_ARRAY = 4
    ARRAY_OF_MAPS = 12


class AttachType(enum.IntEnum):
    """Values of `enum bpf_attach_type` that are used here."""

    NONE = 0
    TRACE_RAW_TP = 23  # tp_btf programs
    TRACE_ITER = 28


def _u32(*names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_uint32) for name in names]


def _u64(*names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_uint64) for name in names]


def _bytes(name: str, size: int) -> list[tuple[str, type]]:
    return [(name, ctypes.c_char * size)]


def _structure(*members: list[tuple[str, type]]) -> type[ctypes.Structure]:
    return type("bpf_attr", (ctypes.Structure,), {"_fields_": [member for part in members for member in part]})


# Arguments of commands.

MapCreate = _structure(
    _u32("map_type", "key_size", "value_size", "max_entries", "map_flags", "inner_map_fd", "numa_node"),
    _bytes("map_name", NAME_BYTES),
    _u32("map_ifindex", "btf_fd", "btf_key_type_id", "btf_value_type_id"),
)
Element = _structure(_u32("map_fd"), _u64("key", "value_or_next_key"))
Batch = _structure(_u64("in_batch", "out_batch", "keys", "values"), _u32("count", "map_fd"))
ProgramLoad = _structure(
    _u32("prog_type", "insn_cnt"),
    _u64("insns", "license"),
    _u32("log_level", "log_size"),
    _u64("log_buf"),
    _u32("kern_version", "prog_flags"),
    _bytes("prog_name", NAME_BYTES),
    _u32("prog_ifindex", "expected_attach_type", "prog_btf_fd", "func_info_rec_size"),
    _u64("func_info"),
    _u32("func_info_cnt", "line_info_rec_size"),
    _u64("line_info"),
    _u32("line_info_cnt", "attach_btf_id"),
)
EnableStats = _structure(_u32("type"))
RawTracepointOpen = _structure(_u64("name"), _u32("prog_fd"))
ProgramTestRun = _structure(_u32("prog_fd", "retval"))
LinkCreate = _structure(_u32("prog_fd", "target_fd", "attach_type"))
IterCreate = _structure(_u32("link_fd"))
ObjectId = _structure(_u32("start_id", "next_id"))
ObjectInfo = _structure(_u32("bpf_fd", "info_len"), _u64("info"))
BtfLoad = _structure(_u64("btf", "btf_log_buf"), _u32("btf_size"))

# Results of OBJ_GET_INFO_BY_FD: `struct bpf_prog_info`, `struct bpf_map_info`, `struct bpf_btf_info`.

ProgramInfo = _structure(
    _u32("type", "id"),
    _bytes("_tag_to_map_ids", 56),
    _bytes("name", NAME_BYTES),
    _bytes("_ifindex_to_prog_tags", 112),
    _u64("run_time_ns", "run_cnt", "recursion_misses"),
)
MapInfo = _structure(
    _u32("type", "id", "key_size", "value_size", "max_entries", "map_flags"),
    _bytes("name", NAME_BYTES),
    _u32("ifindex", "btf_vmlinux_value_type_id"),
    _u64("netns_dev", "netns_ino"),
    _u32("btf_id", "btf_key_type_id", "btf_value_type_id"),
)
BtfInfo = _structure(_u64("btf"), _u32("btf_size"))
