# SPDX-License-Identifier: Apache-2.0
"""Options of `perf-offcpu record`, named as in `perf record` where that has them."""

from __future__ import annotations

import argparse

MAX_COMPRESSION_LEVEL = 22


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options, and the command to run."""
    _add_targets(parser)
    _add_events(parser)
    _add_waits(parser)
    _add_recording(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=argparse.SUPPRESS)


def _add_targets(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("target: whose waits are recorded").add_argument
    add("-a", "--all-cpus", action="store_true", help="the whole system")
    add("-p", "--pid", metavar="PIDS", help="processes (17 or 17,18)")
    add("-t", "--tid", metavar="TIDS", help="threads")
    add("-u", "--uid", metavar="USERS", help="users, by name or number")
    add("--comm", metavar="NAMES", help="threads of these names")
    add("-C", "--cpu", metavar="CPUS", help="waits that begin on these CPUs (0,2-3)")
    add(
        *("-G", "--cgroup"),
        action="append",
        default=[],
        metavar="PATHS",
        help="control groups, v2 or v1, and those below them",
    )
    add("--duration", type=float, metavar="S", help="stop after S seconds; a running command gets SIGTERM")


def _add_events(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("events and stacks")
    group.add_argument(
        "--off-cpu-thresh",
        type=float,
        default=1.0,
        metavar="MS",
        help="waits of MS milliseconds or longer become samples, shorter ones are summed; fractions allowed, "
        "0: every wait becomes a sample (default: 1)",
    )
    group.add_argument(
        *("-e", "--event"),
        action="append",
        metavar="EVENT",
        help="on-CPU events to sample, as perf names them: cpu-clock, page-faults, cycles:u, "
        "L1-dcache-load-misses, rNNN, cpu/event=0xc0,umask=1/, sched:sched_switch, ...; none: off-CPU time "
        "only (default: cpu-clock)",
    )
    rate = group.add_mutually_exclusive_group()
    rate.add_argument(
        "-F", "--freq", metavar="HZ", help="on-CPU samples per second and CPU, or max (default: 99)"
    )
    rate.add_argument("-c", "--count", type=int, metavar="N", help="one on-CPU sample every N events")
    group.add_argument(
        "--kernel-callchains",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="record kernel callchains",
    )
    group.add_argument(
        "--call-graph",
        default="auto",
        metavar="MODE",
        help="how user stacks are taken: fp, along frame pointers; fp,defer, the same when the thread "
        "returns to user mode, where the kernel can do that; cfi[,BYTES], copied (default: 8192 bytes, at "
        "most 32768) and unwound when read, without frame pointers; auto, fp if the target's files are "
        "known to have frame pointers, else cfi (default: auto)",
    )
    group.add_argument("-g", action="store_true", help="accepted as in perf: callchains are always recorded")
    group.add_argument(
        "--no-stack-bytes",
        action="store_true",
        help="copy no stacks, which can hold secrets: --call-graph auto chooses fp",
    )
    group.add_argument("--all-cgroups", action="store_true", help="record the cgroup of on-CPU samples")


def _add_waits(parser: argparse.ArgumentParser) -> None:
    from perf_offcpu.collect.states import ShortWaits

    group = parser.add_argument_group("waits")
    group.add_argument(
        "--short-waits",
        choices=[one.value for one in ShortWaits],
        default=ShortWaits.STACKS.value,
        help="waits below the threshold: stacks, summed by user stack as perf does; threads, summed by "
        "thread, state and system call only, which costs least; drop, counted only (default: stacks)",
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
        help="at most about N off-cpu samples per second: the threshold rises to keep to it, and the waits "
        "below it are summed (N is 10 or more)",
    )
    group.add_argument(
        "--switch-states",
        default="S,D,I",
        metavar="STATES",
        help="task states that count as a wait: S, D, I (idle kernel threads), T, t, R (preempted or "
        "yielding), P (parked) (default: S,D,I)",
    )
    group.add_argument("--kernel-threads", action="store_true", help="record kernel threads, too")
    group.add_argument(
        "--wakers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="record waker and wake-up time, which separates blocked time from run-queue delay",
    )
    group.add_argument(
        "--waker-stacks", action="store_true", help="record the waker's stack for waits over the threshold"
    )
    group.add_argument(
        "--budget",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="account all time of every thread: running, runnable, blocked",
    )


def _add_recording(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("recording")
    group.add_argument(
        *("-o", "--output"),
        default="perf.data",
        metavar="FILE",
        help="default: perf.data; an old one is kept as FILE.old; -: standard output, in pipe form",
    )
    for level in range(MAX_COMPRESSION_LEVEL + 1):  # attached, as in perf: a word after -z is the command
        group.add_argument(
            f"-z{level or ''}",
            dest="compression_level",
            action="store_const",
            default=0,
            const=level or 1,
            help=argparse.SUPPRESS if level else "compress with zstd; -zN: at level N, 1 to 22",
        )
    group.add_argument("--compression-level", type=int, default=0, metavar="N", help="same as -zN")
    group.add_argument(
        "--switch-output",
        nargs="?",
        const="signal",
        metavar="WHEN",
        help="start a new file at SIGUSR2 (signal, the default), after a time (30s, 5m, 1h) or at a size "
        "(100M); each file is complete, and its name ends in its start time",
    )
    group.add_argument(
        "--switch-max-files", type=int, default=0, metavar="N", help="keep only the last N of these files"
    )
    group.add_argument(
        *("-m", "--mmap-pages"),
        metavar="PAGES",
        help="ring buffer per CPU, in pages or with a suffix: 512K, 4M (default: 4M, with copies of stacks "
        "16M; less on many CPUs)",
    )
    group.add_argument(
        "--buildid-cache",
        action="store_true",
        help="copy the files with recorded addresses to ~/.debug (or $PERF_BUILDID_DIR), in case programs "
        "are removed or replaced",
    )
    group.add_argument(
        "-r", "--realtime", type=int, default=0, metavar="PRIO", help="run the recorder as SCHED_FIFO"
    )
    group.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    group.add_argument("-v", "--verbose", action="store_true", help="print losses and resources in detail")
