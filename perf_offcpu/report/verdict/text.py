# SPDX-License-Identifier: Apache-2.0
"""Write the verdict: a table of causes, largest first, and sentences on facts that do not fit into the table."""

import re
import shlex
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence

from perf_offcpu.model.recording import Meta
from perf_offcpu.report.style import Style, amount, cut, display_width, pad, plural
from perf_offcpu.report.verdict.causes import PEERS_PERCENT, SOLE_PERCENT, Cause, Peers, Place, Threads
from perf_offcpu.report.verdict.kinds import is_of_machine
from perf_offcpu.report.verdict.numbers import BlockedThread, Loss, Verdict
from perf_offcpu.text import basename, printable

_WIDTH = 108  # 110 with "# "
WIDTH = 98  # of the first screen, 100 with "# "
_LEAST_WIDTH = 8  # of a column that is cut
_ROOM = (0, 0, 20, 19, 12, 24)  # widths of columns; while a table is too wide, the column most above its width is cut
_COMMS = 2
_SHARE = "\N{NO-BREAK SPACE}%"
_TITLES = ("Share", "Time", "Waits for", "In", "Threads", "Because of")
_PACKAGE = re.compile(r"(?:[a-z]\w*\.){2,}(?=[A-Z])")  # of a function of Java
_ELSEWHERE, _MOST_ROWS = 3, 12
_COMMAND = 40
FOR_CPU = {"runqueue": "a CPU", "throttled": "CPU time (quota)"}
"""Label of a class of waits for CPU time → what is waited for, in words."""


def lines_of(verdict: Verdict, meta: Meta) -> list[str]:
    """Return the lines of the verdict, of at most WIDTH columns except the last one, which is a command."""
    unit = Style(unit=_unit(verdict.weight))
    rows, room = list[tuple[str, ...]](), max(_MOST_ROWS - len(verdict.causes), 0)
    for cause in verdict.causes:
        first, *places = _rows(cause, verdict.weight, unit)
        rows += [first, *places[:room]]
        room -= len(places[:room])
    others, unrecorded = verdict.others, verdict.unrecorded
    if 100 * unrecorded >= verdict.weight > 0:
        rows.append(_row(unrecorded, verdict.weight, unit, "waits not recorded"))
        others -= unrecorded
    if others:
        rows.append(_row(others, verdict.weight, unit, "others"))
    table = [*(_laid_out(rows) if rows else []), *_elsewhere(verdict, unit)]
    loss = _loss(verdict.loss) if verdict.loss else "Lost: nothing."
    return [
        cut(_recording(verdict, meta), WIDTH),
        *_whole(verdict),
        *(["", *table] if table else []),
        "",
        *wrapped([*_without_thread(verdict), _blocked(verdict), loss], WIDTH),
        f"Next: {verdict.command}",
    ]


def first_cause(verdict: Verdict) -> str:
    """Return the largest cause as a line, `33 % pipe in read(): client (2), ended by server`; "" without one."""
    if not verdict.causes:
        return ""
    share, _, thing, where, *others = _rows(verdict.causes[0], verdict.weight, Style())[0]
    facts = ", ".join(filter(None, others))
    return f"{share} {thing}{where and f' in {where}'}{facts and f': {facts}'}"


def wrapped(sentences: Iterable[str], width: int = _WIDTH) -> Iterator[str]:
    """Yield the lines of sentences, each sentence from the start of a line; a number and its " %" stay on one line."""
    wrapper = textwrap.TextWrapper(width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
    for sentence in sentences:
        for line in wrapper.wrap(sentence.replace(" %", _SHARE)):
            yield line.replace(_SHARE, " %")


def _recording(verdict: Verdict, meta: Meta) -> str:
    words = meta.cmdline
    command_index = words.index("--") + 1 if "--" in words else 0
    command = cut(printable(shlex.join(words[command_index:])) if command_index else verdict.processes, _COMMAND)
    if is_of_machine(meta):
        command = f"whole machine during {command}" if command_index else "whole machine"
    date = ""
    if meta.wall_clock_ns:
        seconds = (meta.wall_clock_ns + meta.first_ns - meta.wall_clock_at_ns) // 10**9
        date = time.strftime(", %Y-%m-%d", time.gmtime(seconds))
    cpus = f" on {plural(meta.nr_cpus, 'CPU')}" if meta.nr_cpus else ""
    host = f" of {printable(meta.hostname)}" if meta.hostname else ""
    recorded = sum(end - begin for begin, end in meta.recorded)
    ns = meta.duration_ns if command_index else max(recorded, meta.duration_ns)
    lasted = f"{ns / 1e9:.3f} s" if ns > 0 else ""
    threads = f"{plural(verdict.threads, 'thread')}{cpus}"
    parts = (command, lasted, threads, f"{basename(meta.source) or '-'}{host}{date}")
    return " · ".join(filter(None, parts))


def _whole(verdict: Verdict) -> Iterator[str]:
    """Yield the lines about the total: of running and waiting threads, and of idle ones."""
    running, runq = verdict.running, verdict.runq
    blocked = verdict.weight - (running or 0) - (runq or 0)
    parts = ((running, "running"), (runq, "waiting for a CPU"), (blocked, "blocked"))
    shares = [f"{_percent(ns, verdict.weight)} {words}" for ns, words in parts if ns is not None]
    kind_of_time = "off-CPU time" if running is None else "threads' time"
    if verdict.weight:
        parted = f": {' · '.join(shares)}" if len(shares) > 1 else " (running and run queue not known)"
        yield f"Of {time_text(verdict.weight)} of {kind_of_time}{parted}"
    if verdict.idle_threads:
        threads = plural(verdict.idle_threads, "thread")
        yield f"Idle besides: {threads} that only waited for work, {time_text(verdict.idle)}"


def _elsewhere(verdict: Verdict, unit: Style) -> Iterator[str]:
    """Yield the lines about waits that do not count: for work, for the end of threads, naps."""
    if not verdict.elsewhere:
        return
    yield "Not counted: waits for the next piece of work or for recorded threads and processes, and naps"
    for cause in verdict.elsewhere[:_ELSEWHERE]:
        _, weight, thing, where, threads, _ = _rows(cause, 0, unit)[0]
        yield cut(f"{weight:>20}  {thing}{where and f' in {where}'}: {threads}", WIDTH)


def _row(weight: int, whole: int, unit: Style, *texts: str) -> tuple[str, ...]:
    share = _percent(weight, whole) if whole else ""
    return (share, f"{amount(weight, 'ns', unit)} {unit.unit}", *texts, *[""] * (4 - len(texts)))


def _rows(cause: Cause, whole: int, unit: Style) -> list[tuple[str, ...]]:
    """Return table rows about a cause, texts of cells: its own row; then, unless its only function has 90 % of the
    weight, one for each function (`cause.places`), without percent. `whole`: weight that is 100 %, ns; 0: no
    percent."""
    words = _short(cause.meaning) if cause.meaning else FOR_CPU.get(cause.wait_class, cause.wait_class)
    if len(cause.places) == 1 and 10 * cause.places[0].weight >= 9 * cause.weight:
        texts = _place(cause.places[0], words, cause.meaning)[:3]
        return [_row(cause.weight, whole, unit, *texts, _reason(cause))]
    where = f"{cause.functions} functions" if cause.functions > 1 else ""
    reason = "got {got:.1f} of {all}, wanted {wanted:.1f}".format(**cause.cpus) if cause.cpus else ""
    reason = reason or _reason(cause)
    rows = [_row(cause.weight, whole, unit, words, where, _threads(cause.threads), reason)]
    for place in cause.places:
        rows.append(_row(place.weight, 0, unit, *_place(place, "", cause.meaning)))
    return rows


def _short(meaning: str) -> str:
    return printable(re.split(r"[:(]", meaning)[0].strip())


def _with_object(words: str, name: str, meaning: str) -> str:
    """Return `words: name`. Return `words` alone for a condition variable of a program with a rule (`meaning`), `name`
    alone for a connection, if `words` is `network`."""
    if meaning and "condition " in name[: len("mostly condition ")]:
        return words
    if words == "network" and name.startswith(("tcp ", "udp ")):
        return name  # its port is in sight where the column is cut
    if f"a {name} ".startswith(f"{words} "):
        return f"a {name}"
    return f"{words}: {name}" if name and words else name or words


def _place(place: Place, words: str, meaning: str) -> tuple[str, str, str, str]:
    name = place.object or (place.mostly and f"mostly {place.mostly}")
    function = _PACKAGE.sub("", place.function)
    return _with_object(words, name, meaning), function, _threads(place.threads), _reason(place)


def _reason(row: Cause | Place) -> str:
    """Return `peer slow: 150.203 ms each`, `retransmissions 80 %, peer slow 20 %`; without such causes, the peers."""
    total = sum(part.weight for part in row.network.values())
    parts = [f"{label} {_percent(part.weight, total)}" for label, part in row.network.items()]
    if len(parts) == 1:
        ((label, part),) = row.network.items()
        return f"{label}: {time_text(part.weight // max(part.waits, 1))}{' each' if part.waits > 1 else ''}"
    return ", ".join(parts[:_COMMS]) or _peers(row.peers, row.weight)


def _peers(peers: Peers, total: int) -> str:
    """Return `held by a 60 %, b 30 %, +1`; "" if peers have too small a part of `total`, the weight of a row in ns."""
    named = sum(peers.comms.values())
    if 100 * named < PEERS_PERCENT * total:
        return ""
    parts = [f"{comm} {_percent(weight, total)}" for comm, weight in list(peers.comms.items())[:_COMMS]]
    parts = [*peers.comms] if len(peers.comms) == 1 and 100 * named >= SOLE_PERCENT * total else parts
    more = len(peers.comms) - len(parts)
    return f"{peers.role} {', '.join(parts)}{f', +{more}' if more else ''}" if parts else ""


def _threads(threads: Threads) -> str:
    parts = [f"{comm} ({number})" if number > 1 else comm for comm, number in threads.comms.items()]
    more = len(parts) - _COMMS
    return ", ".join([*parts[:_COMMS], *([f"+{more}"] if more > 0 else [])])


def _laid_out(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of the table: titles, then the rows; the columns that are too wide are cut until they fit."""
    columns = list(zip(_TITLES, *rows, strict=True))
    widths = [max(map(display_width, column)) for column in columns]
    while sum(widths) + 2 * len(widths) > WIDTH + 2:
        widest = max(range(2, len(widths)), key=lambda column: widths[column] - _ROOM[column])
        if widths[widest] <= _LEAST_WIDTH:
            break
        widths[widest] -= 1
    for row in (_TITLES, *rows):
        cells = zip(row, widths, strict=True)
        texts = [pad(cut(cell, width), width, left=number > 1) for number, (cell, width) in enumerate(cells)]
        yield "  ".join(texts).rstrip()


def cause_words(wait_class: str, program: str, meaning: str) -> str:
    """Return `lock waits`, or the meaning by a rule on a program: `waits for a heavyweight lock (postgres)`."""
    if meaning:
        return f"waits for {_short(meaning)} ({printable(program)})"
    return "waits for a CPU" if wait_class == "runqueue" else f"{wait_class} waits"


def names_text(comms: Sequence[str]) -> str:
    """Return the first names, and the number of the others: `a, b and 3 other names`."""
    shown = comms if len(comms) <= _COMMS + 1 else comms[:_COMMS]
    more = len(comms) - len(shown)
    return _listed([*shown, *([f"{more} other names"] if more else [])])


def _without_thread(verdict: Verdict) -> Iterator[str]:
    if verdict.greenlets:
        yield "Greenlets of gevent and tasks of trio that wait are no threads, and are not read."
    if verdict.tasks:
        yield "Tasks of asyncio that wait are no threads: --by task shows their waits."
    if verdict.virtual_threads:
        yield "Java's virtual threads that wait are no threads: jcmd PID Thread.dump_to_file FILE shows them."
    if verdict.goroutines:
        yield "Goroutines that wait are no threads: --by task shows their waits (record --goroutines)."


def _blocked(verdict: Verdict) -> str:
    parts = list(map(_blocked_thread, verdict.longest_blocked))
    if verdict.still_blocked > len(parts):
        parts.append(plural(verdict.still_blocked - len(parts), "more thread"))
    return f"Still blocked at the end: {_listed(parts) or 'none'}."


def _blocked_thread(thread: BlockedThread) -> str:
    where = f" in {thread.function}" if thread.function else ""
    longer = " or longer" if thread.began_before else ""
    words = _short(thread.meaning) if thread.meaning else thread.wait_class
    cause = _with_object(words, thread.object, thread.meaning)
    cause += f"; {thread.network}" if thread.network else ""
    return f"{thread.comm} {thread.tid}{where} ({cause}) for {time_text(thread.weight)}{longer}"


def _loss(loss: Loss) -> str:
    share = "" if loss.percent is None else f" ({_share(loss.percent)} of the {loss.of})"
    more = f"; {plural(loss.causes - 1, 'more cause')} below" if loss.causes > 1 else ""
    return f"Lost: {loss.count} {printable(loss.cause)}{share}{more}."


def _share(percent: float) -> str:
    return f"{percent:.0f} %" if percent >= 1 else "< 1 %"


def _percent(weight: int, whole: int) -> str:
    rounded = (200 * weight + whole) // (2 * whole) if whole else 0
    return f"{rounded} %" if rounded or not weight else "< 1 %"


def _unit(ns: int) -> str:
    return "s" if ns >= 10**9 else "ms" if ns >= 10**6 else "us"


def time_text(ns: int) -> str:
    """Format a time, given in ns, in the unit that suits it: `2.010 s`, `268.912 ms`."""
    return f"{amount(ns, 'ns', Style(unit=_unit(ns)))} {_unit(ns)}"


def _listed(parts: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))
