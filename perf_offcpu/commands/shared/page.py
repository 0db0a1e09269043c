# SPDX-License-Identifier: Apache-2.0
"""Make the head of a page: the verdict, and the options that select the same samples again."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from perf_offcpu import losses
from perf_offcpu.analysis.classes.classify import Waits, classify
from perf_offcpu.analysis.evidence.holders import holders_of
from perf_offcpu.analysis.group import group
from perf_offcpu.analysis.idle import of_idle_threads
from perf_offcpu.analysis.select import event_rows
from perf_offcpu.commands.shared.profile import split_list
from perf_offcpu.locks import deadlocks_of, sentence_of
from perf_offcpu.model.columns import Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.report.summary import shows_waits
from perf_offcpu.report.verdict.numbers import verdict_of
from perf_offcpu.report.verdict.text import sentences_of
from perf_offcpu.structs import frozen

if TYPE_CHECKING:
    from perf_offcpu.convert.registry import Options
    from perf_offcpu.model.profile import Profile


@frozen
class Head:
    """The head of a page."""

    sentences: tuple[str, ...] = ()  # deadlocks, then the verdict; none without waits
    idle: frozenset[tuple[int, int]] = frozenset()  # (pid, tid) of idle threads


def head_of(
    profile: Profile,
    events: Sequence[str] = (),
    *,
    options: Sequence[tuple[str, str]] = (),
    whole_lives: bool = True,
) -> Head:
    """Return the head of a page about a profile; arguments are those of `summary.summarize`."""
    rows = event_rows(profile, events)
    chosen = np.isin(profile.samples.evsel, rows)
    subject = profile.select(chosen)
    if not shows_waits(subject, [profile.evsels[row] for row in rows.tolist()]):
        return Head()
    lost = {cause: count for cause, count in losses.by_text(profile.losses).items() if cause.is_loss}
    waits = classify(subject)
    deadlocks = map(sentence_of, deadlocks_of(subject, waits, holders_of(subject)))
    verdict = verdict_of(profile, chosen, subject, waits, lost, options=options, whole_lives=whole_lives)
    sentences = (*deadlocks, *(sentences_of(verdict) if verdict else ()))
    return Head(sentences, _idle_threads(profile, chosen, waits) if whole_lives else frozenset())


def _idle_threads(profile: Profile, chosen: Bool, waits: Waits) -> frozenset[tuple[int, int]]:
    for_work = np.zeros(len(chosen), np.bool_)
    for_work[chosen] = waits.for_work
    idle = np.flatnonzero(of_idle_threads(profile, for_work))
    samples = profile.samples
    first, _ = group(samples.pid[idle], samples.tid[idle])
    rows = idle[first]
    return frozenset(zip(samples.pid[rows].tolist(), samples.tid[rows].tolist(), strict=True))


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
        kept += [
            (f"--{name.replace('_', '-')}", one)
            for one in ([value] if isinstance(value, str) else value or ())
        ]
    return kept if args.idle == "show" else [*kept, ("--idle", args.idle)]


def whole_lives(args: argparse.Namespace) -> bool:
    """Return True if threads were selected as a whole, with all their samples."""
    return not any(getattr(args, name) for name in _PARTS)


def with_head(options: Options, args: argparse.Namespace, profile: Profile) -> Options:
    """Return the options of a format with the verdict, and the words that select its samples.

    Args:
        profile: the selected samples of all events.
    """

    kept, path = kept_options(args), bool(getattr(args, "critical_path", False))
    if path:  # next to the path are all threads
        kept = [(option, value) for option, value in kept if option not in _OF_PATH]
    head = head_of(profile, split_list(args.event), options=kept, whole_lives=path or whole_lives(args))
    switches = {"--no-prefix": args.no_prefix, "--apart": args.apart, "--from-start": args.from_start}
    words = [word for option in kept for word in option] + [name for name, given in switches.items() if given]
    words += [word for one in args.wait_class or () for word in ("--class", one)]
    return dataclasses.replace(options, sentences=head.sentences, selected=tuple(words), idle=head.idle)
