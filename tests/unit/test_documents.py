# SPDX-License-Identifier: Apache-2.0
"""Documentation says what the code does, what is released has notes, and its checker sees deviations; man pages name
exactly the options of the parsers, and build without a warning."""

import argparse
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.console import Step, difference, run, steps
from builders.profile import ProfileBuilder
from builders.sources import man_source

from perf_offcpu.analysis.classes.wait_classes import BY_LABEL
from perf_offcpu.collect.bpf.config import DEFAULT_THRESHOLD_NS
from perf_offcpu.collect.events.parser import SOFTWARE
from perf_offcpu.collect.options import DEFAULT_FREQUENCY_HZ
from perf_offcpu.commands.report import SORT_KEYS
from perf_offcpu.commands.shared.parsers import VERBS, make_parsers
from perf_offcpu.convert.registry import FORMATS
from perf_offcpu.report.document import VERSION, document
from perf_offcpu.report.summary import summarize
from perf_offcpu.script.fields import OWN_FIELDS, PERF_FIELDS

ROOT = Path(__file__).parents[2]
DOCUMENTS = ROOT / "Documentation"


def test_man_page_of_record_names_every_software_event_and_modifier() -> None:
    text = (DOCUMENTS / "perf-offcpu-record.txt").read_text()
    aliases = {"faults", "migrations"}
    assert [name for name in SOFTWARE if name not in text and name not in aliases] == []
    for option, value in (("-F", DEFAULT_FREQUENCY_HZ), ("--off-cpu-thresh", DEFAULT_THRESHOLD_NS // 1_000_000)):
        entry = text[text.index(f"\n{option}") :]
        assert f"Default: {value}" in entry[: entry.index("\n\n")]


def test_every_format_is_in_the_synopsis_and_has_its_row() -> None:
    synopsis = (DOCUMENTS / "perf-offcpu-convert.txt").read_text().partition("DESCRIPTION")[0]
    assert all(f"--{name}" in synopsis for name in FORMATS)
    assert re.findall(r"^\| `--([a-z-]+)` \|", (DOCUMENTS / "formats.md").read_text(), re.MULTILINE) == list(FORMATS)


PATH = r"(?:[\w-]+/)*[\w-]+(?:\.(?:py|h|c|js|txt|md)|\.bpf\.c|/)|(?:\w+/)+\w+"


def answers() -> Iterator[tuple[str, Path | None]]:
    """Yield each path of the table "Which file answers what" as it is written, and the file; None: not there. A path is
    below the top, the package, or, where it has no directory, that of the test before it."""
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("### Which file answers what")[2].partition("### ")[0]
    folder = ""
    for path in re.findall(rf"`({PATH})`", table):
        if not re.search("FORMAT|VERB", path):
            places = [top / path for top in (ROOT, ROOT / "perf_offcpu", ROOT / folder)]
            yield path, next((place for place in places if place.exists()), None)
            folder = path.rpartition("/")[0] if path.startswith("tests/") else folder


def test_files_that_answer_are_there() -> None:
    files = dict(answers())
    assert len(files) > 100 and [path for path, file in files.items() if file is None] == []


def test_files_that_answer_hold_the_names_that_they_are_said_to_hold() -> None:
    """Forms: "`NAME` in `FILE`", "`NAME` and `NAME` in `FILE`", "`FILE` (raise `NAME`)"."""
    text, files = (ROOT / "CONTRIBUTING.md").read_text(), dict(answers())
    said = re.findall(rf"((?:`\w+`(?: and | of |, | in ))+)`({PATH})`", text)
    pairs = [(name, path) for names, path in said for name in re.findall(r"`(\w+)`", names)]
    pairs += [(name, path) for path, name in re.findall(rf"`({PATH})` \([^)`]*`(\w+)`", text)]
    assert len(pairs) > 30
    missing = []
    for name, path in pairs:
        file = files.get(path)
        if file is not None and not re.search(rf"\b{name}\b", file.read_text()):
            missing.append(f"{name} in {path}")
    assert missing == []


def test_each_benchmark_has_a_line() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Benchmarks")[2].partition("\n## ")[0]
    files = [path.name for path in (ROOT / "benchmarks").iterdir() if path.is_file()]
    assert [name for name in files if f"`{name}`" not in text] == []


def test_the_version_has_its_part_of_the_changelog_and_its_wheel_in_the_readme() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\n## [{version}] - 20" in (ROOT / "CHANGELOG.md").read_text()
    assert f"perf_offcpu-{version}-py3" in (ROOT / "README.md").read_text()


def test_hooks_of_commits_are_the_judges_of_ci() -> None:
    judges = re.findall(r'"\$VENV/bin/(\w+)"(.*)', (ROOT / ".ci/run").read_text())
    hooks = re.findall(r"entry: \.venv/bin/(\w+)(.*)", (ROOT / ".pre-commit-config.yaml").read_text())
    assert len(judges) == 4 and sorted(hooks) == sorted(judges)


def test_actions_are_pinned_and_may_write_in_one_job_only() -> None:
    texts = [path.read_text() for path in (ROOT / ".github/workflows").iterdir()]
    actions = re.findall(r"uses: (\S+)", "".join(texts))
    assert actions and all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action) for action in actions)
    assert all("\npermissions:\n  contents: read\n" in text for text in texts)
    assert "".join(texts).count(": write") == 1


def test_a_page_is_cut_into_commands(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text\n\n```console\n$ echo 1 \\\n> 2\n1 2\n$ true\n```\n\n```sh\nignored\n```\n")
    assert list(steps(page)) == [Step(4, "echo 1 2", ("1 2",)), Step(7, "true", ())]


@pytest.mark.parametrize(("shown", "printed", "same"), [
    (["12.5%  worker-1"], ["  3.25%   worker-0  "], True), (["worker"], ["waiter"], False),
    (["a", "…", "c"], ["a", "b", "b", "c"], True), (["a", "c"], ["a", "b", "c"], False),
    (["a", "…"], ["a", "b"], True), (["a"], ["a", "b"], False), (["a …"], ["a b c"], True),
    (["…", "c", "d"], ["b", "c", "x"], False), ([], ["x"], False),
])  # fmt: skip
def test_only_figures_and_blanks_may_differ(shown: list[str], printed: list[str], same: bool) -> None:
    assert (difference(tuple(shown), printed) == "") == same


def test_a_command_that_fails_is_no_documentation(tmp_path: Path) -> None:
    assert "exit status 3" in run(Step(1, "exit 3", ()), tmp_path, os.environ)
    assert not run(Step(1, "echo hello", ("hello",)), tmp_path, os.environ)


def test_a_column_that_is_printed_only_sometimes_is_passed_over() -> None:
    shown = ("#  Wall ms  Unknown  Command", "  2000.1    0.0    sleeper", "…")
    printed = ["#  Wall ms  Blocked D  Unknown  Command", "  2007.3      0.200    6.1    sleeper", "#"]
    assert not difference(shown, printed)
    below = "# running + blocked + unknown = wall"
    assert not difference((*shown[:2], below), [*printed[:2], below])
    assert difference((shown[0].replace("Wall", "CPU"), "…"), printed)


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
