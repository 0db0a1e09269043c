# SPDX-License-Identifier: Apache-2.0
"""The table kernel × test out of pytest's JUnit files, and what failed."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

Case = tuple[str, str]  # file of the test, its function

WORDS = {"passed": "ok", "failed": "FAILED", "skipped": "skipped", "xfailed": "xfail"}


@dataclass(frozen=True)
class Run:
    outcomes: Mapping[Case, Counter[str]]  # parameters of a test are counted together
    messages: Mapping[Case, str]  # first failure of each


def read(path: Path) -> Run:
    """Take a JUnit file apart; an absent one is a run in which nothing was tested."""
    outcomes: dict[Case, Counter[str]] = {}
    messages: dict[Case, str] = {}
    if not path.exists():
        return Run(outcomes, messages)
    for test in ElementTree.parse(path).iter("testcase"):
        case = (test.get("classname", "").rpartition(".")[2], re.sub(r"\[.*", "", test.get("name", "")))
        problem = next((found for tag in ("failure", "error") if (found := test.find(tag)) is not None), None)
        word = "failed" if problem is not None else "skipped" if test.find("skipped") is not None else "passed"
        outcomes.setdefault(case, Counter())[word] += 1
        if problem is not None:
            messages.setdefault(case, (problem.get("message") or problem.text or "").split("\n")[0])
    return Run(outcomes, messages)


SHOWN = re.compile(r"^tests/kernel/(\w+)\.py::(\w+)(?:\[.*\])? (PASSED|FAILED|ERROR|SKIPPED)\b", re.MULTILINE)


def read_console(path: Path) -> Run:
    """Read what `pytest -v` had shown when a machine ended too early."""
    outcomes: dict[Case, Counter[str]] = {}
    for file, name, word in SHOWN.findall(path.read_text(errors="replace")) if path.exists() else ():
        outcomes.setdefault((file, name), Counter())[word.lower().replace("error", "failed")] += 1
    return Run(outcomes, {})


def _cell(counts: Counter[str] | None) -> str:
    if not counts:
        return "-"
    if len(counts) == 1:
        return WORDS[next(iter(counts))]
    if not counts["failed"]:  # what a kernel lacks is no fault of the rest
        return f"ok, {counts['skipped']} skipped"
    return f"{counts['passed']}/{counts.total() - counts['skipped']}"


def render(runs: Mapping[str, Run]) -> str:
    """Return a line for each test, a column for each kernel, totals, and the first failure of each test."""
    cases = sorted({case for run in runs.values() for case in run.outcomes})
    rows = [
        (f"{file}::{name}", [_cell(run.outcomes.get((file, name))) for run in runs.values()]) for file, name in cases
    ]
    rows.append(("passed / run", [_total(run) for run in runs.values()]))
    first = max((len(name) for name, _ in rows), default=0)
    widths = [max(len(kernel), *(len(cells[at]) for _, cells in rows)) for at, kernel in enumerate(runs)]
    lines = [_line("test", runs, first, widths), _line("-" * first, ["-" * w for w in widths], first, widths)]
    lines += [_line(name, cells, first, widths) for name, cells in rows]
    return "\n".join([*lines, *failures(runs)])


def failures(runs: Mapping[str, Run]) -> list[str]:
    return [
        f"{kernel}: {file}::{name}: {text[:300]}"
        for kernel, run in runs.items()
        for (file, name), text in run.messages.items()
    ]


def matrix(runs: Mapping[str, Run], features: Mapping[str, Iterable[str]]) -> str:
    """Return the Markdown table of Documentation/kernels.md: features, which list their tests, by kernel."""
    rows = [["", *runs], ["---"] * (1 + len(runs))]
    for feature, names in features.items():
        tests = {tuple(name.replace(".py", "").split("::")) for name in names}
        cells = []
        for run in runs.values():
            chosen = [counts for case, counts in run.outcomes.items() if {case, case[:1]} & tests]
            counts = sum(chosen, Counter())
            cells.append("ok" if counts["passed"] and not counts["failed"] else _cell(counts))
        rows.append([feature, *cells])
    rows.append(["passed / run", *map(_total, runs.values())])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _total(run: Run) -> str:
    counts = sum(run.outcomes.values(), Counter())
    return f"{counts['passed']}/{counts.total() - counts['skipped']}"


def _line(name: str, cells: object, first: int, widths: list[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]  # type: ignore[call-overload]
    return "  ".join([name.ljust(first), *padded]).rstrip()
