# SPDX-License-Identifier: Apache-2.0
"""Write recordings into a dataset: `convert --parquet DIR`, several recordings at once."""

import argparse
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from functools import partial

from perf_offcpu.commands.shared.profile import folded, inputs, whole_profile_from_args, with_input
from perf_offcpu.commands.shared.streams import write_lines
from perf_offcpu.convert.registry import MIN_SHARE
from perf_offcpu.errors import PerfOffcpuError, UsageError
from perf_offcpu.text import printable

_MOST_JOBS = 1024
_MEANINGLESS = """
output unit kernel addrs title all_events diff wakers cascade objects per_thread waker_stack
critical_path svg min_share no_prefix apart from_start event comm pid tid cpu cgroup container state wait_class object
lock time min_dur idle by
""".split()
"""Options that select or format samples, which queries on the dataset do instead."""
_Outcome = tuple[str, str, list[str] | None]
_DEFAULTS: tuple[object, ...] = (None, False, "", [], "show", "thread", MIN_SHARE)


def write_dataset(args: argparse.Namespace) -> int:
    """Write each recording as one segment and return the exit status. One that fails is reported."""
    if meaningless := [name for name in _MEANINGLESS if getattr(args, name) not in _DEFAULTS]:
        option = {"wait_class": "class"}.get(meaningless[0], meaningless[0]).replace("_", "-")
        raise UsageError(f"--{option} means nothing to --parquet, which writes whole recordings")
    paths, _ = inputs(args), _labels(args)
    jobs = min(_jobs(args), len(paths))
    from perf_offcpu.dataset.dataset import open_dataset

    open_dataset(args.parquet, make=True)  # before the recordings are read: it may be impossible
    status = 0
    for path, (text, messages, cut) in zip(paths, _results(partial(_outcome, args), paths, jobs), strict=True):
        sys.stderr.write(messages)
        if cut is not None:
            args.cut += cut
            write_lines([f"{printable(path)}: {text}"], sys.stdout)
            sys.stdout.flush()
        else:
            print(f"perf-offcpu convert: {printable(text)}", file=sys.stderr, flush=True)
            status = 1
    return status


def _jobs(args: argparse.Namespace) -> int:
    if args.jobs is None:
        return len(os.sched_getaffinity(0))
    if not 0 < args.jobs <= _MOST_JOBS:
        raise UsageError(f"--jobs: {args.jobs} is not between 1 and {_MOST_JOBS}")
    return int(args.jobs)


def _labels(args: argparse.Namespace) -> dict[str, str]:
    from perf_offcpu.agent.config import parse_label

    return dict(map(parse_label, args.label))


def _results(work: Callable[[str], _Outcome], paths: list[str], jobs: int) -> Iterator[_Outcome]:
    """Yield the result of `work` for each path, in the order of `paths`; several jobs run as processes."""
    if jobs == 1:
        yield from map(work, paths)
        return
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # Not by fork: threads of libraries do not survive it.
    with ProcessPoolExecutor(jobs, get_context("forkserver")) as pool:
        try:
            yield from pool.map(work, paths)
        except BrokenProcessPool:
            raise PerfOffcpuError(
                "a process that read a recording was killed, perhaps for want of memory: use fewer --jobs"
            ) from None


def _outcome(args: argparse.Namespace, path: str) -> _Outcome:
    """Write one recording; return a sentence on the result, messages for stderr, and the paths of cut recordings. The
    paths are None if nothing was written. The caller prints the texts, in the order of the recordings."""
    args, messages = argparse.Namespace(**{**vars(args), "cut": []}), io.StringIO()
    try:
        with redirect_stderr(messages):
            text = _write(args, path)
        return text, messages.getvalue(), args.cut
    except (PerfOffcpuError, OSError) as problem:  # as text: not every exception passes between processes
        text = str(problem)
        if isinstance(problem, OSError) and problem.strerror:
            text = f"{os.fsdecode(problem.filename or args.parquet)}: {problem.strerror}"
        return text, messages.getvalue(), None


def _write(args: argparse.Namespace, path: str) -> str:
    from perf_offcpu.dataset.dataset import open_dataset
    from perf_offcpu.dataset.rows import host_of
    from perf_offcpu.dataset.segment import write_segment

    profile = folded(args, whole_profile_from_args(with_input(args, path), tasks=True))
    host = host_of(profile, _labels(args))
    segment = write_segment(open_dataset(args.parquet), profile, host)
    text = f"{segment.rows:,} samples of {host.host_id}, {segment.bytes:,} bytes in {segment.files} files"
    return text + (f" ({segment.skipped} are part of compacted files already)" if segment.skipped else "")
