# SPDX-License-Identifier: Apache-2.0
"""Pages of Documentation that are made of tables and declarations of the package. After a change to these:

.venv/bin/python tests/unit/test_pages.py"""

import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from perf_offcpu.abi import counters, offcpu, wait_objects
from perf_offcpu.analysis.classes.program_rules import BROUGHT, UNENDED, WORKERS, built_in_rules
from perf_offcpu.analysis.classes.wait_classes import BY_LABEL, CLASSES
from perf_offcpu.analysis.interpreters import INTERPRETERS
from perf_offcpu.binary.layout import Field, Int, Layout
from perf_offcpu.dataset.schema import PARTITIONS, TABLES, VERSION, Column
from perf_offcpu.errors import LayoutError
from perf_offcpu.losses import CAUSES, LossCause, Stage
from perf_offcpu.model import recording
from perf_offcpu.model.columns import Table
from perf_offcpu.model.profile import Frames, ProfileSamples, Stacks
from perf_offcpu.model.recording import SampleFlag, Samples

DOCUMENTATION = Path(__file__).parents[2] / "Documentation"


def entries(*rows: str) -> str:
    """Return a list in Markdown."""
    return "".join(f"- {row}\n" for row in rows)


def replaced(pattern: str, part: str, text: str) -> str:
    """Return the text with a new part in the only place that matches the pattern."""
    new, places = re.subn(pattern, lambda _: part, text, flags=re.MULTILINE)
    assert places == 1, f"{places} places of the page match {pattern!r}"
    return new


# dataset.md


def dataset_page(text: str) -> str:
    parts = [f"### {name}\n\n{dataset_table(columns)}" for name, columns in TABLES.items()]
    parts.append(f"### Partitions of each table\n\n{dataset_table(PARTITIONS)}")
    begin, end = "<!-- tables -->\n", "<!-- end of tables -->\n"
    return replaced(rf"^{begin}(?:.*\n)*{end}", "\n".join([begin, f"Version {VERSION}.", "", *parts, end]), text)


def dataset_table(columns: tuple[Column, ...]) -> str:
    samples = {(column.name, column.type): column.doc for column in TABLES["samples"]}
    rows, shared = [], []
    for column in columns:
        if columns is not TABLES["samples"] and samples.get((column.name, column.type)) == column.doc:
            shared.append(f"`{column.name}`")
        else:
            rows.append(f"`{column.name}` {column.type}{' or null' if column.nullable else ''}: {column.doc}")
    if shared:
        rows.append(f"as in samples: {', '.join(shared)}")
    return entries(*rows)


# losses.md


def losses_page(text: str) -> str:
    return text.partition("## ")[0] + "\n".join(map(losses_section, Stage))


def losses_section(stage: Stage) -> str:
    causes = [row for row in CAUSES.values() if row.stage is stage]
    said_by_title = {Stage.NAMES: "no name: ", Stage.LINES: "no source lines: "}.get(stage, "")
    rows = [f"`{row.name}`{mark(row)}: {str(row).removeprefix(said_by_title)}" for row in causes]
    return f"## {stage.value}\n\n{entries(*rows)}"


def mark(row: LossCause) -> str:
    if not row.is_loss and row.stage in (Stage.BPF, Stage.RECORDER):
        return "‡"
    return "†" if row.in_last_line else ""


# tables.md

RECORDING = "Samples DeferredChains Spaces Maps Dsos Comms Tasks Budget KernelSymbols".split()
MODEL: dict[str, tuple[type[Table], ...]] = {
    "Recording: raw addresses": tuple(getattr(recording, name) for name in RECORDING),
    "Profile: named frames": (ProfileSamples, Stacks, Frames),
}


def model_page(text: str) -> str:
    parts = [text.partition("## ")[0]]
    for title, kinds in MODEL.items():
        parts += [f"## {title}\n\n", *(f"{model_table(kind)}\n" for kind in kinds)]
    names = ", ".join(f"{flag.value.bit_length() - 1} `{flag.name}`" for flag in SampleFlag)
    return "".join([*parts, "### Bits of `flags` (SampleFlag)\n\n", textwrap.fill(names, 120), "\n"])


def model_table(kind: type[Table]) -> str:
    meaning = (kind.__doc__ or "").partition("\n")[0].replace("`", "")
    rows = []
    shared = {}
    if kind is ProfileSamples:
        shared = {name: column for name, column in kind.columns.items() if Samples.columns.get(name) == column}
        meaning += f" The columns of Samples up to `{[*shared][-1]}`, and:"
    tcp = [name for name in kind.columns if name.startswith("tcp_") and name not in shared]
    for name, column in kind.columns.items():
        if tcp and name == tcp[0]:
            rows.append(f"`{tcp[0]}` to `{tcp[-1]}` {column.dtype}: facts about a TCP connection (payload-format.md)")
        elif name not in shared and name not in tcp:
            none = "" if column.sentinel is None else f" ({column.sentinel})"
            unit = f", {column.unit}" if column.unit else ""
            rows.append(f"`{name}` {column.dtype}{unit}{none}: {column.doc}")
    return f"### {kind.__name__}\n\n{meaning}\n\n{entries(*rows)}"


# wait-classes.md, user-stacks.md, and the part of several man pages about selections


def classes_page(text: str) -> str:
    made = entries(*(f"`{class_.label}`: {class_.row.meaning}" for class_ in CLASSES))
    text = replaced(r"^- `lock`.*\n(?:- .*\n)*", made, text)
    return replaced(r"^- \w+, the mutex.*\n(?:- .*\n)*", rules_list(), text)


def rules_list() -> str:
    rows = []
    for rule in built_in_rules():
        frames, callers = (code(names) for names in (rule.frames, rule.callers))
        frames = f"{frames} called by {callers}" if callers else frames
        conditions = {UNENDED: "idle if unended", BROUGHT: "idle unless it is a pool", WORKERS: "idle in workers"}
        idle = {True: "idle", False: "", None: "idle by who ends it"}[rule.for_work]
        idle = conditions.get(rule.condition, idle)
        wait_class = f"`{rule.wait_class}`" if rule.wait_class else ""
        said = " ".join(filter(None, (wait_class, idle)))
        rows.append(f"{rule.program}, {rule.meaning}: {frames}" + (f" → {said}" if said else ""))
    return entries(*rows)


def interpreters_page(text: str) -> str:
    rows = [f"`{frame}`: {code(functions)}" for frame, functions in INTERPRETERS.items()]
    return replaced(r"^- `\[CPython\]`.*\n(?:- .*\n)*", entries(*rows), text)


def code(names: str) -> str:
    return " ".join(f"`{name}`" for name in names.split())


def selection_options(text: str) -> str:
    entry = f"Waits of these classes: {', '.join(BY_LABEL)}. See wait-classes.md."
    entry = textwrap.indent(textwrap.fill(entry, 110, break_on_hyphens=False), "\t")
    return replaced(r"^--class=::\n(?:\t.*\n)+", f"--class=::\n{entry}\n", text)


# payload-format.md

_LAYOUTS = (
    offcpu.PAYLOAD, offcpu.EXTENSION, offcpu.TCP, counters.COUNTERS, counters.COUNTER, counters.BUDGETS,
    counters.BUDGET, counters.PYTHON, counters.TASKS, counters.CODES, counters.CODE, counters.JIT_MAP,
    wait_objects.OBJECTS, wait_objects.OBJECT,
)  # fmt: skip
LAYOUTS = {layout.name: layout for layout in _LAYOUTS}
_KINDS = (offcpu.Kind, offcpu.WaitFlag, offcpu.Lost, offcpu.ObjectLost, wait_objects.ObjectKind, wait_objects.LockRole)
ENUMS = {kind.__name__: kind for kind in _KINDS}
MARK = re.compile(r"^<!-- (table|values): (.+) -->\n(\n- (?:.*\n)+?(?=\n))?", re.MULTILINE)


def payload_page(text: str) -> str:
    """Return the page with a new list after each mark."""
    assert {place[2] for place in MARK.finditer(text)} == {*LAYOUTS, *ENUMS}

    def marked(place: re.Match[str]) -> str:
        rows = layout_rows(LAYOUTS[place[2]]) if place[1] == "table" else enum_rows(ENUMS[place[2]])
        return f"<!-- {place[1]}: {place[2]} -->\n\n{entries(*rows)}"

    return MARK.sub(marked, text)


def layout_rows(layout: Layout) -> Iterator[str]:
    for field in layout.fields:
        if isinstance(field.type, Layout):
            continue
        unknown = f" ({unknown_value(field)})" if field.unknown else ""
        row = f"{offset(layout, field)} `{declaration(field)}`{unknown}: {field.doc}"
        yield row.strip().removesuffix(":")


def offset(layout: Layout, field: Field) -> str:
    try:
        return str(layout.offset(field.name))
    except LayoutError:
        return ""  # after an array of any length


def declaration(field: Field) -> str:
    kind = field.type
    name = f"{'s' if kind.signed else 'u'}{8 * kind.size}" if isinstance(kind, Int) else "char"
    return f"{name} {field.name}" + (f"[{field.count}]" if field.count else "")


def unknown_value(field: Field) -> str:
    assert isinstance(field.type, Int)
    largest = 2 ** (8 * field.type.size) - 1
    return f"2^{8 * field.type.size}-1" if field.unknown == largest else str(field.unknown)


def enum_rows(kind: type[enum.IntEnum | enum.IntFlag]) -> Iterator[str]:
    is_flag = issubclass(kind, enum.IntFlag)
    meanings = member_docs(kind)
    for member in kind:
        value, name = member.value.bit_length() - 1 if is_flag else member.value, str(member.name)
        yield f"{value} {name}: {meanings[name]}"


def member_docs(kind: type[enum.Enum]) -> dict[str, str]:
    """Return the comment next to each member of an enum, in its source; it may go on in the next lines."""
    comments = re.findall(r"^    (\w+) = .*?  # (.*(?:\n    # .*)*)", inspect.getsource(kind), re.MULTILINE)
    return {name: text.replace("\n    #", "") for name, text in comments}


PAGES = {
    "dataset.md": dataset_page, "losses.md": losses_page, "tables.md": model_page, "wait-classes.md": classes_page,
    "user-stacks.md": interpreters_page, "selection-options.txt": selection_options, "payload-format.md": payload_page,
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_the_page_shows_the_tables_as_they_are(name: str) -> None:
    text = (DOCUMENTATION / name).read_text()
    assert text == PAGES[name](text), __doc__


if __name__ == "__main__":
    for name, made in PAGES.items():
        page = DOCUMENTATION / name
        page.write_text(made(page.read_text()))
