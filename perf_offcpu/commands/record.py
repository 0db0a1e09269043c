# SPDX-License-Identifier: Apache-2.0
"""`perf-offcpu record`: where threads wait and what runs meanwhile, into one perf.data.

Options are named and behave as in `perf record`, as far as they exist there. What they mean for a recording
is decided in `collect`; here they are read, and the result is told in perf's manner.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perf_offcpu.commands._perf_habits import add_as_always, advice_of
from perf_offcpu.commands._streams import stdout_is_closed
from perf_offcpu.errors import UsageError

if TYPE_CHECKING:
    from perf_offcpu.collect.options import RecordOptions
    from perf_offcpu.collect.summary import Summary
    from perf_offcpu.collect.switch_output import SwitchOutput
    from perf_offcpu.collect.targets import TargetTexts

_DESCRIPTION = """\
Record where threads wait (off-CPU time, with stacks) and, beside it, what runs on the CPUs. Without a
target and without a command, everybody is recorded until Ctrl-C."""

_EPILOG = """\
Each wait at or over --off-cpu-thresh becomes a sample with its own time and its whole stack, kernel and user.
Shorter waits are summed by thread, state and user stack and written as sums: nothing is left out, but a sum
has no single time and no kernel stack. perf's threshold is 500 ms, which turns nearly everything into sums;
here it is 1 ms, because waits are what the recording is for."""

_MAX_THRESHOLD_MS = 1e9
_MOST_RATE = 10**9
MAX_COMPRESSION_LEVEL = 22


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its options to the command line."""
    parser = subparsers.add_parser(
        "record",
        help="record waits and on-CPU samples into perf.data",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        usage="perf-offcpu record [OPTIONS] [-a | -p PIDS | -t TIDS] [-u USERS] [-- COMMAND [ARGS]]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        advice=advice_of("record"),
    )
    add_as_always(parser, "record")
    _add_targets(parser)
    _add_events(parser)
    _add_waits(parser)
    _add_recording(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def _add_targets(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("whose waits")
    group.add_argument("-a", "--all-cpus", action="store_true", help="everybody's, on all CPUs")
    group.add_argument("-p", "--pid", metavar="PIDS", help="those of processes (17 or 17,18)")
    group.add_argument("-t", "--tid", metavar="TIDS", help="those of threads")
    group.add_argument("-u", "--uid", metavar="USERS", help="those of users, by name or number")
    group.add_argument("--comm", metavar="NAMES", help="those of threads with this name")
    group.add_argument("-C", "--cpu", metavar="CPUS", help="those that begin on CPUs (0,2-3)")
    group.add_argument(
        "-G",
        "--cgroup",
        action="append",
        default=[],
        metavar="PATHS",
        help="those in control groups and groups below, of cgroup v2 or v1",
    )
    group.add_argument(
        "--duration",
        type=float,
        metavar="S",
        help="end after S seconds; a command still running gets SIGTERM",
    )


def _add_events(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what")
    group.add_argument(
        "--off-cpu-thresh",
        type=float,
        default=1.0,
        metavar="MS",
        help="waits of MS milliseconds and more become samples of their own, shorter ones are summed; "
        "fractions allowed, 0: every wait becomes a sample (default: 1)",
    )
    group.add_argument(
        "-e",
        "--event",
        action="append",
        metavar="EVENT",
        help="on-CPU events to sample, as perf names them: cpu-clock, page-faults, cycles:u, "
        "L1-dcache-load-misses, rNNN, cpu/event=0xc0,umask=1/, sched:sched_switch, ...; none: off-CPU time "
        "alone (default: cpu-clock)",
    )
    rate = group.add_mutually_exclusive_group()
    rate.add_argument(
        "-F", "--freq", metavar="HZ", help="on-CPU samples a second and CPU, or max (default: 99)"
    )
    rate.add_argument("-c", "--count", type=int, metavar="N", help="one on-CPU sample every N events")
    group.add_argument(
        "--kernel-callchains",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="take the kernel's part of stacks, too",
    )
    group.add_argument(
        "--call-graph",
        default="auto",
        metavar="MODE",
        help="how user stacks are taken: fp, walked along frame pointers; fp,defer, when the thread returns "
        "to user mode, where the kernel can do that; cfi[,BYTES], copied (default: 8192 bytes, at most "
        "32768) and unwound when read, without frame pointers too; auto, fp if the target's files are known "
        "to have frame pointers, else cfi (default: auto)",
    )
    group.add_argument("-g", action="store_true", help="accepted as in perf: callchains are always taken")
    group.add_argument(
        "--no-stack-bytes",
        action="store_true",
        help="copy no stacks, for they can hold secrets: --call-graph auto chooses fp",
    )
    group.add_argument(
        "--all-cgroups", action="store_true", help="note the control group in on-CPU samples, too"
    )


def _add_waits(parser: argparse.ArgumentParser) -> None:
    from perf_offcpu.collect.states import ShortWaits

    group = parser.add_argument_group("which waits, and what of them")
    group.add_argument(
        "--short-waits",
        choices=[one.value for one in ShortWaits],
        default=ShortWaits.STACKS.value,
        help="what becomes of waits under the threshold: summed by user stack as perf does; by thread, "
        "state and system call alone (threads: cheapest); or left out and counted (drop) (default: stacks)",
    )
    group.add_argument(
        "--min-block",
        type=float,
        default=0.0,
        metavar="US",
        help="leave out waits shorter than US microseconds; they are counted",
    )
    group.add_argument(
        "--max-rate",
        type=int,
        default=0,
        metavar="N",
        help="at most about N off-cpu samples a second: the threshold rises when there would be more; "
        "waits that it shuts out are summed (N is 10 or more)",
    )
    group.add_argument(
        "--switch-states",
        default="S,D,I",
        metavar="STATES",
        help="states that count as a wait: S, D, I (idle kernel threads), T, t, R (preempted or yielding), "
        "P (parked) (default: S,D,I)",
    )
    group.add_argument("--kernel-threads", action="store_true", help="record kernel threads, too")
    group.add_argument(
        "--wakers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="note who woke and when: blocked time and run-queue delay apart",
    )
    group.add_argument(
        "--waker-stacks", action="store_true", help="take the waker's stack for waits over the threshold, too"
    )
    group.add_argument(
        "--budget",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep account of all time of every thread: running, runnable, blocked",
    )


def _add_recording(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how")
    group.add_argument(
        "-o",
        "--output",
        default="perf.data",
        metavar="FILE",
        help="default: perf.data; an old one is kept as FILE.old; -: standard output, in pipe form",
    )
    for level in range(MAX_COMPRESSION_LEVEL + 1):  # attached, as in perf: a word behind -z is the command
        group.add_argument(
            f"-z{level or ''}",
            dest="compression_level",
            action="store_const",
            default=0,
            const=level or 1,
            help=argparse.SUPPRESS if level else "compress with zstd; -zN: at level N, 1 to 22",
        )
    group.add_argument("--compression-level", type=int, default=0, metavar="N", help="the same as -zN")
    group.add_argument(
        "--switch-output",
        nargs="?",
        const="signal",
        metavar="WHEN",
        help="go on in a new file at SIGUSR2 (signal, the default), after a time (30s, 5m, 1h) or when a "
        "file has a size (100M); all files are complete, their names end in the time of their begin",
    )
    group.add_argument(
        "--switch-max-files", type=int, default=0, metavar="N", help="keep only the last N of these files"
    )
    group.add_argument(
        "-m",
        "--mmap-pages",
        metavar="PAGES",
        help="ring buffer per CPU, in pages or with a suffix: 512K, 4M (default: 4M, with copies of stacks "
        "16M; less on many CPUs)",
    )
    group.add_argument(
        "--buildid-cache",
        action="store_true",
        help="keep the files that name the recorded addresses by build-id, in ~/.debug (or "
        "$PERF_BUILDID_DIR): for when programs are gone or replaced",
    )
    group.add_argument(
        "-r", "--realtime", type=int, default=0, metavar="PRIO", help="run the recorder as SCHED_FIFO"
    )
    group.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    group.add_argument("-v", "--verbose", action="store_true", help="print what was lost and used in detail")


def run(args: argparse.Namespace) -> int:
    """Record as the options say.

    Returns:
        The command's exit status; without one, 128 + signal if a signal ended the recording, else 0.

    Raises:
        PerfOffcpuError: see `collect.session.record`.
    """
    from perf_offcpu.collect.options import STANDARD_OUTPUT
    from perf_offcpu.collect.session import record
    from perf_offcpu.commands._keep import keep_symbols
    from perf_offcpu.commands._live import LiveLine
    from perf_offcpu.convert.text import printable

    options = options_of(args, sys.argv)
    if args.buildid_cache and args.output == STANDARD_OUTPUT:
        raise UsageError("--buildid-cache needs a file to read back, -o - is a pipe")
    if args.quiet or not sys.stderr.isatty():
        summary = record(options, (lambda text: None) if args.quiet else _say)
    else:
        with LiveLine(sys.stderr) as live:
            summary = record(options, live.say, live.show)
    if not args.quiet:
        for line in summary_lines(summary, args.verbose):
            _say(line)
    if args.buildid_cache:
        for line in keep_symbols(summary.path):
            if not args.quiet:
                _say(f"[ perf-offcpu record: {printable(line)} ]")
    return summary.status


def options_of(args: argparse.Namespace, argv: Sequence[str]) -> RecordOptions:
    """The recording that a command line asks for.

    Raises:
        UsageError: the options contradict each other or have impossible values.
    """
    from perf_offcpu.collect.event_parser import DEFAULT_EVENT, parse_events
    from perf_offcpu.collect.options import STANDARD_OUTPUT, RecordOptions
    from perf_offcpu.collect.rings import parse_ring_size
    from perf_offcpu.collect.states import ShortWaits, parse_states
    from perf_offcpu.collect.targets import choose_target
    from perf_offcpu.commands._call_graph import choose_call_graph

    if args.output == STANDARD_OUTPUT and stdout_is_closed():
        raise UsageError("-o -: standard output is closed")
    command = tuple(args.command[1:] if args.command[:1] == ["--"] else args.command)
    target = choose_target(_target_texts(args), bool(command))
    call_graph = choose_call_graph(args.call_graph, args.no_stack_bytes, target, command)
    options = RecordOptions(
        target=target,
        command=command,
        argv=tuple(argv),
        output=args.output,
        switch=_switch_output(args),
        compression_level=_compression_level(args),
        threshold_ns=_threshold_ns(args.off_cpu_thresh),
        events=parse_events(args.event or [DEFAULT_EVENT]),
        frequency_hz=_frequency(args.freq),
        period=_at_least("-c", 1, args.count) if args.count is not None else 0,
        kernel_stacks=args.kernel_callchains,
        deferred_stacks=call_graph.deferred,
        stack_bytes=call_graph.stack_bytes,
        all_cgroups=args.all_cgroups,
        short_waits=ShortWaits(args.short_waits),
        min_block_ns=_min_block_ns(args.min_block),
        max_rate=_max_rate(args.max_rate),
        states=parse_states(args.switch_states),
        kernel_threads=args.kernel_threads,
        wakers=_wakers(args),
        waker_stacks=args.waker_stacks,
        budget=args.budget,
        ring_bytes=parse_ring_size(args.mmap_pages) if args.mmap_pages else 0,
        realtime_priority=_at_least("--realtime", 0, args.realtime),
        duration_s=args.duration if args.duration is None else _positive("--duration", args.duration),
    )
    return _check_tracepoints(options)


def _switch_output(args: argparse.Namespace) -> SwitchOutput | None:
    from perf_offcpu.collect.options import STANDARD_OUTPUT
    from perf_offcpu.collect.switch_output import parse_switch_output

    _at_least("--switch-max-files", 0, args.switch_max_files)
    if args.switch_output is None:
        if args.switch_max_files:
            raise UsageError("--switch-max-files needs --switch-output")
        return None
    if args.output == STANDARD_OUTPUT:
        raise UsageError("--switch-output needs files, -o - is a pipe")
    return parse_switch_output(args.switch_output, args.switch_max_files)


def _compression_level(args: argparse.Namespace) -> int:
    from perf_offcpu.collect.options import STANDARD_OUTPUT
    from perf_offcpu.perfdata.compressed import zstd_library

    level = int(args.compression_level)
    if not 0 <= level <= MAX_COMPRESSION_LEVEL:
        raise UsageError(f"--compression-level {level}: 1 to {MAX_COMPRESSION_LEVEL}, or 0 for none")
    if level and args.output == STANDARD_OUTPUT:
        raise UsageError("-z is for files; compress the pipe itself: -o - | zstd")
    if level:
        zstd_library()  # refuse now, not when the recording begins
    return level


def _check_tracepoints(options: RecordOptions) -> RecordOptions:
    """A tracepoint's samples are of everybody: the kernel has no filter by task for one recorder alone."""
    target = options.target
    chosen = not target.is_system or target.users or target.comms or target.groups
    for event in options.events:
        if event.is_tracepoint and chosen:
            raise UsageError(f"-e {event.name}: tracepoints are recorded of everybody only: use -a")
    return options


def _target_texts(args: argparse.Namespace) -> TargetTexts:
    from perf_offcpu.collect.targets import TargetTexts

    return TargetTexts(
        system=args.all_cpus,
        pids=args.pid,
        tids=args.tid,
        users=args.uid,
        comms=args.comm,
        cpus=args.cpu,
        groups=args.cgroup,
    )


def _threshold_ns(milliseconds: float) -> int:
    if not 0 <= milliseconds <= _MAX_THRESHOLD_MS:
        raise UsageError(f"--off-cpu-thresh {milliseconds:g}: not a number of milliseconds, 0 or more")
    return round(milliseconds * 1e6)


def _min_block_ns(microseconds: float) -> int:
    if not 0 <= microseconds <= _MAX_THRESHOLD_MS * 1e3:
        raise UsageError(f"--min-block {microseconds:g}: not a number of microseconds, 0 or more")
    return round(microseconds * 1e3)


def _wakers(args: argparse.Namespace) -> bool:
    if args.waker_stacks and not args.wakers:
        raise UsageError("--waker-stacks and --no-wakers contradict each other")
    return bool(args.wakers)


def _frequency(text: str | None) -> int:
    """Samples a second; the kernel refuses more than a limit that it lowers when sampling takes too long."""
    from perf_offcpu.collect.options import DEFAULT_FREQUENCY_HZ

    limit = int(Path("/proc/sys/kernel/perf_event_max_sample_rate").read_text())
    if text is None:
        return min(DEFAULT_FREQUENCY_HZ, limit)
    if text == "max":
        return limit
    if not text.isascii() or not text.isdigit() or not int(text):
        raise UsageError(f"-F {text}: not a frequency in Hz, nor max")
    if int(text) > limit:
        raise UsageError(
            f"-F {text}: more than the kernel allows (kernel.perf_event_max_sample_rate is {limit})"
        )
    return int(text)


def _max_rate(value: int) -> int:
    if value > _MOST_RATE:
        raise UsageError(f"--max-rate {value}: at most {_MOST_RATE}, or 0 for any number")
    return _at_least("--max-rate", 10, value) if value else 0


def _at_least(option: str, least: int, value: int) -> int:
    if value < least:
        raise UsageError(f"{option} {value}: at least {least}")
    return value


def _positive(option: str, value: float) -> float:
    if not value > 0:
        raise UsageError(f"{option} {value:g}: not a time in seconds, more than 0")
    return value


def summary_lines(summary: Summary, verbose: bool = False) -> list[str]:
    """What became of the recording, in perf's manner."""
    megabytes = summary.file_bytes / (1 << 20)  # as perf counts them
    waits = f"{summary.events('samples') + summary.still_blocked} off-cpu samples"
    if summary.still_blocked:
        waits += f", {summary.still_blocked} of them still blocked"
    counts = f"{waits}, {summary.sums} sums, {summary.oncpu_samples} on-CPU samples"
    where = summary.path if summary.files == 1 else f"{summary.path} and {summary.files - 1} before it"
    lines = [f"[ perf-offcpu record: Captured and wrote {megabytes:.3f} MB {where} ({counts}) ]"]
    losses = [f"{count} {what}" for what, count in summary.losses().items()]
    if losses:
        lines.append(f"[ perf-offcpu record: lost: {', '.join(losses)} ]")
    if summary.remedy:
        lines.append(f"[ perf-offcpu record: {summary.remedy} ]")
    if verbose:
        lines += _details(summary)
    return lines


def _details(summary: Summary) -> list[str]:
    seconds = (summary.span.end_ns - summary.span.begin_ns) / 1e9
    rings = f"{summary.ring_bytes >> 10} kB per CPU, {summary.ring_fullest:.0%} used at most"
    counters = ", ".join(f"{name} {counter.events}" for name, counter in summary.counters.items())
    lines = [
        f"recorded for {seconds:.3f} s with {summary.cpu_s:.3f} s of CPU; rings of {rings}",
        f"counters: {counters}",
    ]
    runs = [f"{name} {ns / n:.0f} ns in {n} runs" for name, (n, ns) in summary.programs.items() if n]
    return [*lines, f"BPF: {', '.join(runs)}"] if runs else lines


def _say(text: str) -> None:
    print(text, file=sys.stderr)
