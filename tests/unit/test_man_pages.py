# SPDX-License-Identifier: Apache-2.0
"""Man pages name exactly the options of the parsers, and build without a warning."""

import argparse
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from builders.profile import ProfileBuilder
from builders.sources import man_source

from perf_offcpu.analysis.classes.wait_classes import BY_LABEL
from perf_offcpu.commands.report import SORT_KEYS
from perf_offcpu.commands.shared.parsers import VERBS, make_parsers
from perf_offcpu.report.document import VERSION, document
from perf_offcpu.report.summary import summarize
from perf_offcpu.script.fields import OWN_FIELDS, PERF_FIELDS

DOCUMENTATION = Path(__file__).resolve().parents[2] / "Documentation"
PAGES = sorted(path.stem.removeprefix("perf-offcpu-") for path in DOCUMENTATION.glob("perf-offcpu-*.txt"))
_OPTION = re.compile(r"^(-{1,2}[A-Za-z][\w-]*)(?:\[?=.*)?::$", re.M)


def page(name: str) -> str:
    return man_source(DOCUMENTATION / f"{name}.txt")


def options_of(verb: str, *, shown: bool = False) -> set[str]:
    actions = [one for one in actions_of(make_parsers((verb,))[1][verb]) if not shown or one.help != argparse.SUPPRESS]
    return {option for one in actions for option in one.option_strings} - {"-h", "--help"}


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    own = [action for group in groups for verb in group.choices.values() for action in actions_of(verb)]
    return [*parser._actions, *own]


@pytest.mark.parametrize("verb", PAGES)
def test_pages_have_the_parsers_options(verb: str) -> None:
    """All options of the help and no unknown ones; hidden options (-z9) may be missing."""
    assert options_of(verb, shown=True) <= set(_OPTION.findall(page(f"perf-offcpu-{verb}"))) <= options_of(verb)


def test_the_page_of_the_command_lists_all_verbs() -> None:
    text = page("perf-offcpu")
    verbs = dict(re.findall(r"^([a-z]+):: (.*)$", text[text.index("VERBS\n") : text.index("EXIT STATUS")], re.M))
    subparsers: Any = make_parsers(VERBS)[0]._subparsers
    assert verbs == {one.dest: one.help for group in subparsers._group_actions for one in group._choices_actions}


def test_fields_keys_and_classes() -> None:
    text = page("perf-offcpu-script")
    for name, meaning in [*PERF_FIELDS.items(), *OWN_FIELDS.items()]:
        assert f"\n{name}:: {meaning}\n" in text
    text = " ".join(page("perf-offcpu-report").split())
    assert ", ".join(SORT_KEYS).replace("symbol,", "symbol (or sym),") in text
    assert all(label in text for label in BY_LABEL)
    text = page("perf-offcpu-report")
    part = text[text.index("\nJSON\n") : text.index("\nEXAMPLES\n")]
    assert re.findall(r"^(\w+)::", part, re.M) == [*document(summarize(ProfileBuilder().build()))]
    assert f"\nversion:: {VERSION}\n" in part


@pytest.mark.parametrize("path", sorted(DOCUMENTATION.glob("perf-offcpu*.txt")), ids=lambda path: path.stem)
def test_pages_build(path: Path, tmp_path: Path) -> None:
    command = ["asciidoctor", "--backend=manpage", "--failure-level=WARN", "-D", str(tmp_path), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\n\t+\n" not in path.read_text(), "only a + in the first column begins a further paragraph of an entry"
