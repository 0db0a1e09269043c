# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu top: watch where threads wait, live."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from perf_offcpu.commands.shared.parsers import LIST, add_options, add_verb
from perf_offcpu.commands.shared.streams import columns, limit_from_args, write_lines
from perf_offcpu.errors import PerfOffcpuError, UsageError
from perf_offcpu.units import parse_time

if TYPE_CHECKING:
    from perf_offcpu.top.agent_segments import AgentSegments
    from perf_offcpu.top.segments import Segments

KEYS: Final = "comm process thread class syscall object holder waker symbol stack state cgroup".split()
_ROWS: Final = 25
_FIRST_S: Final = 0.5  # the first interval on the screen: figures come soon


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of this verb, with its options, to `subparsers`."""
    usage = "perf-offcpu top [OPTIONS] [-a | -p PIDS | -t TIDS] [-u USERS] [-- COMMAND [ARGS]]"
    parser = add_verb(subparsers, "top", usage=usage)
    agent = {"nargs": "?", "const": ""}
    add_options(parser.add_argument_group("target: whose waits are shown"), "top.targets", cgroup=LIST, agent=agent)
    add_options(
        parser.add_argument_group("output"),
        "top.output",
        {"keys": ", ".join(KEYS), "rows": _ROWS},
        delay={"default": "3"},
        count={"type": int},
        sort={"choices": KEYS, "default": "comm"},
        idle={"choices": ("hide", "show", "only"), "default": "hide"},
        limit={"type": int},
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Run the verb with the parsed arguments; return the recorded command's exit status, or 128 + signal."""
    seconds = parse_time("--delay", args.delay, "s", least="100ms", most="1h") / 1e9
    for option, number, least in (("-n", args.count, 1), ("--limit", args.limit, 0)):
        if number is not None and number < least:
            raise UsageError(f"{option} {number}: at least {least}")
    count = 1 if args.once else args.count
    on_screen = not (args.plain or args.json or args.once) and all(map(os.isatty, (0, 1, 2)))
    if on_screen and importlib.util.find_spec("textual") is None:
        raise PerfOffcpuError("the full screen needs textual: pip install 'perf-offcpu[tui]', or take --plain")
    first_s = min(seconds, _FIRST_S) if on_screen else seconds
    if on_screen:
        _end_with_terminal()
    with _ending() as ended, _segments(args, seconds, first_s) as segments:
        return ended(lambda: (_show if on_screen else _print)(args, segments, count))


def _segments(args: argparse.Namespace, seconds: float, first_s: float) -> Segments | AgentSegments:
    """Start a recorder, or open the spool of a running agent (--agent)."""
    words = _words(args)
    if args.agent is None:
        from perf_offcpu.top.segments import Segments

        return Segments(words, seconds, first_s)
    from perf_offcpu.agent.config import default_spool
    from perf_offcpu.top.agent_segments import AgentSegments

    if words:
        raise UsageError(f"--agent with {words[0]}: the agent has chosen what it records")
    return AgentSegments(args.agent or default_spool())


def _words(args: argparse.Namespace) -> list[str]:
    """Return the arguments of `record` that choose the target: options, and the command."""
    chosen = (("-p", args.pid), ("-t", args.tid), ("-u", args.uid), ("--comm", args.comm))
    options = [*chosen, *(("-G", path) for path in args.cgroup)]
    words = [word for option, value in options if value is not None for word in (option, value)]
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    return [*(["-a"] if args.all_cpus else []), *words, *(["--", *command] if command else [])]


class _Ended(BaseException):
    """Raised by a signal that ends the program; its argument is the signal's number."""


@contextmanager
def _ending() -> Iterator[Callable[[Callable[[], int]], int]]:
    """Handle SIGINT and SIGTERM in the `with` block, so that its cleanup runs. Yield a function that calls its argument
    and returns the result, or 128 + signal if a signal came. SIGHUP is not handled, because a write to a dead terminal
    may block for ever; the recorder and its files end with the process."""

    def end(number: int, _frame: object) -> None:
        raise _Ended(number)

    def status(work: Callable[[], int]) -> int:
        try:
            return work()
        except _Ended as ended:
            return 128 + int(ended.args[0])

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield status
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_with_terminal() -> None:
    """Start a thread that ends the process when its terminal hangs up, also if SIGHUP is ignored or not sent."""
    poll = select.poll()
    poll.register(1, 0)  # hangups are always reported

    def wait() -> None:
        poll.poll()
        os._exit(128 + signal.SIGHUP)

    threading.Thread(target=wait, daemon=True).start()


def _show(args: argparse.Namespace, segments: Segments | AgentSegments, count: int | None) -> int:
    """Show `count` intervals (None: without end) on the full screen; return the exit status."""
    from perf_offcpu.top.interval import interval_of
    from perf_offcpu.top.screen import Source, TopApp

    profiles = itertools.islice(segments, count)
    intervals = (interval_of(profile, idle="show", without_pid=os.getpid()) for profile in profiles)
    source = Source(intervals, segments.end, segments.percent, lambda: segments.unread, segments.keep)
    app = TopApp(source, KEYS, args.sort, args.idle)
    app.run()
    if app.problem is not None:
        raise app.problem
    return 128 + app.signal if app.signal else segments.status


def _print(args: argparse.Namespace, segments: Segments | AgentSegments, count: int | None) -> int:
    """Print `count` intervals (None: without end) as text or JSON; return the exit status."""
    import json

    from perf_offcpu.report.style import Style
    from perf_offcpu.top.interval import interval_of
    from perf_offcpu.top.plain import document, render

    limit = limit_from_args(args, _ROWS)
    style = Style(width=columns() if sys.stdout.isatty() else None)
    for number, profile in enumerate(segments, 1):
        interval = interval_of(profile, idle=args.idle, without_pid=os.getpid())
        rows = interval.rows(args.sort)
        facts = (interval, args.sort, rows, limit, segments.percent(), segments.unread)
        if args.json:
            print(json.dumps(document(*facts)))
        else:
            write_lines(render(*facts, style), sys.stdout)
        sys.stdout.flush()
        if number == count:
            return 0
    return segments.status
