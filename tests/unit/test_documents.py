# SPDX-License-Identifier: Apache-2.0
"""Documentation says what the code does."""

import re
from pathlib import Path

from perf_offcpu.collect.bpf.config import DEFAULT_THRESHOLD_NS
from perf_offcpu.collect.events.names import SOFTWARE
from perf_offcpu.collect.options import DEFAULT_FREQUENCY_HZ
from perf_offcpu.convert.registry import FORMATS

ROOT = Path(__file__).parents[2]
DOCUMENTS = ROOT / "Documentation"


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


def test_files_that_answer_are_there() -> None:
    """The table "Which file answers what": paths are those of the package, tests those of the checkout."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("### Which file answers what")[2].partition("### ")[0]
    paths = re.findall(r"`((?:[\w-]+/)*[\w-]+(?:\.(?:py|h|txt|md)|/)|(?:\w+/)+\w+)`", table)
    named = [path for path in paths if not re.search("FORMAT|VERB", path)]
    assert len(named) > 30
    folder, missing = "", []
    for path in named:
        if not any((top / path).exists() for top in (ROOT, ROOT / "perf_offcpu", ROOT / folder)):
            missing.append(path)
        folder = path.rpartition("/")[0] if path.startswith("tests/") else folder
    assert missing == []


def test_each_benchmark_has_a_line() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Benchmarks")[2].partition("\n## ")[0]
    files = [path.name for path in (ROOT / "benchmarks").iterdir() if path.is_file()]
    assert [name for name in files if f"`{name}`" not in text] == []
