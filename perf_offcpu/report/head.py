# SPDX-License-Identifier: Apache-2.0
"""Make the head of a page without a whole summary: verdict, deadlocks, idle threads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perf_offcpu import losses
from perf_offcpu.analysis.classes.classify import Waits, classify
from perf_offcpu.analysis.group import group
from perf_offcpu.analysis.holders import holders_of
from perf_offcpu.analysis.idle import of_idle_threads
from perf_offcpu.analysis.select import event_rows
from perf_offcpu.locks import deadlocks_of, sentence_of
from perf_offcpu.model.columns import Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.report.summary import shows_waits
from perf_offcpu.report.verdict.numbers import verdict_of
from perf_offcpu.report.verdict.text import lines_of
from perf_offcpu.structs import frozen


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
    waits, holders = classify(subject), holders_of(subject)
    deadlocks = map(sentence_of, deadlocks_of(subject, waits, holders))
    verdict = verdict_of(profile, chosen, subject, waits, holders, lost, options=options, whole_lives=whole_lives)
    sentences = (*deadlocks, *(lines_of(verdict, profile.meta) if verdict else ()))
    return Head(sentences, _idle_threads(profile, chosen, waits) if whole_lives else frozenset())


def _idle_threads(profile: Profile, chosen: Bool, waits: Waits) -> frozenset[tuple[int, int]]:
    for_work = np.zeros(len(chosen), np.bool_)
    for_work[chosen] = waits.for_work
    idle = np.flatnonzero(of_idle_threads(profile, for_work))
    samples = profile.samples
    first, _ = group(samples.pid[idle], samples.tid[idle])
    rows = idle[first]
    return frozenset(zip(samples.pid[rows].tolist(), samples.tid[rows].tolist(), strict=True))
