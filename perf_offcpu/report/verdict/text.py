# SPDX-License-Identifier: Apache-2.0
"""Write the sentences of a verdict."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from perf_offcpu.report.style import Style, amount, plural
from perf_offcpu.report.verdict.causes import BlockedThread, Cause, Loss, Place, Threads, Verdict
from perf_offcpu.text import printable

_WIDTH = 108  # 110 with "# "
_COMMS = 2
_SHARE = "\N{NO-BREAK SPACE}%"


def sentences_of(verdict: Verdict) -> list[str]:
    """Return three to six sentences; the last one names a command."""
    return [
        *filter(None, (_waits(verdict), _runq(verdict), _idle(verdict), _blocked(verdict))),
        *_end(verdict),
    ]


def wrapped(sentences: Sequence[str]) -> Iterator[str]:
    """Return the lines of the sentences, each from the start of a line; no command or share is broken."""
    for sentence in sentences[:-1]:
        for line in textwrap.wrap(
            sentence.replace(" %", _SHARE),
            _WIDTH,
            subsequent_indent="  ",
            break_on_hyphens=False,
            break_long_words=False,
        ):
            yield line.replace(_SHARE, " %")
    yield from sentences[-1:]


def _waits(verdict: Verdict) -> str:
    if not verdict.weight:
        return ""
    parts = [_cause(cause, verdict.weight) for cause in verdict.causes]
    if 100 * verdict.others >= verdict.weight:
        parts.append(f"{_percent(verdict.others, verdict.weight)} others")
    head = f"{time_text(verdict.weight)} off the CPU in {plural(verdict.threads, 'thread')}"
    return f"{head}: {_listed(parts, '; ')}."


def _cause(cause: Cause, whole: int) -> str:
    words = cause_words(cause.wait_class, cause.program, cause.meaning)
    text = f"{_percent(cause.weight, whole)} {words}"
    places = [place for place in cause.places if place.function]
    if not places:
        where = f" in {cause.functions} functions" if cause.functions > 1 else ""
        return f"{text}{where} ({_threads(cause.threads)})"
    if len(cause.places) == 1 and 10 * places[0].weight >= 9 * cause.weight:
        return f"{text} in {_where(places[0])} ({_threads(cause.threads)})"
    lead = "among them " if 20 * sum(place.weight for place in places) < 19 * cause.weight else ""
    return f"{text}, {lead}{_listed([_place(place, whole) for place in places], ', ')}"


def cause_words(wait_class: str, program: str, meaning: str) -> str:
    """Return `lock waits`, or what the rule of a program says: `waits for a heavyweight lock (postgres)`."""
    if meaning:
        return f"waits for {printable(re.split(r'[:(]', meaning)[0].strip())} ({printable(program)})"
    return "waits for a CPU" if wait_class == "runqueue" else f"{wait_class} waits"


def _place(place: Place, whole: int) -> str:
    return f"{_percent(place.weight, whole)} in {_where(place)} ({_threads(place.threads)})"


def _where(place: Place) -> str:
    """Return `transfer for ledger_lock in bank`: the function, and what was waited for."""
    if place.mostly:
        return f"{place.function}, mostly for {place.mostly}"
    return f"{place.function} for {place.object}" if place.object else place.function


def _threads(threads: Threads) -> str:
    return f"{names_text(threads.comms)}, {plural(threads.number, 'thread')}"


def names_text(comms: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    shown = comms if len(comms) <= _COMMS + 1 else comms[:_COMMS]
    more = len(comms) - len(shown)
    return _listed([*shown, *([f"{more} other names"] if more else [])], ", ")


def _runq(verdict: Verdict) -> str:
    parts = []
    if verdict.runq is not None and verdict.weight:
        share = _percent(verdict.runq, verdict.weight)
        parts.append(f"{share} of this time was waiting for a CPU (run queue)")
    if preempted := verdict.preempted:
        more = "apart from it, " if parts else ""
        waited, ran = time_text(preempted.weight), time_text(preempted.running)
        parts.append(
            f"{more}preempted threads waited {waited} for a CPU and ran {ran} ({_threads(preempted.threads)})"
        )
    return _sentence(parts)


def _sentence(parts: Sequence[str]) -> str:
    text = _listed(parts, "; ")
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _idle(verdict: Verdict) -> str:
    apart = ", not counted above" if verdict.weight else ""
    parts = []
    if verdict.idle_threads:
        threads = plural(verdict.idle_threads, "thread")
        parts.append(f"{threads} merely waited for work ({time_text(verdict.idle)}{apart})")
    if verdict.goroutines:
        parts.append("goroutines that wait are no threads: Go's own profiles (block, mutex) show their waits")
    return _sentence(parts)


def _blocked(verdict: Verdict) -> str:
    if not verdict.still_blocked:
        return ""
    parts = list(map(_blocked_thread, verdict.longest_blocked))
    if verdict.still_blocked > len(parts):
        parts.append(plural(verdict.still_blocked - len(parts), "more thread"))
    return f"Still blocked at the end: {_listed(parts, ', ')}."


def _blocked_thread(thread: BlockedThread) -> str:
    where = f" in {thread.function}" if thread.function else ""
    longer = " or longer" if thread.began_before else ""
    what = f"{thread.wait_class}: {thread.object}" if thread.object else thread.wait_class
    return f"{thread.comm} {thread.tid}{where} ({what}) for {time_text(thread.weight)}{longer}"


def _end(verdict: Verdict) -> Iterator[str]:
    yield _loss(verdict.loss) if verdict.loss else "Nothing was lost."
    yield f"Next: {verdict.command}"


def _loss(loss: Loss) -> str:
    share = "" if loss.percent is None else f" ({_share(loss.percent)} of the {loss.of})"
    more = f"; {plural(loss.causes - 1, 'more cause')} below" if loss.causes > 1 else ""
    return f"Lost: {loss.count} {printable(loss.cause)}{share}{more}."


def _share(percent: float) -> str:
    return f"{percent:.0f} %" if percent >= 1 else "under 1 %"


def _percent(weight: int, whole: int) -> str:
    rounded = (200 * weight + whole) // (2 * whole)
    return f"{rounded} %" if rounded or not weight else "under 1 %"


def time_text(ns: int) -> str:
    """Return a time in the unit that suits it: `2.010 s`, `268.912 ms`."""
    unit = "s" if ns >= 10**9 else "ms" if ns >= 10**6 else "us"
    return f"{amount(ns, 'ns', Style(unit=unit))} {unit}"


def _listed(parts: Sequence[str], separator: str) -> str:
    """Return `a, b and c`."""
    if len(parts) < 2:
        return "".join(parts)
    last = " and " if separator == ", " else separator
    return f"{separator.join(parts[:-1])}{last}{parts[-1]}"
