# SPDX-License-Identifier: Apache-2.0
"""Compiled programs and the maps they use, free of descriptors: to be kept, and brought to life again.

Instructions name a map by a descriptor of the process that loads them, in 64-bit immediate loads
(BPF_LD | BPF_DW | BPF_IMM) whose source register is BPF_PSEUDO_MAP_FD. Here they name it by its row in a
list of descriptions. What a map was created with the kernel tells by BPF_OBJ_GET_INFO_BY_FD, and so it does
for the BTF that the compiler made for keys and values, which maps of task storage need.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.collect.bpf.attr import (
    NAME_BYTES,
    BtfInfo,
    BtfLoad,
    Command,
    MapCreate,
    MapInfo,
    ObjectId,
    ObjectInfo,
)
from perf_offcpu.collect.bpf.syscall import call

# `struct bpf_insn`; its two registers of 4 bits each lie as C puts bit fields on this machine.
_INSTRUCTION = np.dtype([("code", "u1"), ("registers", "u1"), ("off", "=i2"), ("imm", "=i4")])
_LOAD_64 = 0x18  # BPF_LD | BPF_DW | BPF_IMM
_SOURCE_SHIFT = 4 if sys.byteorder == "little" else 0
_PSEUDO_MAP_FD = 1


@dataclass(frozen=True, slots=True)
class MapShape:
    """What a map is created with, by the names of `union bpf_attr`."""

    name: str
    map_type: int
    key_size: int
    value_size: int
    max_entries: int
    map_flags: int
    btf_key_type_id: int
    btf_value_type_id: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """All but the name, in order."""
        return (
            self.map_type, self.key_size, self.value_size, self.max_entries, self.map_flags,
            self.btf_key_type_id, self.btf_value_type_id,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BpfObject:
    """Programs and maps as a compiler makes them."""

    functions: Mapping[str, bytes]
    """Instructions; what loads a map has its row in `maps` for an immediate."""
    maps: tuple[MapShape, ...]
    btf: bytes
    """What the type ids of the maps refer to; empty if they have none."""

    def fits(self) -> bool:
        """Whether all parts belong together, as far as it matters to whoever links them."""
        return all(
            len(code) % _INSTRUCTION.itemsize == 0 and set(_maps_of(code)[1]) <= set(range(len(self.maps)))
            for code in self.functions.values()
        )


def describe(functions: Mapping[str, bytes], maps: Mapping[str, int]) -> BpfObject:
    """Take programs and maps of this process apart from it.

    Args:
        functions: instructions that refer to maps by descriptors.
        maps: by name, the descriptors of maps that are wanted; others that are used come by themselves.

    Raises:
        OSError: the kernel does not tell (it wants CAP_SYS_ADMIN to give BTF).
        ValueError: instructions refer to something else than maps.
    """
    if not all(_refers_to_maps_only(code) for code in functions.values()):
        raise ValueError("instructions that refer to something else than maps")
    used = {fd for code in functions.values() for fd in _maps_of(code)[1]} - set(maps.values())
    names = {fd: name for name, fd in maps.items()}
    fds = [*maps.values(), *sorted(used)]
    infos = [map_info(fd) for fd in fds]
    shapes = tuple(
        MapShape(
            names.get(fd) or info.name.decode(), info.type, info.key_size, info.value_size, info.max_entries,
            info.map_flags, info.btf_key_type_id, info.btf_value_type_id,
        ) for fd, info in zip(fds, infos, strict=True)
    )  # fmt: skip
    ids = {info.btf_id for info in infos} - {0}
    if len(ids) > 1:
        raise ValueError("maps with types of several compilations")
    rows = {fd: row for row, fd in enumerate(fds)}
    code = {name: _relinked(code, rows) for name, code in functions.items()}
    return BpfObject(code, shapes, _btf_bytes(ids.pop()) if ids else b"")


@contextmanager
def linked(made: BpfObject) -> Iterator[tuple[dict[str, bytes], dict[str, int]]]:
    """Create the maps, for as long as the `with` block lasts, and the instructions that use them.

    Yields:
        Instructions by function name and descriptors by map name, as `bpf_compile.compiled` does.

    Raises:
        OSError: the kernel refuses a map or its types.
    """
    with contextlib.ExitStack() as stack:
        btf = _load_btf(made.btf) if made.btf else 0
        if btf:
            stack.callback(os.close, btf)
        fds = []
        for shape in made.maps:
            fds.append(_create_map(shape, btf))
            stack.callback(os.close, fds[-1])
        rows = dict(enumerate(fds))
        functions = {name: _relinked(code, rows) for name, code in made.functions.items()}
        yield functions, {shape.name: fd for shape, fd in zip(made.maps, fds, strict=True)}


def _maps_of(code: bytes) -> tuple[NDArray[np.intp], list[int]]:
    """Which instructions load a map, and which map each of them names."""
    instructions = np.frombuffer(code, _INSTRUCTION)
    source = instructions["registers"] >> _SOURCE_SHIFT & 0xF
    loads = np.flatnonzero((instructions["code"] == _LOAD_64) & (source == _PSEUDO_MAP_FD))
    return loads, instructions["imm"][loads].tolist()


def _refers_to_maps_only(code: bytes) -> bool:
    instructions = np.frombuffer(code, _INSTRUCTION)
    loads = instructions[instructions["code"] == _LOAD_64]
    return bool(np.all((loads["registers"] >> _SOURCE_SHIFT & 0xF) <= _PSEUDO_MAP_FD))


def _relinked(code: bytes, maps: Mapping[int, int]) -> bytes:
    """The instructions with other names for the maps."""
    instructions = np.frombuffer(code, _INSTRUCTION).copy()
    loads, named = _maps_of(code)
    instructions["imm"][loads] = [maps[name] for name in named]
    return instructions.tobytes()


def map_info(fd: int) -> MapInfo:
    """What the kernel tells of a map."""
    info = MapInfo()
    _ask(fd, info)
    return info


def _ask(fd: int, info: ctypes.Structure) -> None:
    attr = ObjectInfo(bpf_fd=fd, info_len=ctypes.sizeof(info), info=ctypes.addressof(info))
    call(Command.OBJ_GET_INFO_BY_FD, attr)


def _btf_bytes(btf_id: int) -> bytes:
    fd = call(Command.BTF_GET_FD_BY_ID, ObjectId(start_id=btf_id))
    try:
        size = BtfInfo()
        _ask(fd, size)
        data = ctypes.create_string_buffer(size.btf_size)
        _ask(fd, BtfInfo(btf=ctypes.addressof(data), btf_size=len(data)))
        return data.raw
    finally:
        os.close(fd)


def _load_btf(data: bytes) -> int:
    buffer = ctypes.create_string_buffer(data, len(data))
    return call(Command.BTF_LOAD, BtfLoad(btf=ctypes.addressof(buffer), btf_size=len(data)))


def _create_map(shape: MapShape, btf: int) -> int:
    typed = shape.btf_key_type_id or shape.btf_value_type_id
    attr = MapCreate(
        map_type=shape.map_type,
        key_size=shape.key_size,
        value_size=shape.value_size,
        max_entries=shape.max_entries,
        map_flags=shape.map_flags,
        map_name=shape.name.encode()[: NAME_BYTES - 1],
        btf_fd=btf if typed else 0,
        btf_key_type_id=shape.btf_key_type_id,
        btf_value_type_id=shape.btf_value_type_id,
    )
    return call(Command.MAP_CREATE, attr)
