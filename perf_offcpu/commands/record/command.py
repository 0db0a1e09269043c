# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu record: record waits of threads and on-CPU samples into one perf.data. This module declares the options,
named as in `perf record` where it has them (`options` reads them), runs the recording and prints its summary."""

import argparse
import contextlib
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TextIO

from perf_offcpu import losses
from perf_offcpu.collect.system.privileges import READING, keep_capabilities
from perf_offcpu.commands.record.options import MAX_COMPRESSION_LEVEL, options_of, with_rights
from perf_offcpu.commands.shared.parsers import LIST, accept_without_effect, add_options, add_verb
from perf_offcpu.errors import PerfOffcpuError
from perf_offcpu.files import read_kernel
from perf_offcpu.structs import Closing
from perf_offcpu.text import printable

if TYPE_CHECKING:
    from perf_offcpu.collect.summary import Summary


_ON: Final[dict[str, Any]] = {"action": argparse.BooleanOptionalAction, "default": True}
_NUMBER: Final[dict[str, Any]] = {"type": int, "default": 0}
_TASK_RATE: Final[dict[str, Any]] = {"type": int, "default": 4, "choices": range(6)}
_CLEAR = "\r\x1b[K"
_DEFAULT_WIDTH = 80


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the parser of this verb, with its options, to `subparsers`."""
    usage = "perf-offcpu record [OPTIONS] [-a | -p PIDS | -t TIDS] [-u USERS] [-- COMMAND [ARGS]]"
    parser = add_verb(subparsers, "record", usage=usage)
    accept_without_effect(parser, "record")
    _add_arguments(parser)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    from perf_offcpu.collect.bpf.config import ShortWaits

    targets = parser.add_argument_group("target: whose waits are recorded")
    add_options(targets, "record.targets", cgroup=LIST)
    events = parser.add_argument_group("events and stacks")
    add_options(events.add_mutually_exclusive_group(), "record.which_waits", off_cpu_thresh={"default": "1"})
    add_options(events, "record.events", event={"action": "append"})
    add_options(events.add_mutually_exclusive_group(), "record.rate", count={"type": int})
    add_options(
        events,
        "record.stacks",
        kernel_callchains=_ON,
        call_graph={"default": "auto"},
        task_rate=_TASK_RATE,
        goroutines={"action": argparse.BooleanOptionalAction, "default": None},
    )
    add_options(
        parser.add_argument_group("waits"),
        "record.waits",
        short_waits={"choices": [choice.value for choice in ShortWaits], "default": ShortWaits.SAMPLED.value},
        min_block={"default": "0"},
        max_rate=_NUMBER,
        switch_states={"default": "S,D,I,T,t,Q"},
        **dict.fromkeys(("wakers", "objects", "object_names", "budget"), _ON),
    )
    recording = parser.add_argument_group("recording")
    add_options(recording, "record.output", output={"default": "perf.data"})
    level: dict[str, Any] = {"dest": "compression_level", "action": "store_const"}
    for number in range(MAX_COMPRESSION_LEVEL + 1):  # attached, as in perf: a word after -z is the command
        recording.add_argument(f"-z{number}", help=argparse.SUPPRESS, const=number, **level)
    details = dict.fromkeys(("compression_level", "switch_max_files", "realtime", "until_exit"), _NUMBER)
    details |= {
        "ready_fd": {"type": int},
        "switch_output": {"nargs": "?", "const": "signal"},
        "z": level | {"const": 1},
    }
    add_options(recording, "record.recording", **details)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Run the verb with the parsed arguments. Return the exit status of the recorded command; without a command, 128 +
    signal if a signal ended the recording, else 0."""
    from perf_offcpu.collect.session import record
    from perf_offcpu.collect.targets import left_out

    options = with_rights(options_of(args, sys.argv), forced=args.unprivileged)
    say: Callable[[str], None] = (lambda text: None) if args.quiet else _say
    if not args.quiet and options.target.processes:
        for line in left_out(options.target.processes):
            say(_bracketed(line))

    def ready() -> None:
        if args.control is not None or not (options.command or sys.stderr.isatty()):
            say(_bracketed("recording"))
        if args.ready_fd is not None:
            with contextlib.suppress(BrokenPipeError), open(args.ready_fd, "wb", buffering=0) as pipe:
                pipe.write(b"READY\n")

    def keep() -> None:
        for line in keep_symbols(summary.path):
            say(_bracketed(printable(line)))

    if args.quiet or not sys.stderr.isatty():
        summary = record(options, say, ready=ready)
    else:
        with LiveLine(sys.stderr) as live:
            summary = record(options, live.say, live.show, ready)
    for line in summary_lines(summary, args.verbose):
        say(line)
    if not summary.waits and (chosen := _chosen(args)):
        say(_bracketed(f"no wait of {chosen} was seen: none ended, none was going on at the end"))
    return 1 if args.buildid_cache and not run_with_fewer_rights(keep) else summary.status


def _chosen(args: argparse.Namespace) -> str:
    """Return the options on the command line that choose tasks, as text; "" for none."""
    chosen = (("-p", args.pid), ("-t", args.tid), ("-u", args.uid), ("--comm", args.comm), ("-C", args.cpu))
    groups = (("-G", group) for group in args.cgroup)
    return printable(" ".join(f"{option} {value}" for option, value in (*chosen, *groups) if value))


def summary_lines(summary: "Summary", verbose: bool = False) -> list[str]:
    """Return the lines to print after a recording, in the form of perf record; `verbose`: with times and counters."""
    megabytes = summary.file_bytes / (1 << 20)  # perf counts these
    waits = f"{summary.events(losses.SAMPLES) + summary.still_blocked} off-cpu samples"
    if summary.still_blocked:
        waits += f", {summary.still_blocked} of them still blocked"
    counts = f"{waits}, {summary.sums} sums, {summary.oncpu_samples} on-CPU samples"
    where = summary.path if summary.files == 1 else f"{summary.path} and {summary.files - 1} before it"
    facts = [f"Captured and wrote {megabytes:.3f} MB {where} ({counts})"]
    if lost := [f"{count} {cause.text}" for cause, count in summary.losses().items()]:
        facts.append(f"lost: {', '.join(lost)}")
    facts += [summary.remedy] if summary.remedy else []
    return [*map(_bracketed, facts), *(_details(summary) if verbose else [])]


def _bracketed(text: str) -> str:
    return f"[ perf-offcpu record: {text} ]"


def keep_symbols(path: str) -> list[str]:
    """Copy the files that hold recorded addresses into the build-id cache (perf's: ~/.debug). Return lines to print:
    the number of files copied, and the files that were not found."""
    from perf_offcpu.archive.gather import DirectoryStore, SymbolSaver
    from perf_offcpu.cache import DiskCache
    from perf_offcpu.symbolize.load import load_unwound
    from perf_offcpu.symbolize.options import SymbolizeOptions

    symbols = SymbolizeOptions(cache=DiskCache.usual())
    search = symbols.search()
    store = DirectoryStore(search.buildid_dir)
    try:
        saved = SymbolSaver(load_unwound(path, search), store, symbols, debug=False).save()
    except OSError as problem:
        return [f"symbols could not be kept in {store.root}: {problem.strerror}"]
    kept = f"{saved.files} files with symbols new in {store.root} ({saved.size / 2**20:.1f} MB)"
    return [kept, *(f"not kept: {name}: {why}" for name, why in sorted(saved.missing.items()))]


def _details(summary: "Summary") -> list[str]:
    """Return the further lines of `record --verbose`: times, rings, counters, runs of BPF programs."""
    seconds = summary.recorded_ns / 1e9
    rings = f"{summary.ring_bytes >> 10} kB per CPU, {summary.ring_fullest:.0%} used at most"
    counters = ", ".join(f"{cause.name} {counter.events}" for cause, counter in summary.counters.items())
    lines = [
        f"recorded for {seconds:.3f} s with {summary.cpu_s:.3f} s of CPU; rings of {rings}",
        f"longest time between two drains of the rings: {summary.longest}",
        f"counters: {counters}",
    ]
    runs = [f"{name} {ns / n:.0f} ns in {n} runs" for name, (n, ns) in summary.programs.items() if n]
    return [*lines, f"BPF: {', '.join(runs)}"] if runs else lines


def _say(text: str) -> None:
    """Print a line to stderr; if its reader is gone, do nothing, so that the recording continues to its normal end."""
    with contextlib.suppress(BrokenPipeError):
        print(text, file=sys.stderr)


class LiveLine(Closing):
    """Status line on a terminal; other lines (`say`) and the end of the `with` block remove it."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown = False

    def show(self, progress: str) -> None:
        """Replace the status line, cut to the terminal's width: a wrapped line cannot be removed. Do nothing if the
        terminal accepts no output (Ctrl-S): the rings would fill while it blocks."""
        poll = select.poll()
        poll.register(self._out, select.POLLOUT)
        if not poll.poll(0):
            return
        width = _DEFAULT_WIDTH
        with contextlib.suppress(OSError):
            width = os.get_terminal_size(self._out.fileno()).columns or width
        print(f"{_CLEAR}{f'recording {progress}'[: width - 1]}", end="", file=self._out, flush=True)
        self._shown = True

    def say(self, text: str) -> None:
        """Remove the status line and print a line that stays."""
        self.close()
        print(text, file=self._out, flush=True)

    def close(self) -> None:
        """Remove the status line."""
        if self._shown:
            print(_CLEAR, end="", file=self._out, flush=True)
        self._shown = False


_MOST_IDLE_S: Final = 10.0
_NAP_S: Final = 0.02


def run_with_fewer_rights(work: Callable[[], None]) -> bool:
    """Run a function in a forked process with the capabilities of READING; return True if it succeeded. This is for
    --buildid-cache, which parses files of other users. The process cannot load BPF programs or modules, mount, change
    owners or users, nor regain such rights by execve. It is no sandbox: it has CAP_SYS_PTRACE and owns root's files."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings(action="ignore"):  # Python 3.12, where other threads exist
        pid = os.fork()
    if pid:
        return _has_succeeded(pid)
    status = 1
    try:
        keep_capabilities(READING)
        work()
        status = 0
    except (PerfOffcpuError, OSError) as problem:
        print(f"perf-offcpu record: {problem}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _has_succeeded(pid: int) -> bool:
    """Wait for a child process; return True if it exited with status 0. Kill it and return False if it makes no
    progress for _MOST_IDLE_S: a file system that does not answer (FUSE, NFS) can block it for ever."""
    before, seen_s = b"", time.monotonic()
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status == 0
        now = read_kernel(f"/proc/{pid}/stat")  # times, faults, states: it changes while a process works
        if now != before:
            before, seen_s = now, time.monotonic()
        elif time.monotonic() > seen_s + _MOST_IDLE_S:
            os.kill(pid, signal.SIGKILL)
            print("perf-offcpu record: a file system does not answer: not all symbols are kept", file=sys.stderr)
            return False
        time.sleep(_NAP_S)
