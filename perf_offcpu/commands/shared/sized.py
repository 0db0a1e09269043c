# SPDX-License-Identifier: Apache-2.0
"""Write the output of convert as one or several files of a size that viewers can open."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from perf_offcpu.commands.shared.busy import busy
from perf_offcpu.commands.shared.output import STDOUT, open_output
from perf_offcpu.commands.shared.profile import inputs
from perf_offcpu.errors import UsageError
from perf_offcpu.units import parse_size, parse_time

if TYPE_CHECKING:
    from perf_offcpu.convert.options import Options
    from perf_offcpu.convert.registry import Format
    from perf_offcpu.model.profile import Profile

_MOST_PARTS = 1000


def check_sizes(args: argparse.Namespace, format_: Format) -> None:
    """Raise UsageError if --max-size or --split is invalid, or has no meaning for the format."""
    for option, value in (("--max-size", args.max_size), ("--split", args.split)):
        if value is not None and "note" not in format_.options:
            raise UsageError(f"{option} means nothing to --{format_.name}, which has no time axis")
    if args.max_size is not None:
        _max_bytes(args)
    if args.split is None:
        return
    _part_ns(args)
    if args.critical_path:
        raise UsageError("--split does not cut a critical path: choose its time with --time")
    if args.output == STDOUT:
        raise UsageError("--split writes several files: name them with -o")


def write_sized(
    args: argparse.Namespace, format_: Format, profile: Profile, options: Options, output: str
) -> None:
    """Write the profile; report on stderr the written files, and files that are too large for viewers."""
    if args.split is None:
        _write(args, format_, profile, options, output)
        return
    from perf_offcpu.convert.size import parts_of

    parts = list(parts_of(profile, _part_ns(args)))
    if len(parts) > _MOST_PARTS:
        raise UsageError(f"--split {args.split} would write {len(parts)} parts: choose a longer time")
    for number, (part, first_ns, last_ns) in enumerate(parts, 1):
        name = _numbered(output, number, format_.suffix_for(options))
        if "sentences" in format_.options:
            window = f"{_seconds(first_ns)},{_seconds(last_ns)}"
            options = replace(options, selected=(*_without_time(options.selected), "--time", window))
        _write(args, format_, part, options, name)


def _seconds(ns: int) -> str:
    return f"{ns // 10**9}.{ns % 10**9:09}"


def _without_time(words: tuple[str, ...]) -> tuple[str, ...]:
    at = words.index("--time") if "--time" in words else len(words)
    return words[:at] + words[at + 2 :]


def _numbered(output: str, number: int, suffix: str) -> str:
    """Return the name of a part: `web.trace.json` → `web.001.trace.json`."""
    stem = output.removesuffix(suffix) if output.endswith(suffix) else os.path.splitext(output)[0]
    return f"{stem}.{number:03}{output[len(stem) :]}"


def _write(
    args: argparse.Namespace, format_: Format, profile: Profile, options: Options, output: str
) -> None:
    if args.max_size is not None:
        from perf_offcpu.convert.size import fitted

        with busy("finding what fits"):
            profile, options = fitted(format_, profile, options, _max_bytes(args))
        if options.note:
            print(f"perf-offcpu convert: {output}: {options.note}", file=sys.stderr)
    shown = inputs(args) + ([args.diff] if args.diff else [])
    with (
        open_output(output, binary=format_.binary, inputs=shown) as out,
        busy(f"writing {format_.name}"),
    ):
        format_.write(profile, out, options)
    if args.output is None or args.split is not None:
        print(f"perf-offcpu convert: wrote {output}", file=sys.stderr)
    _warn(format_, output)


def _warn(format_: Format, output: str) -> None:
    """Warn of a file that is too large for the viewers of its format."""
    # direct: asks for the size that is shown
    size, most = os.path.getsize(output) if os.path.isfile(output) else 0, format_.most_bytes
    if size > most > 0:
        other = "" if format_.name == "perfetto" else ", or use --perfetto"
        remedy = f"write it with --max-size {most >> 20}M, in parts with --split{other}"
        print(
            f"perf-offcpu convert: {output} has {size >> 20} MB, more than the {most >> 20} MB that viewers "
            f"open: {remedy}",
            file=sys.stderr,
        )


def _max_bytes(args: argparse.Namespace) -> int:
    return parse_size("--max-size", args.max_size, least="1")


def _part_ns(args: argparse.Namespace) -> int:
    return parse_time("--split", args.split, "ms", least="1ns")
