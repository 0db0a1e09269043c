# SPDX-License-Identifier: Apache-2.0
"""Declare the options of `perf-offcpu record`, with the names of `perf record` where it has them."""

import argparse
from typing import Any, Final

from perf_offcpu.commands.shared.parsers import LIST, add_options

MAX_COMPRESSION_LEVEL = 22
_ON: Final[dict[str, Any]] = {"action": argparse.BooleanOptionalAction, "default": True}
_NUMBER: Final[dict[str, Any]] = {"type": int, "default": 0}
_TASK_RATE: Final[dict[str, Any]] = {"type": int, "default": 4, "choices": range(6)}

_TARGETS = """
-a, --all-cpus: the whole system
-p, --pid PIDS: processes (17 or 17,18)
-t, --tid TIDS: threads
-u, --uid USERS: users, by name or number
--comm NAMES: threads of these names
-C, --cpu CPUS: waits that begin on these CPUs (0,2-3)
-G, --cgroup PATHS: control groups, v2 or v1, and those below them
--duration TIME: stop after this time: 10 (seconds), 500ms, 5m; a running command gets SIGTERM
"""
_WHICH_WAITS = """
--off-cpu-thresh TIME: waits of this length or longer become samples, shorter ones are summed: 0.5 (ms),
  500us; 0: every wait becomes a sample (default: 1)
--off-cpu-period TIME: one sample for each such time of waiting of a thread (a bare number is ms), whatever
  the lengths of its waits; each stands for this time or a multiple, and short waits are not summed
"""
_EVENTS = """
-e, --event EVENT: on-CPU events to sample, as perf names them: cpu-clock, page-faults, cycles:u,
  L1-dcache-load-misses, rNNN, cpu/event=0xc0,umask=1/, sched:sched_switch, ...; none: off-CPU time only
  (default: cpu-clock)
"""
_RATE = """
-F, --freq HZ: on-CPU samples per second and CPU, or max (default: 99)
-c, --count N: one on-CPU sample every N events
"""
_STACKS = """
--kernel-callchains: record kernel callchains
--call-graph MODE: how user stacks are taken: fp, along frame pointers; fp,defer, the same when the thread
  returns to user mode, where the kernel can do that; cfi[,BYTES], copied (default: 8192 bytes, more for deep
  stacks, at most 32768) and unwound when read, without frame pointers; auto, fp if the target's files are
  known to have frame pointers, else cfi (default: auto)
-g: accepted as in perf: callchains are always recorded
--no-stack-bytes: copy no stacks, which can hold secrets: --call-graph auto chooses fp
--no-jvm-names: do not ask JVMs for the names of the code that they compile
--task-rate N: readings a second of the tasks of asyncio's event loops (CPython 3.14), at most; fewer if they
  take 1 %% of a CPU; 0: none but at the end (default: 4)
--goroutines: read some times a second where goroutines of Go programs wait, for --by task
--all-cgroups: record the cgroup of on-CPU samples
"""
_WAITS = """
--short-waits: waits below the threshold: sampled, summed by thread, state and system call, with the stacks
  of some; stacks, summed by user stack as perf does; threads, without stack; drop, counted only
  (default: sampled)
--min-block TIME: leave out waits shorter than this (a bare number is us); they are counted
--max-rate N: at most about N off-cpu samples per second: the threshold rises to keep to it, and the waits
  below it are summed; with --off-cpu-period, the period rises and falls (N is 10 or more)
--switch-states STATES: task states that count as a wait: S, D, I (idle kernel threads), T, t, R (preempted or
  yielding), P (parked), Q (throttled by a quota of CPU time) (default: S,D,I,T,t,Q)
--kernel-threads: record kernel threads, too
--wakers: record waker and wake-up time, which separates blocked time from run-queue delay
--waker-stacks: record the waker's stack for waits over the threshold
--objects: record what each wait over the threshold was for: file, socket, pipe, lock, process
--object-names: with names and paths of these objects
--lock-owners: record who holds a lock when a wait for it begins, which costs every wait in futex(2)
--budget: account all time of every thread: running, runnable, blocked
"""
_OUTPUT = """
-o, --output FILE: default: perf.data; an old one is kept as FILE.old; -: standard output, in pipe form
"""
_RECORDING = """
--compression-level N: same as -zN
--switch-output WHEN: start a new file at SIGUSR2 (signal, the default), after a time (30s, 5m, 1h) or at a
  size (100M); each file is complete, and its name ends in its start time
--switch-max-files N: keep only the last N of these files
-m, --mmap-pages SIZE: ring buffer per CPU: 512K, 4M, a bare number is pages (default: 4M, with copies of
  stacks 16M; less on many CPUs)
--buildid-cache: copy the files with recorded addresses to ~/.debug (or $PERF_BUILDID_DIR), in case programs
  are removed or replaced
--control FDS: take commands (enable, disable, snapshot, account, period TIME, stop, ping) from an open descriptor,
  fd:CTL, and acknowledge them, fd:CTL,ACK
--until-exit PID: stop when this process ends, whatever is recorded
--ready-fd FD: write READY to this open descriptor when recording has begun, and close it
--unprivileged: record own processes without BPF, as is done by itself where BPF is refused: every wait with its
  times, but user stacks and objects of longer waits only, no wakers; kernel stacks at perf_event_paranoid 1 or lower
-r, --realtime PRIO: run the recorder as SCHED_FIFO
-q, --quiet: print errors only
-v, --verbose: print losses and resources in detail
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options, and the command to run."""
    from perf_offcpu.collect.bpf.config import ShortWaits

    targets = parser.add_argument_group("target: whose waits are recorded")
    add_options(targets, _TARGETS, cgroup=LIST)
    events = parser.add_argument_group("events and stacks")
    one_of = events.add_mutually_exclusive_group()
    add_options(one_of, _WHICH_WAITS, off_cpu_thresh={"default": "1"})
    add_options(events, _EVENTS, event={"action": "append"})
    add_options(events.add_mutually_exclusive_group(), _RATE, count={"type": int})
    add_options(events, _STACKS, kernel_callchains=_ON, call_graph={"default": "auto"}, task_rate=_TASK_RATE)
    add_options(
        parser.add_argument_group("waits"),
        _WAITS,
        short_waits={"choices": [choice.value for choice in ShortWaits], "default": ShortWaits.SAMPLED.value},
        min_block={"default": "0"},
        max_rate=_NUMBER,
        switch_states={"default": "S,D,I,T,t,Q"},
        **dict.fromkeys(("wakers", "objects", "object_names", "budget"), _ON),
    )
    recording = parser.add_argument_group("recording")
    add_options(recording, _OUTPUT, output={"default": "perf.data"})
    for level in ("", *range(MAX_COMPRESSION_LEVEL + 1)):  # attached, as in perf: a word after -z is the command
        recording.add_argument(
            f"-z{level}",
            dest="compression_level",
            action="store_const",
            const=1 if level == "" else level,
            help="compress with zstd at level 1 (default for files); -zN: at level N, 0 (none) to 22"
            if level == ""
            else argparse.SUPPRESS,
        )
    details = dict.fromkeys(("compression_level", "switch_max_files", "realtime", "until_exit"), _NUMBER)
    details |= {"ready_fd": {"type": int}, "switch_output": {"nargs": "?", "const": "signal"}}
    add_options(recording, _RECORDING, **details)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=argparse.SUPPRESS)
