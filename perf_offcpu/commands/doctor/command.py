# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu doctor: examine this machine, and print advice for each part that does not work."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perf_offcpu.collect.doctor.kernel import Finding

_EPILOG = """\
examples:
  sudo perf-offcpu doctor             as the user who will record
  perf-offcpu doctor --json           for a bug report, or to compare many machines

Exit status: 0 if recording works, 1 if it does not.
"""
_TITLES = {"recording": "To record", "reading": "To read and show recordings", "perf": "With perf"}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb's options."""
    parser = subparsers.add_parser(
        "doctor",
        help="examine this machine: what works, what to do about the rest",
        description="Try every part of this machine that perf-offcpu depends on, and print for each whether "
        "it works or what to do. Nothing is changed and nothing is recorded.",
        epilog=_EPILOG,
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Run the verb and return the exit status."""
    from perf_offcpu.collect.doctor.kernel import examine
    from perf_offcpu.commands.doctor.perf import examine_perf, examine_reading

    findings = [*examine(), *examine_reading(), *examine_perf()]
    can_record = not any(one.group == "recording" and one.state == "missing" for one in findings)
    print(_as_json(findings, can_record) if args.json else _as_text(findings, can_record))
    return 0 if can_record else 1


def _as_json(findings: Iterable[Finding], can_record: bool) -> str:
    from perf_offcpu.resources import version

    document = {
        "version": version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "can_record": can_record,
        "findings": [dataclasses.asdict(one) for one in findings],
    }
    return json.dumps(document, indent=2)


def _as_text(findings: list[Finding], can_record: bool) -> str:
    from perf_offcpu.text import printable

    width = max(len(one.part) for one in findings)
    lines: list[str] = []
    for group, title in _TITLES.items():
        lines += ["", title] if lines else [title]
        for one in (one for one in findings if one.group == group):
            lines.append(f"  {one.state:<8} {one.part:<{width}}  {printable(one.found)}")
            if one.advice:
                lines.append(f"  {'':<8} {'':<{width}}  -> {printable(one.advice)}")
    verdict = (
        "Recording works here." if can_record else "Recording does not work here: see what is missing above."
    )
    return "\n".join([*lines, "", verdict])
