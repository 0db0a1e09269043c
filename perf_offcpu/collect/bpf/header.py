# SPDX-License-Identifier: Apache-2.0
"""Read the declarations that the BPF program and user space share from the C header bpf/off_cpu.h: structures of map
keys and values, and enumerations. They are parsed, so that none is repeated in Python: enumerators that count from 0 or
have a value, structures of integers and of arrays of integers, and integer `#define`s."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_CONSTANT = re.compile(
    r"(?:^#define[ \t]+|\b(?=[A-Z]\w+ = ))(\w+)(?: = |[ \t]+)(0x[0-9a-f]+|\d+)(?=[ \t]*$|,| \})", re.MULTILINE
)
_BLOCK = re.compile(r"^(enum|struct) (\w+) \{(.*?)^\};", re.MULTILINE | re.DOTALL)
_ENUMERATOR = re.compile(r"\b(?:offcpu_)?(\w+)")
_MEMBERS = re.compile(r"([su])(8|16|32|64) (\w+(?:\[\w+\])?(?:, \w+(?:\[\w+\])?)*);")
_MEMBER = re.compile(r"(\w+)(?:\[(\w+)\])?")
_PREFIX = "offcpu_"


@dataclass(frozen=True, slots=True)
class SharedHeader:
    """Declarations of a BPF header; names lack the prefix `offcpu_`, enumerators are in lower case."""

    enums: Mapping[str, tuple[str, ...]]  # enumerators in order: the first is 0
    structs: Mapping[str, np.dtype[Any]]  # structures with the padding of C, as in maps
    constants: Mapping[str, int]  # integer `#define`s and enumerators with a value, by their names in C


def read_header(path: Path) -> SharedHeader:
    """Parse the enumerations, structures and integer `#define`s of a C header."""
    text = _COMMENT.sub("", path.read_text())  # direct: the package's own header
    constants = {name: int(value, 0) for name, value in _CONSTANT.findall(text)}
    blocks = [(kind, name.removeprefix(_PREFIX), body) for kind, name, body in _BLOCK.findall(text)]
    return SharedHeader(
        {name: tuple(_ENUMERATOR.findall(body.lower())) for kind, name, body in blocks if kind == "enum"},
        {name: _structure(body, constants) for kind, name, body in blocks if kind == "struct"},
        constants,
    )


def _structure(body: str, constants: Mapping[str, int]) -> np.dtype[Any]:
    members = [
        (
            name,
            f"{'u' if sign == 'u' else 'i'}{int(bits) // 8}",
            (constants.get(length) or int(length),) if length else (),
        )
        for sign, bits, names in _MEMBERS.findall(body)
        for name, length in _MEMBER.findall(names)
    ]
    return np.dtype(members, align=True)
