# SPDX-License-Identifier: Apache-2.0
"""The options of `perf-offcpu record`: named as in `perf record`, as far as they exist there.

What a command line's texts mean for a recording is decided in `commands.record.options`.
"""

from __future__ import annotations

import argparse

MAX_COMPRESSION_LEVEL = 22


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options and the command to be run."""
    _add_targets(parser)
    _add_events(parser)
    _add_waits(parser)
    _add_recording(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=argparse.SUPPRESS)


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
