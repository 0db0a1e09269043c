# SPDX-License-Identifier: Apache-2.0
"""Texts out of a tracepoint's raw data: what `%s` prints in a recipe (`trace_text`).

As print_str_arg() of libtraceevent (src/event-parse.c) has them.
"""

from __future__ import annotations

from perf_offcpu.script.tracepoints.parse import Node, NotUnderstood
from perf_offcpu.script.tracepoints.values import Bytes, Number, Reader, Text, is_constant

_STRINGS = ("__get_str", "__get_rel_str", "__get_dynamic_array", "__get_rel_dynamic_array")
_BITMASKS = ("__get_bitmask", "__get_rel_bitmask", "__get_cpumask", "__get_rel_cpumask")
_MOST_ITEMS = 4096


def texts_of(node: Node, reader: Reader) -> Text:
    """The function that makes the text of an expression.

    Raises:
        NotUnderstood: it is none that can be one.
    """
    if node.kind == "string":
        return lambda _: node.text
    if is_constant(node) and reader.number(node)(b"") == 0:  # NULL
        return lambda _: ""
    if node.kind == "cast":
        return texts_of(node.parts[0], reader)
    if node.kind == "choice":
        condition = reader.number(node.parts[0])
        chosen, other = texts_of(node.parts[1], reader), texts_of(node.parts[2], reader)
        return lambda data: chosen(data) if condition(data) else other(data)
    if node.kind == "field":
        return _of_field(node.text, reader)
    if node.kind == "call":
        return _of_call(node, reader)
    raise NotUnderstood(f"a {node.kind} as text")


def _of_field(name: str, reader: Reader) -> Text:
    place = reader.place(name)
    if "[" not in place.declaration and place.size == reader.long_size:
        value, strings = reader.read(place), reader.strings
        return lambda data: strings.get(address := value(data)) or f"{address:x}"
    return _terminated(reader.content(place))


def _terminated(content: Bytes) -> Text:
    def text(data: bytes) -> str:
        return content(data).split(b"\0", 1)[0].decode("utf-8", "surrogateescape")

    return text


def _of_call(node: Node, reader: Reader) -> Text:
    name, parts = node.text, node.parts
    if name in _STRINGS and len(parts) == 1:
        return _terminated(reader.content(reader.located(node)))
    if name in _BITMASKS and len(parts) == 1:
        return _bitmask(reader.content(reader.place(parts[0].text)), reader)
    if name in ("__print_flags", "__print_flags_u64") and len(parts) >= 2 and parts[1].kind == "string":
        return _flags(reader.number(parts[0]), parts[1].text, _table(parts[2:], reader))
    if name in ("__print_symbolic", "__print_symbolic_u64") and len(parts) >= 1:
        return _symbolic(reader.number(parts[0]), _table(parts[1:], reader))
    if name in ("__print_hex", "__print_hex_str") and len(parts) == 2:
        return _hex(
            reader.content(reader.located(parts[0])),
            reader.number(parts[1]),
            " " if name == "__print_hex" else "",
        )
    if name == "__print_array" and len(parts) == 3:
        return _array(
            reader.content(reader.located(parts[0])),
            reader.number(parts[1]),
            reader.number(parts[2])(b"") if is_constant(parts[2]) else 0,
            reader,
        )
    raise NotUnderstood(f"{name}()")


def _table(parts: tuple[Node, ...], reader: Reader) -> list[tuple[int, str]]:
    """The pairs `{ number, "name" }`, perhaps with an empty one at the end."""
    pairs = []
    for part in parts:
        if part.kind != "list":
            raise NotUnderstood("what is in a table")
        if len(part.parts) < 2 or part.parts[1].kind != "string":
            break  # { -1, NULL }
        # The kernel has not made numbers of all its names: those stand for nothing.
        if is_constant(part.parts[0]):
            pairs.append((reader.number(part.parts[0])(b""), part.parts[1].text))
    return pairs


def _flags(value: Number, separator: str, pairs: list[tuple[int, str]]) -> Text:
    zero = next((name for bits, name in pairs if bits >> 63), "")  # a negative one stands for no flag
    flags = [(bits, name) for bits, name in pairs if 0 < bits < 2**63]
    known: dict[int, str] = {}

    def text(data: bytes) -> str:
        rest = asked = value(data)
        if asked in known:
            return known[asked]
        names = [zero] if not asked and zero else []
        for bits, name in flags:
            if rest & bits == bits:
                names.append(name)
                rest &= ~bits
        if rest:
            names.append(f"0x{rest:x}")
        shown = separator.join(names)
        if len(known) < _MOST_ITEMS:
            known[asked] = shown
        return shown

    return text


def _symbolic(value: Number, pairs: list[tuple[int, str]]) -> Text:
    names: dict[int, str] = {}
    for number, name in pairs:
        names.setdefault(number, name)

    def text(data: bytes) -> str:
        number = value(data)
        return names.get(number) or f"0x{number:x}"

    return text


def _hex(content: Bytes, count: Number, separator: str) -> Text:
    return lambda data: separator.join(f"{byte:02x}" for byte in content(data)[: count(data)])


def _array(content: Bytes, count: Number, size: int, reader: Reader) -> Text:
    if size not in (1, 2, 4, 8):
        raise NotUnderstood("the size of items")

    def text(data: bytes) -> str:
        items = content(data)[: min(count(data), _MOST_ITEMS) * size]
        numbers = (items[at : at + size] for at in range(0, len(items), size))
        return " ".join(str(int.from_bytes(one, reader.order)) for one in numbers)

    return text


def _bitmask(content: Bytes, reader: Reader) -> Text:
    """As the kernel prints a mask: groups of 8 hex digits, the highest first, without zeros in front."""

    def text(data: bytes) -> str:
        words = content(data)
        step = reader.long_size
        longs = [int.from_bytes(words[at : at + step], reader.order) for at in range(0, len(words), step)]
        number = sum(word << 8 * step * place for place, word in enumerate(longs))
        digits = f"{number:0{2 * len(words)}x}" if words else ""
        return ",".join(digits[at : at + 8] for at in range(0, len(digits), 8))

    return text
