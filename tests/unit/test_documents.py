# SPDX-License-Identifier: Apache-2.0
"""Documentation says what the code does."""

import argparse
import re
from pathlib import Path

import pytest

from perf_offcpu.abi.budget import BUDGET
from perf_offcpu.abi.offcpu import EXTENSION, PAYLOAD
from perf_offcpu.cli import _parsers
from perf_offcpu.collect.event_names import SOFTWARE
from perf_offcpu.collect.options import DEFAULT_FREQUENCY_HZ, DEFAULT_THRESHOLD_NS
from perf_offcpu.convert.registry import FORMATS
from perf_offcpu.layout import Field, Int, Layout

DOCUMENTS = Path(__file__).parents[2] / "Documentation"


def row(field: Field) -> str:
    assert isinstance(field.type, Int)
    kind = f"{'s' if field.type.signed else 'u'}{8 * field.type.size}"
    count = f"[{field.count}]" if field.count else ""
    return f"| `{field.name}` | {kind}{count} | {field.doc} |"


@pytest.mark.parametrize("layout", [PAYLOAD, EXTENSION, BUDGET], ids=lambda layout: layout.name)
def test_payload_tables_are_the_layouts(layout: Layout) -> None:
    text = (DOCUMENTS / "payload-format.md").read_text()
    assert "\n".join(row(field) for field in layout.fields) in text


def options_of_parser(verb: str) -> set[str]:
    """Every option of a verb, but those that its help leaves out."""
    _, verbs = _parsers((verb,))
    actions = verbs[verb]._actions
    found = {word for one in actions if one.help != argparse.SUPPRESS for word in one.option_strings}
    return found - {"-h", "--help"}


def options_of_page(path: Path) -> set[str]:
    """Every option that has an entry: `-p::`, `--pid=::`, `--switch-output[=WHEN]::`."""
    return set(re.findall(r"^(--?[a-zA-Z][\w-]*)(?:=|\[=\w+\])?::$", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("verb", ["record", "convert"])
def test_man_page_names_the_options_that_the_parser_takes(verb: str) -> None:
    assert options_of_page(DOCUMENTS / f"perf-offcpu-{verb}.txt") == options_of_parser(verb)


def test_man_page_of_record_names_every_software_event_and_modifier() -> None:
    text = (DOCUMENTS / "perf-offcpu-record.txt").read_text()
    aliases = {"faults", "migrations"}
    assert [name for name in SOFTWARE if name not in text and name not in aliases] == []
    for option, value in (
        ("-F", DEFAULT_FREQUENCY_HZ),
        ("--off-cpu-thresh", DEFAULT_THRESHOLD_NS // 1_000_000),
    ):
        entry = text[text.index(f"\n{option}") :]
        assert f"Default: {value}" in entry[: entry.index("\n\n")]


def test_every_format_is_in_the_synopsis_and_has_its_row() -> None:
    synopsis = (DOCUMENTS / "perf-offcpu-convert.txt").read_text().partition("DESCRIPTION")[0]
    assert all(f"--{name}" in synopsis for name in FORMATS)
    text = (DOCUMENTS / "formats.md").read_text()
    assert re.findall(r"^\| `--([a-z-]+)` \|", text, re.MULTILINE) == list(FORMATS)
