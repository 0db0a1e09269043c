# SPDX-License-Identifier: Apache-2.0
"""Writes kernel type information."""

import struct

from perf_offcpu.collect.system.btf import Kind


class BtfBuilder:
    """Writes BTF as include/uapi/linux/btf.h describes it; each method gives the new type's id."""

    def __init__(self) -> None:
        self.types = b""
        self.strings = b"\0"
        self.count = 0

    def _name(self, name: str) -> int:
        if not name:
            return 0
        if (known := self.strings.find(b"\0" + name.encode() + b"\0")) >= 0:
            return known + 1  # as pahole: each string once
        self.strings += name.encode() + b"\0"
        return len(self.strings) - len(name) - 1

    def _add(self, name: str, kind: Kind, vlen: int, size_or_type: int, tail: bytes = b"", flag: int = 0) -> int:
        self.types += struct.pack("=III", self._name(name), flag << 31 | kind << 24 | vlen, size_or_type) + tail
        self.count += 1
        return self.count

    def integer(self, name: str, size: int) -> int:
        return self._add(name, Kind.INT, 0, size, struct.pack("=I", size * 8))

    def pointer(self, to: int) -> int:
        return self._add("", Kind.PTR, 0, to)

    def modifier(self, kind: Kind, to: int, name: str = "") -> int:
        return self._add(name, kind, 0, to)

    def composite(self, name: str, size: int, *members: tuple[str, int, int], kind: Kind = Kind.STRUCT) -> int:
        tail = b"".join(struct.pack("=III", self._name(m), t, bits) for m, t, bits in members)
        return self._add(name, kind, len(members), size, tail)

    def with_bit_fields(self, name: str, size: int, *members: tuple[str, int, int, int]) -> int:
        tail = b"".join(struct.pack("=III", self._name(m), t, w << 24 | bits) for m, t, bits, w in members)
        return self._add(name, Kind.STRUCT, len(members), size, tail, flag=1)

    def function_type(self, *arguments: int) -> int:
        return self._add("", Kind.FUNC_PROTO, len(arguments), 0, b"".join(struct.pack("=II", 0, t) for t in arguments))

    def per_cpu(self, variables: dict[str, int]) -> None:
        entries = b"".join(
            struct.pack("=III", self._add(name, Kind.VAR, 0, 1, struct.pack("=I", 1)), offset, 4)
            for name, offset in variables.items()
        )
        self._add(".data..percpu", Kind.DATASEC, len(variables), 1 << 16, entries)

    def others(self) -> None:
        """One type of each kind that is only passed over."""
        self._add("", Kind.ARRAY, 0, 0, struct.pack("=III", 1, 1, 7))
        self._add("enum32", Kind.ENUM, 2, 4, struct.pack("=IiIi", self._name("A"), 0, self._name("B"), 1))
        self._add("enum64", Kind.ENUM64, 1, 8, struct.pack("=III", self._name("C"), 0, 1))
        self._add("forward", Kind.FWD, 0, 0)
        self._add("function", Kind.FUNC, 1, 1)
        self._add("variable", Kind.VAR, 0, 1, struct.pack("=I", 1))
        self._add(".data", Kind.DATASEC, 1, 8, struct.pack("=III", 1, 0, 4))
        self._add("real", Kind.FLOAT, 0, 8)
        self._add("tag", Kind.DECL_TAG, 0, 1, struct.pack("=i", -1))

    def bytes(self) -> bytes:
        lengths = 0, len(self.types), len(self.types), len(self.strings)
        return struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, *lengths) + self.types + self.strings
