# SPDX-License-Identifier: Apache-2.0
"""Declare the options of the verbs that show a Profile (recordings, symbols, selection), and load it. Each function
raises UsageError for an impossible value."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from perf_offcpu.analysis.classes.wait_classes import BY_LABEL
from perf_offcpu.commands.shared.files import RECORDING, check_ownership, note_cut
from perf_offcpu.commands.shared.parsers import LIST, add_options
from perf_offcpu.errors import UsageError
from perf_offcpu.units import parse_time

if TYPE_CHECKING:
    from perf_offcpu.analysis.selection.select import Selection
    from perf_offcpu.convert.registry import Options
    from perf_offcpu.model.profile import Profile
    from perf_offcpu.symbolize.options import SymbolizeOptions

SHOW = "show"  # value of an option that was given without a value (see `add_profile_arguments`)
_MOST_CPUS = 1 << 16

_PARTS = "time state wait_class min_dur cpu cgroup container object lock".split()
"""Arguments that select a part of the samples of a thread."""
_KEPT = "kallsyms vmlinux symfs buildid_dir rules event comm pid tid cpu cgroup container".split()
_KEPT += "time state min_dur object lock".split()
"""Arguments that commands shown to the user, such as that of the verdict, repeat."""
_OF_PATH = {"--comm", "--pid", "--tid", "--time"}  # options that name the thread and time of a critical path

_OF_SYMBOLS = "kallsyms vmlinux symfs buildid_dir inline srcline force".split()
"""Options of the command line that `SymbolizeOptions` has under the same name."""

IDLE_CHOICES: Final[dict[str, Any]] = {"choices": ("show", "hide", "only"), "default": "show"}
_SHOWN = ("pid", "tid", "state")  # options of the selection that may show a detail instead


def add_profile_arguments(
    parser: argparse.ArgumentParser,
    default_events: str = "off-cpu time; if none was recorded, the first event",
    showing: Mapping[str, str] | None = None,
) -> None:
    """Add the options for input, symbolization and selection of samples. `default_events`: help on the default of
    --event; `showing`: name of an option that may be given without a value (stored as SHOW) → help on that."""
    inline = {"action": argparse.BooleanOptionalAction, "default": True}
    group = parser.add_argument_group("input")
    add_options(group, "shared.input", input={"action": "append"}, inline=inline)
    showing = showing or {}
    texts = {name: f"; without a value: {text}" for name, text in showing.items()}
    texts = dict.fromkeys(_SHOWN, "") | texts | {"default_events": default_events, "classes": ", ".join(BY_LABEL)}
    details = dict.fromkeys(("event", "cpu", "cgroup", "container", "object", "lock"), LIST)
    details |= {"comms": LIST | {"dest": "comm"}, "class": LIST | {"dest": "wait_class"}, "idle": IDLE_CHOICES}
    details["by"] = {"choices": ("thread", "task"), "default": "thread"}
    details |= {name: LIST | ({"nargs": "?", "const": SHOW} if name in showing else {}) for name in _SHOWN}
    group = parser.add_argument_group(
        "selection", "lists are separated by commas, and options may be given several times"
    )
    add_options(group, "shared.selection", texts, **details)


def profile_from_args(args: argparse.Namespace, *, keep_ips: bool = False, **loading: bool) -> Profile:
    """Read and symbolize the recordings, and return the selected samples, of all events (see `select_events`).
    `keep_ips`: as of SymbolizeOptions; `loading`: arguments of `whole_profile_from_args` and `load_profile`."""
    from perf_offcpu.analysis.selection.absent import absent_values
    from perf_offcpu.analysis.selection.select import select_samples

    selection = selection_from_args(args)  # first: it may be wrong
    profile = whole_profile_from_args(args, keep_ips=keep_ips, **loading)
    selected = select_samples(profile, selection)
    if not selected.is_offcpu().any():
        for sentence in absent_values(profile, selection):
            print(f"perf-offcpu: {sentence}", file=sys.stderr)
    return selected


def whole_profile_from_args(
    args: argparse.Namespace, *, keep_ips: bool = False, tasks: bool = False, **loading: bool
) -> Profile:
    """Read and symbolize the recordings, and return all samples. `tasks`: also samples of tasks of event loops and
    goroutines; other arguments as of `profile_from_args`."""
    from perf_offcpu.analysis.classes.rules_file import read_rules, usual_rules
    from perf_offcpu.symbolize.load import load_profile

    rules = (*(read_rules(args.rules) if args.rules else ()), *usual_rules())
    options = dataclasses.replace(symbol_options(args), keep_ips=keep_ips)
    paths = inputs(args)
    for path in paths:
        check_ownership(path, args.force)
    joining = {"apart": args.apart, "from_start": args.from_start, "prefix": not args.no_prefix}
    profile = load_profile(
        paths, options, lambda path, recording: note_cut(args, path, recording.losses), **loading, **joining
    )
    if args.by == "task" or tasks:
        from perf_offcpu.analysis.task_times import tasks_profile, with_tasks

        profile = tasks_profile(profile) if args.by == "task" else with_tasks(profile)
    return dataclasses.replace(profile, rules=rules)


def every_wait_from_args(args: argparse.Namespace, option: str, instead: str = "") -> Profile:
    """Return all samples, for an analysis that follows threads from wait to wait. Raise UsageError if only samples of
    the waits were recorded; the text names the `option` that needs all, and a remedy, `instead`."""
    profile = whole_profile_from_args(args)
    if profile.meta.sampling:
        raise UsageError(
            f"{option} needs every wait, and {profile.meta.source} has samples of them (--off-cpu-period): "
            f"{f'{instead} or ' if instead else ''}record with --off-cpu-thresh 0"
        )
    return profile


def folded(args: argparse.Namespace, profile: Profile) -> Profile:
    """Return the profile with frames of interpreters folded, unless --no-fold-interpreters is given."""
    from perf_offcpu.analysis.interpreters import fold_interpreters

    return fold_interpreters(profile) if args.fold_interpreters else profile


def with_input(args: argparse.Namespace, path: str) -> argparse.Namespace:
    """Return a copy of the arguments with `path` as input; it shares the list `cut` with the original."""
    return argparse.Namespace(**vars(args) | {"input": [path]})


def inputs(args: argparse.Namespace) -> list[str]:
    """Return the paths of the recordings to read; raise UsageError if one is given twice."""
    paths = args.input or [RECORDING]
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise UsageError(f"-i {twice[0]}: the same recording is given twice")
    return paths


def selection_from_args(args: argparse.Namespace) -> Selection:
    """Return the selection of samples that the command line asks for, without events."""
    from perf_offcpu.abi.task_state import STATE_NAMES
    from perf_offcpu.analysis.selection.select import Selection
    from perf_offcpu.analysis.selection.time_windows import parse_windows

    return Selection(
        comms=split_list(args.comm),
        pids=_numbers("--pid", args.pid),
        tids=_numbers("--tid", args.tid),
        cpus=_ranges("--cpu", args.cpu),
        cgroups=split_words(args.cgroup),
        containers=split_words(args.container),
        windows=parse_windows(args.time) if args.time is not None else (),
        idle=args.idle,
        states=known_words("state", args.state, STATE_NAMES),
        classes=tuple(BY_LABEL[label] for label in known_words("class", args.wait_class, BY_LABEL)),
        min_ns=parse_time("--min-dur", args.min_dur, "ms") if args.min_dur is not None else 0,
        objects=tuple(args.object),
        locks=tuple(map(_address, split_words(args.lock))),
    )


def symbol_options(args: argparse.Namespace) -> SymbolizeOptions:
    """Return the options of symbolization from the command line."""
    from perf_offcpu.cache import DiskCache
    from perf_offcpu.symbolize.options import SymbolizeOptions

    if args.symfs is not None and not os.path.isdir(args.symfs):  # direct: a question about an option
        raise UsageError(f"--symfs {args.symfs}: there is no such directory")
    return SymbolizeOptions(
        demangle=not args.no_demangle, cache=DiskCache.usual(), **{name: getattr(args, name) for name in _OF_SYMBOLS}
    )


def split_list(texts: Iterable[str]) -> tuple[str, ...]:
    """Split comma-separated lists of events at commas outside of slashes: `cpu/event=0x3c,umask=1/,offcpu-time`."""
    parts = [part for text in texts for part in re.findall(r"(?:/[^/]*/|[^,/]|/)+", text)]
    return tuple(part.strip() for part in parts if part.strip())


def split_words(texts: Iterable[str]) -> tuple[str, ...]:
    """Split comma-separated lists at each comma; empty words are left out."""
    return tuple(word for text in texts for part in text.split(",") if (word := part.strip()))


def _numbers(option: str, texts: list[str]) -> tuple[int, ...]:
    """Parse comma-separated lists of numbers; raise UsageError, which names the option, for other texts."""
    parts = [part.strip() for text in texts for part in text.split(",")]
    if wrong := [part for part in parts if not re.fullmatch(r"\d{1,1000}", part, re.ASCII)]:
        raise UsageError(f"{option}: '{wrong[0]}' is not a number")
    return tuple(map(int, parts))


def _address(text: str) -> int:
    """Parse an address in hexadecimal, with or without 0x; raise UsageError for other texts."""
    if not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,16}", text, re.ASCII):
        raise UsageError(f"--lock: '{text}' is not an address in hexadecimal; --object takes names")
    return int(text, 16)


def _ranges(option: str, texts: list[str]) -> tuple[int, ...]:
    """Parse comma-separated lists of CPUs with ranges, `0,2-4`; raise UsageError, which names the option."""
    numbers: list[int] = []
    for part in split_words(texts):
        first, dash, last = part.partition("-")
        ends = _numbers(option, [first, last] if dash else [first, first])
        if not ends[0] <= ends[1] < _MOST_CPUS:
            raise UsageError(f"{option}: '{part}' is not a range of CPUs")
        numbers += range(ends[0], ends[1] + 1)
    return tuple(numbers)


def known_words(option: str, texts: list[str], known: Iterable[str]) -> tuple[str, ...]:
    """Split comma-separated lists to words; raise UsageError for a word that is not in `known`."""
    words = split_words(texts)
    if unknown := [word for word in words if word not in known]:
        raise UsageError(f"--{option}: no {option} '{unknown[0]}' (known: {', '.join(known)})")
    return words


def kept_options(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Return (option, value) for the given options of input and selection, for commands that are shown to the user."""
    kept = [("-i", path) for path in args.input or ()]
    for name in _KEPT:
        value = getattr(args, name)
        kept += [(f"--{name.replace('_', '-')}", text) for text in ([value] if isinstance(value, str) else value or ())]
    return kept if args.idle == "show" else [*kept, ("--idle", args.idle)]


def whole_lives(args: argparse.Namespace) -> bool:
    """Return True unless an option selects a part of a thread's samples."""
    return not any(getattr(args, name) for name in _PARTS)


def with_head(options: Options, args: argparse.Namespace, profile: Profile) -> Options:
    """Return options of a format with the head of a page: the verdict, and the words of the command line that select
    its samples. `profile`: the selected samples of all events."""
    from perf_offcpu.report.summary import head_of

    kept, path = kept_options(args), bool(getattr(args, "critical_path", False))
    if path:  # next to the path are all threads
        kept = [(option, value) for option, value in kept if option not in _OF_PATH]
    lives = path or whole_lives(args)
    sentences, idle = head_of(profile, split_list(args.event), options=kept, whole_lives=lives)
    switches = {"--no-prefix": args.no_prefix, "--apart": args.apart, "--from-start": args.from_start}
    switches["--by=task"] = args.by == "task"
    words = [word for option in kept for word in option] + [name for name, is_set in switches.items() if is_set]
    words += [word for class_name in args.wait_class or () for word in ("--class", class_name)]
    return dataclasses.replace(options, sentences=sentences, selected=tuple(words), idle=idle)
