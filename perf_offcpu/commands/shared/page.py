# SPDX-License-Identifier: Apache-2.0
"""Make the head of a page: the verdict, and the options that select the same samples again."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from perf_offcpu.commands.shared.profile import split_list

if TYPE_CHECKING:
    from perf_offcpu.convert.registry import Options
    from perf_offcpu.model.profile import Profile

_PARTS = "time state wait_class min_dur cpu cgroup object lock".split()
"""Options that select a part of the samples of a thread."""
_KEPT = (
    "kallsyms vmlinux symfs buildid_dir rules event comm pid tid cpu cgroup time state min_dur object lock"
).split()
"""Options that the command in the verdict repeats."""
_OF_PATH = {"--comm", "--pid", "--tid", "--time"}
"""Options that name the thread and time of a critical path."""


def kept_options(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the given options of input and selection that have values, for the command of the verdict."""
    kept = [("-i", path) for path in args.input or ()]
    for name in _KEPT:
        value = getattr(args, name)
        kept += [(f"--{name.replace('_', '-')}", text) for text in ([value] if isinstance(value, str) else value or ())]
    return kept if args.idle == "show" else [*kept, ("--idle", args.idle)]


def whole_lives(args: argparse.Namespace) -> bool:
    """Return True if threads were selected as a whole, with all their samples."""
    return not any(getattr(args, name) for name in _PARTS)


def with_head(options: Options, args: argparse.Namespace, profile: Profile) -> Options:
    """Return the options of a format with the verdict, and the words that select its samples.

    Args:
        profile: the selected samples of all events.
    """
    from perf_offcpu.report.summary import head_of

    kept, path = kept_options(args), bool(getattr(args, "critical_path", False))
    if path:  # next to the path are all threads
        kept = [(option, value) for option, value in kept if option not in _OF_PATH]
    head = head_of(profile, split_list(args.event), options=kept, whole_lives=path or whole_lives(args))
    switches = {"--no-prefix": args.no_prefix, "--apart": args.apart, "--from-start": args.from_start}
    words = [word for option in kept for word in option] + [name for name, given in switches.items() if given]
    words += [word for class_name in args.wait_class or () for word in ("--class", class_name)]
    return dataclasses.replace(options, sentences=head.sentences, selected=tuple(words), idle=head.idle)
