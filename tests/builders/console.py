# SPDX-License-Identifier: Apache-2.0
"""Documentation as a script: runs the commands that a page shows and compares what they print.

A page shows a session in a fenced block:

    ```console
    $ perf-offcpu report --help
    usage: perf-offcpu report …
    …
    ```

Figures differ from run to run: a number stands for any number, and blanks for any blanks. A line that is only
`…` stands for any lines, a `…` at the end of a line for its rest. The column "Blocked D" may be printed but
not shown: it is there if any thread waited for a page of a file. Everything else must be printed as shown."""

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from builders import program
from builders.commands import is_alone, records

REST = "…"
_FENCE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d+([.,:]\d+)*")
_SPACES = re.compile(r"[ \t]+")
_RULE = re.compile(r"\.{3,}|-{3,}")
_SOMETIMES = "  Blocked D"


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a page and what the page says that it prints."""

    line: int
    command: str
    shown: tuple[str, ...]


def steps(page: Path) -> Iterator[Step]:
    text = page.read_text()
    for block in _FENCE.finditer(text):
        yield from _steps(block[1].splitlines(), text.count("\n", 0, block.start(1)) + 1)


def _steps(lines: list[str], first: int) -> Iterator[Step]:
    starts = [at for at, line in enumerate(lines) if line.startswith("$ ")]
    assert starts and starts[0] == 0, f"line {first}: a console block begins with a command"
    for begin, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        command, body = lines[begin].removeprefix("$ "), begin + 1
        while command.endswith("\\"):
            command = command[:-1] + lines[body].removeprefix("> ")
            body += 1
        yield Step(first + begin, command, tuple(lines[body:end]))


def normal(line: str) -> str:
    """A line with what may differ taken out."""
    return _SPACES.sub(" ", _RULE.sub("...", _NUMBER.sub("0", line))).strip()


def difference(shown: tuple[str, ...], printed: list[str]) -> str:
    """What of the page was not printed; "" if all was."""
    if not any(_SOMETIMES in line for line in shown):
        printed = _without(_SOMETIMES, printed)
    left = iter([normal(line) for line in printed if line.strip()])
    skipping = False
    for line in shown:
        if not line.strip():
            continue
        if line.strip() == REST:
            skipping = True
            continue
        if not _find(normal(line), left, skipping):
            return f"not printed, or not there: {line}"
        skipping = False
    rest = list(left)
    return "" if skipping or not rest else f"printed, but not on the page: {rest[0]}"


def _without(column: str, printed: list[str]) -> list[str]:
    """Return the lines with a column taken out of the tables that have it: head, rule and rows."""
    lines, at = [], -1
    for line in printed:
        if column in line:
            at = line.find(column)
        elif line.startswith("#") and not _RULE.search(line):
            at = -1  # below the table
        lines.append(line if at < 0 else line[:at] + line[at + len(column) :])
    return lines


def _find(line: str, left: Iterator[str], skipping: bool) -> bool:
    for found in left:
        if found == line or (line.endswith(REST) and found.startswith(line.removesuffix(REST).rstrip())):
            return True
        if not skipping:
            return False
    return False


def run(step: Step, cwd: Path, environment: Mapping[str, str], timeout_s: float = 60) -> str:
    """Run a step as a user would, in a shell; what both streams printed, or a complaint with it. A command of this
    program that only reads runs without the cost of a start."""
    command = step.command.replace("sudo ", "")
    if is_alone(command) and not records(command):
        alone = program.run(*shlex.split(command)[1:], cwd=cwd, timeout_s=timeout_s, status=None)
        printed, status = alone.stderr + alone.stdout, alone.returncode
    else:
        done = subprocess.run(
            ["bash", "-c", command], cwd=cwd, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=timeout_s, check=False,
        )  # fmt: skip
        printed, status = done.stdout.decode(), done.returncode
    problem = difference(step.shown, printed.splitlines())
    if status:
        problem = f"exit status {status}"
    return f"line {step.line}: $ {step.command}\n{problem}\n--- printed:\n{printed}" if problem else ""
