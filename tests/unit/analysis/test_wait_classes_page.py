# SPDX-License-Identifier: Apache-2.0
"""The documents that list wait classes, rules of programs and interpreters are made of their tables. After a change:

.venv/bin/python tests/unit/analysis/test_wait_classes_page.py"""

import re
import textwrap
from pathlib import Path

import pytest

from perf_offcpu.analysis.classes import wait_classes
from perf_offcpu.analysis.classes.program_rules import built_in_rules
from perf_offcpu.analysis.classes.wait_classes import BY_LABEL, CLASSES, ClassRow, WaitClass, Work
from perf_offcpu.analysis.interpreters import INTERPRETERS
from perf_offcpu.tables import read_table

DOCUMENTATION = Path(__file__).resolve().parents[3] / "Documentation"
SELECTION = DOCUMENTATION / "selection-options.txt"  # part of several man pages
STACKS = DOCUMENTATION / "user-stacks.md"
PAGES = [DOCUMENTATION / "wait-classes.md", SELECTION, STACKS]

COLOURS = "transparent grey darkgrey purple magenta red lightred lightblue blue green orange yellow brown".split()
"""What Firefox profiler can paint a category in (GraphColor in its src/types/profile.ts)."""


def rows() -> str:
    lines = ["| class | waits for | system calls that alone mean it |", "|---|---|---|"]
    for one in CLASSES:
        lines.append(f"| `{one.label}` | {one.row.meaning} | {' '.join(sorted(one.row.syscalls.split()))} |")
    return "\n".join(lines) + "\n"


def program_rows() -> str:
    lines = ["| program | waits for | functions | class, idle |", "|---|---|---|---|"]
    for rule in built_in_rules():
        frames, callers = (_code(names) for names in (rule.frames, rule.callers))
        frames = f"{frames} called by {callers}" if callers else frames
        idle = {True: "idle", False: "", None: "idle by who ends it"}[rule.for_work]
        wait_class = f"`{rule.wait_class}`" if rule.wait_class else ""
        lines.append(f"| {rule.program} | {rule.meaning} | {frames} | {wait_class} {idle} |".replace("  ", " "))
    return "\n".join(lines) + "\n"


def interpreter_rows() -> str:
    lines = [f"| `{frame}` | {_code(functions)} |" for frame, functions in INTERPRETERS.items()]
    return "\n".join(["| frame | functions |", "|---|---|", *lines]) + "\n"


def _code(names: str) -> str:
    return " ".join(f"`{one}`" for one in names.split()).replace("|", "\\|")


def entry() -> str:
    text = f"Waits of these classes: {', '.join(BY_LABEL)}. See wait-classes.md."
    return "--class=::\n" + textwrap.indent(textwrap.fill(text, 110, break_on_hyphens=False), "\t") + "\n"


def made(page: Path) -> str:
    """The page with its list of classes made anew."""
    text = page.read_text()
    if page == SELECTION:
        return re.sub(r"^--class=::\n(?:\t.*\n)+", lambda _: entry(), text, flags=re.MULTILINE)
    if page == STACKS:
        return re.sub(r"^\| frame \| f.*\n(?:\|.*\n)*", lambda _: interpreter_rows(), text, flags=re.MULTILINE)
    text = re.sub(r"^\| class \|.*\n(?:\|.*\n)*", lambda _: rows(), text, flags=re.MULTILINE)
    return re.sub(r"^\| program \|.*\n(?:\|.*\n)*", lambda _: program_rows(), text, flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_shows_the_tables(page: Path) -> None:
    text = page.read_text()
    shown = {SELECTION: entry, STACKS: interpreter_rows}.get(page, rows)
    assert shown() in text and text == made(page), __doc__


def test_rows_are_whole() -> None:
    assert [int(one) for one in WaitClass] == list(range(len(WaitClass)))
    assert [heading for heading, _ in read_table(wait_classes.__file__)] == [one.label for one in WaitClass]
    assert {one.row.work for one in WaitClass} <= set(Work)
    assert CLASSES[-1] is WaitClass.OTHER and set(CLASSES) == set(WaitClass)
    colours = [one.row.colour for one in WaitClass]
    assert set(colours) <= set(COLOURS) - {"yellow", "orange"}, "those are of code in user space and kernel"
    assert len(set(colours)) >= min(len(colours), 10), "take a colour that no class has before sharing one"
    with pytest.raises(TypeError):
        ClassRow("without a colour")  # type: ignore[call-arg]


if __name__ == "__main__":
    for one in PAGES:
        one.write_text(made(one))
