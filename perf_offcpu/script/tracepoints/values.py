# SPDX-License-Identifier: Apache-2.0
"""Numbers and texts out of a tracepoint's raw data, by the expressions of its recipe (`trace_parse`).

An expression becomes a function of the raw data, once an event. Numbers are those of libtraceevent's
eval_num_arg() (src/event-parse.c): 64 bits without sign, fields not sign-extended; names of which nothing is
known, like the kernel's variables, are 0.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from perf_offcpu.perfdata.tracing_data import TracepointField, TracepointFormat
from perf_offcpu.script.tracepoints.parse import Node, NotUnderstood

Number = Callable[[bytes], int]
Text = Callable[[bytes], str]
Bytes = Callable[[bytes], bytes]

ALL = 2**64 - 1
_DYNAMIC = re.compile(r"^__(?:data|rel)_loc\b")
_COUNT = re.compile(r"\[(\d{1,6})\]")
_WIDTH_OF_CAST = re.compile(
    r"^(?:__)?[us](?P<bits>8|16|32)$|^(?:(?:unsigned|signed) )?(?P<name>char|short|int)$|^unsigned$"
)
_WORDS = {"char": 8, "short": 16, "int": 32}
_LOCATIONS = ("__get_str", "__get_dynamic_array", "__get_rel_str", "__get_rel_dynamic_array")
_LENGTHS = ("__get_dynamic_array_len", "__get_rel_dynamic_array_len")

_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "|": operator.or_, "&": operator.and_,
    "^": operator.xor, "<<": lambda a, b: a << b if b < 64 else 0, ">>": operator.rshift,
    "/": lambda a, b: a // b if b else 0, "%": lambda a, b: a % b if b else 0,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le,
    ">=": operator.ge,
}  # fmt: skip


def signed(value: int, bits: int = 64) -> int:
    """A number of so many bits, as C prints it with %d."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


@dataclass(frozen=True, slots=True)
class Reader:
    """Compiles expressions over the raw data of one tracepoint.

    Args:
        order: its byte order; long_size: bytes of its longs and pointers.
        strings: the kernel's own strings by address.
    """

    event: TracepointFormat
    order: Literal["little", "big"]
    long_size: int
    strings: Mapping[int, str] = field(default_factory=dict)

    # Fields.

    def place(self, name: str) -> TracepointField:
        """A field of the record.

        Raises:
            NotUnderstood: there is none of that name.
        """
        if name not in self.event.fields:
            raise NotUnderstood(f"what {name} is")
        return self.event.fields[name]

    def read(self, place: TracepointField) -> Number:
        """A field as a number."""
        if place.size not in (1, 2, 4, 8):
            raise NotUnderstood(f"{place.declaration} as a number")
        return self._read_at(place.offset, place.size)

    def _read_at(self, offset: int, size: int) -> Number:
        end, order = offset + size, self.order
        return lambda data: int.from_bytes(data[offset:end], order)

    def content(self, place: TracepointField) -> Bytes:
        """The bytes of an array, wherever they lie."""
        begin, end = place.offset, place.offset + place.size
        if not _DYNAMIC.match(place.declaration):
            return lambda data: data[begin:end]
        shift = end if place.declaration.startswith("__rel") else 0
        where = self._read_at(begin, 4)

        def found(data: bytes) -> bytes:
            word = where(data)
            at = (word & 0xFFFF) + shift
            return data[at : at + (word >> 16)]

        return found

    # Numbers.

    def number(self, node: Node) -> Number:
        """The function that gives the value of an expression.

        Raises:
            NotUnderstood: it is no number, or is one that only the kernel can know.
        """
        make = getattr(self, f"_number_of_{node.kind}", None)
        if make is None:
            raise NotUnderstood(f"a {node.kind} as a number")
        made: Number = make(node)
        if node.kind != "number" and is_constant(node):  # masks are sums of many numbers
            value = made(b"")
            return lambda _: value
        return made

    def _number_of_number(self, node: Node) -> Number:
        value = int(node.text) & ALL
        return lambda _: value

    def _number_of_name(self, _: Node) -> Number:
        return lambda _: 0

    def _number_of_field(self, node: Node) -> Number:
        return self.read(self.place(node.text))

    def _number_of_cast(self, node: Node) -> Number:
        value, bits = self.number(node.parts[0]), _bits_of_cast(node.text)
        mask = (1 << bits) - 1
        return value if bits == 64 else lambda data: value(data) & mask

    def _number_of_unary(self, node: Node) -> Number:
        value = self.number(node.parts[0])
        match node.text:
            case "!":
                return lambda data: int(not value(data))
            case "~":
                return lambda data: ~value(data) & ALL
            case "-":
                return lambda data: -value(data) & ALL
            case "+":
                return value
        raise NotUnderstood("a pointer")

    def _number_of_binary(self, node: Node) -> Number:
        left, right = map(self.number, node.parts)
        if node.text == "&&":
            return lambda data: int(left(data) != 0 and right(data) != 0)
        if node.text == "||":
            return lambda data: int(left(data) != 0 or right(data) != 0)
        calculate = _ARITHMETIC[node.text]
        return lambda data: int(calculate(left(data), right(data))) & ALL

    def _number_of_choice(self, node: Node) -> Number:
        condition, chosen, other = map(self.number, node.parts)
        return lambda data: chosen(data) if condition(data) else other(data)

    def _number_of_index(self, node: Node) -> Number:
        inner, index = node.parts[0], self.number(node.parts[1])
        cast, inner = (inner.text, inner.parts[0]) if inner.kind == "cast" else ("", inner)
        place = self.located(inner)
        count = _COUNT.search(place.declaration)
        if cast:
            size = _bits_of_cast(cast.removesuffix("*").strip()) // 8
        elif count and int(count[1]) and place.size % int(count[1]) == 0:
            size = place.size // int(count[1])
        else:
            raise NotUnderstood(f"the items of {place.declaration}")
        content, order = self.content(place), self.order

        def item(data: bytes) -> int:
            at = size * index(data)
            return int.from_bytes(content(data)[at : at + size], order)

        return item

    def _number_of_call(self, node: Node) -> Number:
        if node.text in _LENGTHS and len(node.parts) == 1:
            word = self._read_at(self.place(node.parts[0].text).offset, 4)
            return lambda data: word(data) >> 16
        if node.text in ("likely", "unlikely", "__builtin_expect") and node.parts:
            return self.number(node.parts[0])
        raise NotUnderstood(f"{node.text}()")

    # Places.

    def located(self, node: Node) -> TracepointField:
        """The field that an expression leads to: REC->x, __get_dynamic_array(x), and casts of them."""
        if node.kind == "cast":
            return self.located(node.parts[0])
        if node.kind == "call" and node.text in _LOCATIONS and len(node.parts) == 1:
            return self.place(node.parts[0].text)
        if node.kind == "field":
            return self.place(node.text)
        raise NotUnderstood("where an array is")


def is_constant(node: Node) -> bool:
    """Whether an expression is a number that is the same in every record."""
    return node.kind in ("number", "cast", "unary", "binary", "choice") and all(map(is_constant, node.parts))


def _bits_of_cast(text: str) -> int:
    """How many bits a cast leaves: 64 for longs, pointers and types of which nothing is known."""
    match = _WIDTH_OF_CAST.match(text)
    if not match:
        return 64
    return int(match["bits"] or 0) or _WORDS[match["name"] or "int"]
