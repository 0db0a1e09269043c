# SPDX-License-Identifier: Apache-2.0
"""Compiled programs and their maps, described without descriptors so that they can be stored and loaded again.

Instructions refer to a map by a descriptor of the process that loads them, in 64-bit immediate loads (BPF_LD | BPF_DW |
BPF_IMM) whose source register is BPF_PSEUDO_MAP_FD. Here they refer to it by its row in a list of descriptions.
BPF_OBJ_GET_INFO_BY_FD returns what a map was created with, and the BTF that the compiler made for its keys and values,
without which there is no map of task storage."""

import contextlib
import ctypes
import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.collect.bpf.attr import NAME_BYTES, BtfInfo, BtfLoad, Command, MapCreate, MapInfo, MapType, ObjectId
from perf_offcpu.collect.bpf.syscall import call, read_info
from perf_offcpu.collect.system.cpus import possible_cpus
from perf_offcpu.files import descriptor

# `struct bpf_insn`; its two registers of 4 bits each lie as C puts bit fields on this machine.
_INSTRUCTION = np.dtype([("code", "u1"), ("registers", "u1"), ("off", "=i2"), ("imm", "=i4")])
_LOAD_64 = 0x18  # BPF_LD | BPF_DW | BPF_IMM
_SOURCE_SHIFT = 4 if sys.byteorder == "little" else 0
_PSEUDO_MAP_FD = 1
_CALL = 0x85  # BPF_JMP | BPF_CALL
_PSEUDO_KFUNC_CALL = 2

KERNEL_FUNCTION = 1 << 30
"""Base of helper numbers that stand for kernel functions: compiled code calls KERNEL_FUNCTION + the BTF id."""
LATE_VALUE = 0x6C617465 << 32
"""Base of 64-bit numbers that stand for values known at loading: LATE_VALUE + an enumerator of `enum offcpu_late`."""


@dataclass(frozen=True, slots=True)
class MapShape:
    """Arguments with which a map is created, by their names in `union bpf_attr`."""

    name: str
    map_type: int
    key_size: int
    value_size: int
    max_entries: int
    map_flags: int
    btf_key_type_id: int
    btf_value_type_id: int


@dataclass(frozen=True, slots=True)
class BpfObject:
    """Compiled programs and descriptions of their maps, free of descriptors, so that they can be stored."""

    functions: Mapping[str, bytes]  # instructions; the immediate of a load of a map is its row in `maps`
    maps: tuple[MapShape, ...]
    btf: bytes  # the types to which the type ids of the maps refer; empty if they have none

    def is_consistent(self) -> bool:
        """Return True if all functions have complete instructions whose loads of maps refer to rows of `maps`."""
        return all(
            len(code) % _INSTRUCTION.itemsize == 0 and set(_maps_of(code)[1]) <= set(range(len(self.maps)))
            for code in self.functions.values()
        )


def describe(functions: Mapping[str, bytes], maps: Mapping[str, int]) -> BpfObject:
    """Return loaded programs and their maps in a form without descriptors. `functions`: name → instructions, which
    refer to maps by descriptor. `maps`: name → descriptor; further maps that the instructions load are described, too.
    Raises OSError: the kernel does not return a description (for BTF it requires CAP_SYS_ADMIN); ValueError:
    instructions refer to other objects than maps, or the maps to several BTF objects."""
    for program in functions.values():
        instructions = np.frombuffer(program, _INSTRUCTION)
        loads = instructions[instructions["code"] == _LOAD_64]
        if np.any((loads["registers"] >> _SOURCE_SHIFT & 0xF) > _PSEUDO_MAP_FD):
            raise ValueError("instructions that refer to other objects than maps")
    used = {fd for code in functions.values() for fd in _maps_of(code)[1]} - set(maps.values())
    names = {fd: name for name, fd in maps.items()}
    infos = {fd: read_info(fd, MapInfo()) for fd in (*maps.values(), *sorted(used))}
    same = [field.name for field in dataclasses.fields(MapShape) if field.name not in ("name", "map_type")]
    shapes = tuple(
        MapShape(names.get(fd) or info.name.decode(), info.type, *(getattr(info, name) for name in same))
        for fd, info in infos.items()
    )
    ids = {info.btf_id for info in infos.values()} - {0}
    if len(ids) > 1:
        raise ValueError("maps with types of several compilations")
    rows = {fd: row for row, fd in enumerate(infos)}
    code = {name: _relinked(code, rows) for name, code in functions.items()}
    return BpfObject(code, shapes, _btf_bytes(ids.pop()) if ids else b"")


@contextmanager
def linked(programs: BpfObject) -> Iterator[tuple[dict[str, bytes], dict[str, int]]]:
    """Create the maps of `programs` for the time of the `with` block, and put their descriptors into the instructions.
    Yield (name → instructions, map name → descriptor). Raises OSError: the kernel refuses a map or its types."""
    with contextlib.ExitStack() as stack:
        btf = 0
        if programs.btf:
            buffer = ctypes.create_string_buffer(programs.btf, len(programs.btf))
            btf = call(Command.BTF_LOAD, BtfLoad(btf=ctypes.addressof(buffer), btf_size=len(buffer)))
            stack.callback(os.close, btf)
        fds = []
        for shape in programs.maps:
            fds.append(_create_map(shape, btf))
            stack.callback(os.close, fds[-1])
        rows = dict(enumerate(fds))
        functions = {name: _relinked(code, rows) for name, code in programs.functions.items()}
        yield functions, {shape.name: fd for shape, fd in zip(programs.maps, fds, strict=True)}


def with_kernel_functions(code: bytes) -> bytes:
    """Replace each call of helper number KERNEL_FUNCTION + i in the code by a call of the kfunc with BTF id i."""
    instructions = np.frombuffer(code, _INSTRUCTION).copy()
    calls = (instructions["code"] == _CALL) & (instructions["registers"] == 0)
    calls &= instructions["imm"] >= KERNEL_FUNCTION
    instructions["registers"][calls] = _PSEUDO_KFUNC_CALL << _SOURCE_SHIFT
    instructions["imm"][calls] -= KERNEL_FUNCTION
    return instructions.tobytes()


def with_late_values(code: bytes, values: Sequence[int]) -> bytes:
    """Replace the immediate LATE_VALUE + i of each 64-bit load in the instructions by values[i]."""
    instructions = np.frombuffer(code, _INSTRUCTION).copy()
    number = instructions["imm"].view("=u4")  # its upper half is in the instruction that follows
    stands_for_value = (instructions["code"][:-1] == _LOAD_64) & (number[1:] == LATE_VALUE >> 32)
    for row in np.flatnonzero(stands_for_value & (number[:-1] < len(values))).tolist():
        value = values[number[row]]
        number[row], number[row + 1] = value & 0xFFFFFFFF, value >> 32
    return instructions.tobytes()


def _maps_of(code: bytes) -> tuple[NDArray[np.intp], list[int]]:
    """Return (int[n]: indices of the instructions that load a map; their immediates: descriptors or rows of maps)."""
    instructions = np.frombuffer(code, _INSTRUCTION)
    source = instructions["registers"] >> _SOURCE_SHIFT & 0xF
    loads = np.flatnonzero((instructions["code"] == _LOAD_64) & (source == _PSEUDO_MAP_FD))
    return loads, instructions["imm"][loads].tolist()


def _relinked(code: bytes, maps: Mapping[int, int]) -> bytes:
    """Replace the immediate i (descriptor or row) of each load of a map in the instructions by maps[i]."""
    instructions = np.frombuffer(code, _INSTRUCTION).copy()
    loads, references = _maps_of(code)
    instructions["imm"][loads] = [maps[reference] for reference in references]
    return instructions.tobytes()


def _btf_bytes(btf_id: int) -> bytes:
    with descriptor(call(Command.BTF_GET_FD_BY_ID, ObjectId(start_id=btf_id))) as fd:
        data = ctypes.create_string_buffer(read_info(fd, BtfInfo()).btf_size)
        read_info(fd, BtfInfo(btf=ctypes.addressof(data), btf_size=len(data)))
        return data.raw


def _create_map(shape: MapShape, btf: int) -> int:
    arguments = dataclasses.asdict(shape)
    name = arguments.pop("name").encode()[: NAME_BYTES - 1]
    if shape.map_type == MapType.PERF_EVENT_ARRAY:
        arguments["max_entries"] = len(possible_cpus())  # the machine may have more by now
    typed = shape.btf_key_type_id or shape.btf_value_type_id
    return call(Command.MAP_CREATE, MapCreate(map_name=name, btf_fd=btf if typed else 0, **arguments))
