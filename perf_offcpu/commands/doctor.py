# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu doctor: examine this machine, and print advice for each part that does not work. perf is optional. Its
features for recordings depend on its version and on its Python."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from perf_offcpu.commands.shared.parsers import add_verb
from perf_offcpu.environment import child_environment
from perf_offcpu.resources import installed_version

if TYPE_CHECKING:
    from perf_offcpu.collect.doctor import Finding


_TITLES = {"recording": "To record", "reading": "To read and show recordings", "perf": "With perf"}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of this verb, with its options, to `subparsers`."""
    parser = add_verb(subparsers, "doctor")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Run the verb with the parsed arguments and return the exit status."""
    from perf_offcpu.collect.doctor import examine

    findings = [*examine(), *examine_reading(), *examine_perf()]
    can_record = not any(finding.group == "recording" and finding.state == "missing" for finding in findings)
    print(_as_json(findings, can_record) if args.json else _as_text(findings, can_record))
    return 0 if can_record else 1


def _as_json(findings: Iterable[Finding], can_record: bool) -> str:
    from perf_offcpu.resources import version

    machine = {"version": version(), "kernel": platform.release(), "machine": platform.machine()}
    parts = [dataclasses.asdict(finding) for finding in findings]
    return json.dumps(machine | {"can_record": can_record, "findings": parts}, indent=2)


def _as_text(findings: list[Finding], can_record: bool) -> str:
    width = max(len(finding.part) for finding in findings)
    lines: list[str] = []
    for group, title in _TITLES.items():
        lines += ["", title] if lines else [title]
        for finding in (finding for finding in findings if finding.group == group):
            lines += finding_lines(finding, width)
    verdict = "Recording works here." if can_record else "Recording does not work here: see what is missing above."
    return "\n".join([*lines, "", verdict])


def finding_lines(finding: Finding, width: int) -> list[str]:
    """Format a finding as lines of text, with its name in `width` columns."""
    from perf_offcpu.text import printable

    lines = [f"  {finding.state:<8} {finding.part:<{width}}  {printable(finding.found)}"]
    if finding.advice:
        lines.append(f"  {'':<8} {'':<{width}}  -> {printable(finding.advice)}")
    return lines


READING, PERF = "reading", "perf"
_RETYPES = (6, 16)  # first version of perf that re-types raw off-cpu samples
_EMBEDS_UNTIL = (7, 3)  # last version of perf that embeds Python
_SCRIPT_NEEDS = {"numpy": "numpy", "pyelftools": "elftools"}  # package required by scripts/offcpu.py → its module


def examine_reading() -> Iterator[Finding]:
    """Examine the packages for reading, symbolizing and converting."""
    from perf_offcpu.collect.doctor import Finding, State

    for package, purpose in (
        ("numpy", ""),
        ("pyelftools", "names of functions"),
        ("zstandard", "compressed recordings"),
        ("multi-demangle", "C++ names"),
    ):
        if version_found := installed_version(package):
            yield Finding(READING, package, State.WORKS, version_found)
        else:
            advice = f"pip install {package}, for {purpose or 'everything'}"
            yield Finding(READING, package, State.MISSING, "not installed", advice)


def examine_perf() -> Iterator[Finding]:
    """Examine perf: its version, how it reads off-cpu samples, its Python."""
    from perf_offcpu.collect.doctor import Finding, State

    match = re.search(r"(\d+)\.(\d+)\S*", _output("perf", "--version"))
    if match is None:
        advice = "install perf (Debian: apt install linux-perf) to open recordings with it, too"
        yield Finding(PERF, "perf", State.LIMITED, "not found, or not for this kernel", advice)
        return
    version = int(match[1]), int(match[2])
    yield Finding(PERF, "perf", State.WORKS, f"{match[0]}, {shutil.which('perf')}")
    if version >= _RETYPES:
        yield Finding(PERF, "off-cpu samples", State.WORKS, "perf report shows recordings as they are")
    else:
        fact = "perf before 6.16 shows their number, neither times nor stacks"
        yield Finding(PERF, "off-cpu samples", State.LIMITED, fact, "perf-offcpu inject -i perf.data -o for-perf.data")
    yield _python(version)


def _python(version: tuple[int, int]) -> Finding:
    """Examine whether perf of `version` runs scripts/offcpu.py, in its own Python or as a program."""
    from perf_offcpu.collect.doctor import Finding, State

    part = "scripts/offcpu.py"
    if version > _EMBEDS_UNTIL:
        return Finding(PERF, part, State.WORKS, "this perf runs scripts as programs of their own")
    library = embedded_python()
    if library is None:
        advice = "run scripts/offcpu.py -i perf.data without perf"
        return Finding(PERF, part, State.LIMITED, "this perf was built without Python", advice)
    missing = [package for package, module in _SCRIPT_NEEDS.items() if not _has_module(library, module)]
    if not missing:
        return Finding(PERF, part, State.WORKS, f"perf's Python is {library}, with {' and '.join(_SCRIPT_NEEDS)}")
    fact = f"perf's Python is {library}, without {' and '.join(missing)}"
    debian = " ".join(f"python3-{package}" for package in missing)
    advice = f"apt install {debian}, or {' and '.join(missing)} for Python {library}"
    return Finding(PERF, part, State.LIMITED, fact, advice)


def embedded_python() -> str | None:
    """Return the version ("3.11") of the Python that perf embeds; None for a perf without Python."""
    if re.search(r"libpython:\s*\[\s*OFF", _output("perf", "version", "--build-options")):
        return None
    path = shutil.which("perf")
    match = re.search(r"libpython(\d+\.\d+)", _output("ldd", path) if path else "")
    return match[1] if match else None


def _has_module(python: str, module: str) -> bool:
    """Return True if the system's Python of a version can import a module: asks the interpreter, or looks for files."""
    if program := shutil.which(f"python{python}", path="/usr/bin:/usr/local/bin"):
        return "yes" in _output(program, "-c", f"import {module}; print('yes')")
    directories = ("/usr/lib/python3/dist-packages", f"/usr/local/lib/python{python}/dist-packages")
    # direct: directories of the system's Python
    return any(Path(directory, module).is_dir() for directory in directories)


def _output(*command: str) -> str:
    """Return the standard output of a command; "" for a command that fails or takes too long."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=120, check=False, env=child_environment()
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
