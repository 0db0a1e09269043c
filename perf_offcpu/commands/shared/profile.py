# SPDX-License-Identifier: Apache-2.0
"""The way from a command line to a Profile, the same for every verb that shows one."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from perf_offcpu.analysis.wait_classes import BY_LABEL
from perf_offcpu.callpaths.options import UNITS
from perf_offcpu.errors import UsageError

if TYPE_CHECKING:
    from perf_offcpu.analysis.select import Selection
    from perf_offcpu.analysis.wait_classes import WaitClass
    from perf_offcpu.model.profile import Profile
    from perf_offcpu.symbolize.symbolizer import SymbolizeOptions

SHOW = "show"
"""The value of an option that was given without one (see `add_selection_arguments`)."""
_ALIASES = {"--comm": ("-c", "--comms"), "--cpu": ("-C",)}
"""As in perf report and perf script."""
_MOST_CPUS = 1 << 16
RECORDING = "perf.data"
"""The recording that is read if none is given."""


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `-i`, `-f` and the options of symbolization, named as in perf."""
    group = parser.add_argument_group("input")
    group.add_argument(
        *("-i", "--input"),
        action="append",
        metavar="FILE",
        help=f"default: {RECORDING}; given several times, the recordings are shown as one",
    )
    group.add_argument(
        "--no-prefix", action="store_true", help="several hosts: no name of the host in front of comms"
    )
    group.add_argument("--apart", action="store_true", help="take each recording to be of a host of its own")
    group.add_argument(
        "--from-start",
        action="store_true",
        help="let all recordings begin at the same moment, whatever their clocks say (implies --apart)",
    )
    group.add_argument("-f", "--force", action="store_true", help="read files that belong to other users")
    group.add_argument("--no-demangle", action="store_true", help="show C++ and Rust names as in the files")
    group.add_argument(
        "--inline",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="show functions that were inlined as frames of their own (default: yes, where there is DWARF)",
    )
    group.add_argument("--srcline", action="store_true", help="look up source lines, even with --no-inline")
    group.add_argument("--kallsyms", metavar="FILE", help="kernel symbols (default: the running kernel's)")
    group.add_argument(
        "--vmlinux", "-k", metavar="FILE", help="kernel symbols from this ELF file of the recorded kernel"
    )
    group.add_argument("--symfs", metavar="DIR", help="look for files with symbols below this directory")
    group.add_argument(
        "--buildid-dir",
        metavar="DIR",
        help="files by build-id, as perf keeps them (default: $PERF_BUILDID_DIR or ~/.debug)",
    )


def add_selection_arguments(
    parser: argparse.ArgumentParser,
    default_events: str = "off-cpu time; if none was recorded, the first event",
    showing: Mapping[str, str] | None = None,
) -> None:
    """The options that choose samples.

    Args:
        default_events: what `--event` says of its default.
        showing: options that without a value (then it is SHOW) show something instead → what they show.
    """
    group = parser.add_argument_group(
        "selection", "lists are separated by commas, and options may be given several times"
    )
    for option, metavar, text in (
        ("--event", "NAMES", f"samples of these events (default: {default_events})"),
        ("--comm", "NAMES", "threads of these names"),
        ("--pid", "PIDS", "these processes"),
        ("--tid", "TIDS", "these threads"),
        ("--cpu", "CPUS", "samples on these CPUs (0,2-4); a wait is on the one where its thread went on"),
        ("--cgroup", "PATHS", "tasks of these cgroups and those below them, by path or id"),
        ("--state", "STATES", "waits in these task states, letters as in ps: S, D, I, T, R (preempted), …"),
        ("--class", "CLASSES", f"waits of these classes: {', '.join(BY_LABEL)}"),
    ):
        shows = (showing or {}).get(option)
        bare: dict[str, Any] = {"nargs": "?", "const": SHOW} if shows else {}
        group.add_argument(
            *_ALIASES.get(option, ()),
            option,
            dest="wait_class" if option == "--class" else option[2:],
            action="append",
            default=[],
            metavar=metavar,
            help=text + (f"; without a value: {shows}" if shows else ""),
            **bare,
        )
    group.add_argument(
        "--time",
        metavar="A,B",
        help="samples of a span of time: seconds as script prints them (either may be missing), or parts of "
        "the recording (10%%-20%%, 10%%/2: the second tenth); for a wait its end counts",
    )
    group.add_argument(
        "--min-dur", metavar="TIME", help="waits of at least this length: 5ms, 300us, 1s; a bare number is ms"
    )
    group.add_argument(
        "--idle",
        choices=("show", "hide", "only"),
        default="show",
        help="threads that merely wait for work: with the others (default), left out, or alone",
    )


def profile_from_args(args: argparse.Namespace, *, keep_ips: bool = False, **loading: bool) -> Profile:
    """Read, symbolize and select: all events are still in it (see `select_events`).

    Args:
        keep_ips: as in `SymbolizeOptions`.
        loading: options of `symbolize.load.load_profile`.

    Raises:
        UsageError: a file belongs to another user, the files cannot be joined, or an option leads nowhere.
        FormatError: a file is not a recording.
    """
    from perf_offcpu.analysis.select import select_samples
    from perf_offcpu.symbolize.load import load_profile

    selection = selection_from_args(args)  # before any work: it may be wrong
    options = dataclasses.replace(symbol_options(args), keep_ips=keep_ips)
    joining = {"apart": args.apart, "from_start": args.from_start, "prefix": not args.no_prefix}
    profile = load_profile(_checked_inputs(args), options, **loading, **joining)
    return select_samples(profile, selection)


def inputs(args: argparse.Namespace) -> list[str]:
    """Return the recordings that the command line names."""
    return args.input or [RECORDING]


def _checked_inputs(args: argparse.Namespace) -> list[str]:
    """Return the recordings that are to be read.

    Raises:
        PerfOffcpuError: one belongs to another user.
        UsageError: one is given twice.
    """
    from perf_offcpu.commands.shared.ownership import check_ownership

    paths = inputs(args)
    for path in paths:
        check_ownership(path, args.force)
        if paths.count(path) > 1:
            raise UsageError(f"-i {path}: the same recording is given twice")
    return paths


def selection_from_args(args: argparse.Namespace) -> Selection:
    """What the command line selects, but for events.

    Raises:
        UsageError: a value is none of its kind.
    """
    from perf_offcpu.analysis.select import Selection, split_list
    from perf_offcpu.analysis.time_windows import parse_windows

    return Selection(
        comms=split_list(args.comm),
        pids=_numbers("--pid", args.pid),
        tids=_numbers("--tid", args.tid),
        cpus=_ranges("--cpu", args.cpu),
        cgroups=_words(args.cgroup),
        windows=parse_windows(args.time) if args.time is not None else (),
        idle=args.idle,
        states=_states(args.state),
        classes=_classes(args.wait_class),
        min_ns=duration_ns("--min-dur", args.min_dur) if args.min_dur is not None else 0,
    )


def symbol_options(args: argparse.Namespace) -> SymbolizeOptions:
    """The options of symbolization on the command line.

    Raises:
        UsageError: there is no such directory for --symfs.
    """
    from perf_offcpu.cache import DiskCache
    from perf_offcpu.symbolize.symbolizer import SymbolizeOptions

    if args.symfs is not None and not os.path.isdir(args.symfs):
        raise UsageError(f"--symfs {args.symfs}: there is no such directory")
    return SymbolizeOptions(
        demangle=not args.no_demangle,
        kallsyms=args.kallsyms,
        vmlinux=args.vmlinux,
        symfs=args.symfs,
        buildid_dir=args.buildid_dir,
        inline=args.inline,
        srcline=args.srcline,
        force=args.force,
        cache=DiskCache.usual(),
    )


def duration_ns(option: str, text: str) -> int:
    """The nanoseconds in `5ms`, `0.3s`, `250us`, `7` (ms).

    Raises:
        UsageError: it is no length of time.
    """
    match = re.fullmatch(r"(\d{1,12})(?:\.(\d{1,9}))?(ns|us|ms|s)?", text.strip(), re.ASCII)
    if not match:
        raise UsageError(f"{option}: '{text}' is not a length of time (5ms, 300us, 1s)")
    unit = UNITS[match[3] or "ms"]
    digits = match[2] or ""
    return int(match[1]) * unit + int(digits or 0) * unit // int(f"1{'0' * len(digits)}")


def _words(texts: Iterable[str]) -> tuple[str, ...]:
    parts = [part.strip() for text in texts for part in text.split(",")]
    return tuple(part for part in parts if part)


def _numbers(option: str, texts: list[str]) -> tuple[int, ...]:
    """The numbers in comma-separated lists.

    Raises:
        UsageError: something in them is no number.
    """
    parts = [part.strip() for text in texts for part in text.split(",")]
    wrong = [part for part in parts if not (part.isascii() and part.isdigit())]
    if wrong:
        raise UsageError(f"{option}: '{wrong[0]}' is not a number")
    return tuple(map(int, parts))


def _ranges(option: str, texts: list[str]) -> tuple[int, ...]:
    """As `_numbers`, with ranges: `0,2-4`."""
    numbers: list[int] = []
    for part in _words(texts):
        first, dash, last = part.partition("-")
        ends = _numbers(option, [first, last] if dash else [first, first])
        if not ends[0] <= ends[1] < _MOST_CPUS:
            raise UsageError(f"{option}: '{part}' is not a range of CPUs")
        numbers += range(ends[0], ends[1] + 1)
    return tuple(numbers)


def _states(texts: list[str]) -> tuple[str, ...]:
    from perf_offcpu.abi.task_state import STATE_NAMES

    letters = _words(texts)
    for letter in letters:
        if letter not in STATE_NAMES:
            raise UsageError(f"--state: no state '{letter}' (known: {', '.join(STATE_NAMES)})")
    return letters


def _classes(texts: list[str]) -> tuple[WaitClass, ...]:
    labels = _words(texts)
    for label in labels:
        if label not in BY_LABEL:
            raise UsageError(f"--class: no class '{label}' (known: {', '.join(BY_LABEL)})")
    return tuple(BY_LABEL[label] for label in labels)
