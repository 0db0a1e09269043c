# SPDX-License-Identifier: Apache-2.0
"""The tables in Documentation/payload-format.md are made from the layouts and enums. After a change to them:

.venv/bin/python tests/unit/abi/test_payload_page.py"""

import enum
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from perf_offcpu.abi import counters, offcpu, wait_objects
from perf_offcpu.binary.fields import Field, Int
from perf_offcpu.binary.layout import Layout
from perf_offcpu.errors import LayoutError

PAGE = Path(__file__).parents[3] / "Documentation" / "payload-format.md"
LAYOUTS = {
    layout.name: layout
    for layout in (
        offcpu.PAYLOAD, offcpu.EXTENSION, offcpu.TCP, counters.COUNTERS, counters.COUNTER, counters.BUDGETS,
        counters.BUDGET, counters.PYTHON, counters.TASKS, counters.CODES, counters.CODE, counters.JIT_MAP,
        wait_objects.OBJECTS, wait_objects.OBJECT,
    )
}  # fmt: skip
_KINDS = (offcpu.Kind, offcpu.WaitFlag, offcpu.Lost, offcpu.ObjectLost, wait_objects.ObjectKind, wait_objects.LockRole)
ENUMS = {kind.__name__: kind for kind in _KINDS}
MARK = re.compile(r"^<!-- (table|values): (.+) -->\n(\n\|(?:.*\n)+?(?=\n))?", re.MULTILINE)


def page(text: str) -> str:
    """Return the page with a new table after each mark."""

    def table(mark: re.Match[str]) -> str:
        rows = layout_rows(LAYOUTS[mark[2]]) if mark[1] == "table" else enum_rows(ENUMS[mark[2]])
        return f"<!-- {mark[1]}: {mark[2]} -->\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)

    return MARK.sub(table, text).replace("| --- ", "|---").replace("--- |\n", "---|\n")


def layout_rows(layout: Layout) -> Iterator[list[str]]:
    has_unknown = any(field.unknown for field in layout.fields)
    head = ["offset", "field", *(["unknown"] if has_unknown else []), "meaning"]
    yield head
    yield ["---"] * len(head)
    for field in layout.fields:
        if isinstance(field.type, Layout):
            continue
        unknown = [number(field)] if has_unknown else []
        yield [offset(layout, field), f"`{declaration(field)}`", *unknown, field.doc]


def offset(layout: Layout, field: Field) -> str:
    try:
        return str(layout.offset(field.name))
    except LayoutError:
        return ""  # after an array of any length


def declaration(field: Field) -> str:
    kind = field.type
    name = f"{'s' if kind.signed else 'u'}{8 * kind.size}" if isinstance(kind, Int) else "char"
    return f"{name} {field.name}" + (f"[{field.count}]" if field.count else "")


def number(field: Field) -> str:
    assert isinstance(field.type, Int)
    largest = 2 ** (8 * field.type.size) - 1
    return f"2^{8 * field.type.size}-1" if field.unknown == largest else str(field.unknown)


def enum_rows(kind: type[enum.IntEnum | enum.IntFlag]) -> Iterator[list[str]]:
    is_flag = issubclass(kind, enum.IntFlag)
    yield ["bit" if is_flag else "value", "name", "meaning"]
    yield ["---"] * 3
    meanings = member_docs(kind)
    for member in kind:
        value = member.value.bit_length() - 1 if is_flag else member.value
        name = str(member.name)
        yield [str(value), name, meanings[name]]


def member_docs(kind: type[enum.Enum]) -> dict[str, str]:
    """Return the comment next to each member of an enum, in its source; it may go on in the next lines."""
    comments = re.findall(r"^    (\w+) = .*?  # (.*(?:\n    # .*)*)", inspect.getsource(kind), re.MULTILINE)
    return {name: text.replace("\n    #", "") for name, text in comments}


def test_the_page_shows_the_layouts_as_they_are() -> None:
    text = PAGE.read_text()
    assert {mark[1] for mark in re.finditer(r"<!-- \w+: (.+) -->", text)} == {*LAYOUTS, *ENUMS}
    assert text == page(text), __doc__


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
