# SPDX-License-Identifier: Apache-2.0
"""What a tracepoint said, as perf script prints it: `vec=9 [action=RCU]`.

The recipe is the kernel's own (`print fmt` of the event's format), carried out as libtraceevent does it
(src/event-parse.c: pretty_print()), because that is what people know from perf. Where a recipe cannot be
carried out outside of the kernel, perf prints `[FAILED TO PARSE] name=value …`; so does this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from perf_offcpu.perfdata.tracing_data import TracepointField, TracepointFormat, TracingData
from perf_offcpu.script.tracepoints.parse import Node, NotUnderstood, parse_print_fmt
from perf_offcpu.script.tracepoints.pointers import FUNCTIONS, Symbols, pointer_text
from perf_offcpu.script.tracepoints.strings import texts_of
from perf_offcpu.script.tracepoints.values import Number, Reader, Text, signed

FAILED = "[FAILED TO PARSE]"

_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?(?P<length>hh|h|ll|l|L|z|Z|t|j|q)?"
    r"(?P<letter>p[a-zA-Z0-9]*|[diuxXocs%])"
)
_WIDEST = 4096
_MOST_TEXTS = 1 << 15
_BITS = {"hh": 8, "h": 16, "": 32}


def reader_of(tracing: TracingData, event: TracepointFormat) -> Reader:
    """What reads the raw data of a tracepoint of a recording."""
    return Reader(event, "little" if tracing.order == "<" else "big", tracing.long_size, tracing.strings)


def text_maker(reader: Reader, symbols: Symbols) -> Text:
    """The function that makes text of the raw data of a tracepoint.

    Args:
        symbols: names the kernel addresses in it.
    """
    event = reader.event
    try:
        template, arguments = parse_print_fmt(event.print_fmt)
        parts = list(_parts(template, iter(arguments), reader, symbols))
    except NotUnderstood:
        fields = _all_fields(reader)
        return lambda data: FAILED + fields(data)
    return lambda data: "".join([part if isinstance(part, str) else part(data) for part in parts])


def remembered(make: Text, event: TracepointFormat) -> Text:
    """The same function, which makes each text once: most events say few different things.

    Args:
        make: gives the text of the event's own fields, as `text_maker` does.
    """
    fields = event.fields.items()
    own = [place.offset for name, place in fields if not name.startswith("common_")]
    # In front lies what no two records share: flags, and the task in which it happened.
    begin = 0 if "common_" in event.print_fmt else min(own, default=0)
    known: dict[bytes, str] = {}

    def text(data: bytes) -> str:
        said = data[begin:]
        found = known.get(said)
        if found is None:
            if len(known) >= _MOST_TEXTS:
                known.clear()
            found = known[said] = make(data)
        return found

    return text


def kernel_addresses(reader: Reader) -> list[Number]:
    """What of the raw data is printed as a function's name (%ps, %pS): to look the names up before."""
    wanted: list[Number] = []
    try:
        template, arguments = parse_print_fmt(reader.event.print_fmt)
        list(_parts(template, iter(arguments), reader, lambda _: None, wanted))
    except NotUnderstood:
        return []
    return wanted


def _parts(
    template: str,
    arguments: Iterator[Node],
    reader: Reader,
    symbols: Symbols,
    addresses: list[Number] | None = None,
) -> Iterator[str | Text]:
    """The pieces of a text in order: those that are always the same, and functions of the raw data."""
    at = 0
    while at < len(template):
        percent = template.find("%", at)
        if percent != at:
            yield template[at : percent if percent >= 0 else len(template)]
            if percent < 0:
                return
        match = _CONVERSION.match(template, percent)
        if match is None:
            raise NotUnderstood(template[percent : percent + 5])
        at = match.end()
        letter = match["letter"]
        if letter == "%":
            yield "%"
            continue
        stars = [
            reader.number(_next(arguments)) for one in (match["width"], match["precision"]) if one == "*"
        ]
        numbers = [int(one) for one in (match["width"], match["precision"]) if one and one.isdigit()]
        if any(number > _WIDEST for number in numbers):
            raise NotUnderstood("too wide")
        node = _next(arguments)
        if letter == "s":
            yield _with_stars(match, stars, texts_of(node, reader))
        elif letter[0] == "p":
            if addresses is not None and letter in FUNCTIONS:
                addresses.append(reader.number(node))
            yield pointer_text(letter, node, reader, symbols)
        else:
            yield _number(match, stars, reader.number(node), reader.long_size)


def _next(arguments: Iterator[Node]) -> Node:
    for node in arguments:
        return node
    raise NotUnderstood("too few arguments")


def _number(match: re.Match[str], stars: list[Number], value: Number, long_size: int) -> Text:
    letter, flags = match["letter"], match["flags"]
    bits = _BITS.get(match["length"] or "", 64 if match["length"] != "l" else 8 * long_size)
    shown = f"%{flags}{match['width']}" + ("" if match["precision"] is None else f".{match['precision']}")
    mask = (1 << bits) - 1
    if letter == "c":
        return lambda data: chr(value(data) & 0xFF)
    python = {"u": "d", "i": "d"}.get(letter, letter)

    def convert(data: bytes) -> str:
        number = signed(value(data), bits) if letter in "di" else value(data) & mask
        # Python says 0x0 where C says 0.
        form = shown.replace("#", "") if number == 0 else shown
        return form % (*(_width(star(data)) for star in stars), number)

    shown += python
    return convert


def _width(value: int) -> int:
    return max(-_WIDEST, min(_WIDEST, signed(value, 32)))


def _with_stars(match: re.Match[str], stars: list[Number], text: Text) -> Text:
    shown = f"%{match['flags'].replace('0', '')}{match['width']}"
    shown += ("" if match["precision"] is None else f".{match['precision']}") + "s"
    if shown == "%s":
        return text
    return lambda data: shown % (*(_width(star(data)) for star in stars), text(data))


# Without a recipe.


def _all_fields(reader: Reader) -> Text:
    """` name=value` of each field of the event's own, as tep_print_fields() has them."""
    own = [(name, place) for name, place in reader.event.fields.items() if not name.startswith("common_")]
    makers = [(name, _plain(place, reader)) for name, place in own]
    return lambda data: "".join([f" {name}={make(data)}" for name, make in makers])


def _plain(place: TracepointField, reader: Reader) -> Text:
    declared = place.declaration
    if "[" in declared or declared.startswith(("__data_loc", "__rel_loc")):
        return _plain_array(place, reader)
    try:
        value = reader.read(place)
    except NotUnderstood:
        return lambda _: "?"
    if "*" in declared or ("long" in declared and (not place.signed or place.size == 4)):
        return lambda data: f"0x{value(data):x}"
    if place.signed:
        width = 2 if place.size == 2 else 1
        return lambda data: f"{signed(value(data), 8 * place.size):{width}d}"
    return lambda data: str(value(data))


def _plain_array(place: TracepointField, reader: Reader) -> Text:
    content = reader.content(place)
    may_be_text = any(word in place.declaration for word in ("char", "u8", "s8"))

    def array(data: bytes) -> str:
        found = content(data)
        text = found.split(b"\0")[0]
        if may_be_text and found and all(32 <= byte < 127 or 9 <= byte <= 13 for byte in text):
            return text.decode("ascii")
        return f"ARRAY[{', '.join(f'{byte:02x}' for byte in found)}]"

    return array
