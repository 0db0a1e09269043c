# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu convert: write a recording in the format of another program, or recordings into a dataset (--parquet)."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from perf_offcpu.commands.shared import profile as shared
from perf_offcpu.commands.shared.causality import cascade_from_args, critical_path_from_args
from perf_offcpu.commands.shared.files import STDOUT, check_distinct, open_output
from perf_offcpu.commands.shared.parsers import LIST, add_options, add_verb
from perf_offcpu.commands.shared.streams import busy, write_lines
from perf_offcpu.convert.registry import FORMATS, MIN_SHARE, Format, Options
from perf_offcpu.errors import PerfOffcpuError, UsageError
from perf_offcpu.text import printable
from perf_offcpu.units import UNITS

if TYPE_CHECKING:
    from perf_offcpu.model.profile import Profile

_SHOWING = {
    "pid": "all, with the pid after each comm",
    "tid": "all, with pid and tid after each comm",
    "state": "all, with the task state below each stack",
}
"""Options that select samples with a value, and show a detail without one."""

_FORMAT_OPTIONS = "unit kernel addrs form waker_stack wakers objects per_thread svg min_share title".split()
"""Options of the command line that `convert.registry.Options` has under the same name."""

_MOST_JOBS = 1024
_MEANINGLESS = """
output unit kernel addrs title all_events diff wakers cascade objects per_thread waker_stack
critical_path svg min_share no_prefix apart from_start event comm pid tid cpu cgroup container state wait_class object
lock time min_dur idle by
""".split()
"""Options without effect on --parquet: selection and format are a matter of queries on the dataset."""
_Outcome = tuple[str, str, list[str] | None]
"""Sentence on the result, messages for stderr, paths of cut recordings (None: nothing was written)."""
_DEFAULTS: tuple[object, ...] = (None, False, "", [], "show", "thread", MIN_SHARE)
_PARQUET = "tables of a dataset, for queries over many recordings (a directory, s3://, gs://, abfs://)"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of this verb, with its options, to `subparsers`."""
    parser = add_verb(subparsers, "convert")
    group = parser.add_argument_group("formats", "exactly one")
    formats = group.add_mutually_exclusive_group(required=True)
    for format_ in FORMATS.values():
        formats.add_argument(f"--{format_.name}", dest="format", action=_Choose, **_form_of(format_))
    formats.add_argument("--parquet", metavar="DIR", help=_PARQUET)
    parser.set_defaults(form="")
    unit, share = {"choices": UNITS, "default": ""}, {"type": float, "default": MIN_SHARE}
    fold = {"action": argparse.BooleanOptionalAction, "default": True}
    details: dict[str, Any] = {"unit": unit, "min_share": share, "jobs": {"type": int}, "label": LIST}
    output = parser.add_argument_group("output")
    add_options(
        output, "convert.output", {"min_share": MIN_SHARE}, fold_interpreters=fold, title={"default": ""}, **details
    )
    shared.add_profile_arguments(parser, showing=_SHOWING)


class _Choose(argparse.Action):
    """Argparse action that stores the name of the format and its form."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: Any = None) -> None:
        namespace.format = str(option).removeprefix("--")
        namespace.form = values or ""


def _form_of(format_: Format) -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` for the option of a format."""
    if not format_.forms:
        return {"nargs": 0, "help": format_.doc}
    default = format_.forms[0]
    text = f"{format_.doc}; FORM is one of {', '.join(format_.forms)} (default: {default})"
    return {"nargs": "?", "const": default, "choices": format_.forms, "metavar": "FORM", "help": text}


def run(args: argparse.Namespace) -> int:
    """Run the verb with the parsed arguments and return the exit status."""
    if args.parquet is not None:
        return _write_dataset(args)
    if args.jobs is not None or args.label:
        raise UsageError(f"--{'label' if args.label else 'jobs'} is for --parquet alone")
    if args.critical_path:
        return _critical_path(args)
    if args.cascade:
        return _cascade(args)
    if args.wakers and args.format != "callgraph":
        return _chains(args)
    return convert(args, lambda options: prepared(args, shared.profile_from_args(args), options))


def _cascade(args: argparse.Namespace) -> int:
    if args.diff is not None or args.all_events or args.critical_path or args.event:
        raise UsageError("--cascade is about waits: no --diff, --all-events, --critical-path, --event")
    if args.format != "callgraph":
        raise UsageError(f"--cascade means nothing to --{args.format}")

    def load(options: Options) -> tuple[Profile, Options]:
        profile, _, cascade, _ = cascade_from_args(args)
        return prepared(args, profile, replace(options, cascade=cascade))

    return convert(args, load)


def _chains(args: argparse.Namespace) -> int:
    """Write the selected waits with their chains of wakers (--wakers), and return the exit status."""
    import numpy as np

    from perf_offcpu.analysis.selection.select import event_rows, selected_rows
    from perf_offcpu.callpaths.chains import waker_chains

    if args.diff is not None or args.all_events:
        raise UsageError("--wakers is about the waits of one recording: no --diff, --all-events")

    def load(options: Options) -> tuple[Profile, Options]:
        recorded = shared.every_wait_from_args(args, "--wakers", "show one waker with --waker-stack,")
        waits = recorded.is_offcpu() & np.isin(
            recorded.samples.evsel, event_rows(recorded, shared.split_list(args.event))
        )
        selected = selected_rows(recorded, shared.selection_from_args(args))[waits]
        profile, options = prepared(args, recorded.select(waits), options)
        chains = waker_chains(profile, options)
        if len(profile.samples) and not any(name.any() for name, _ in chains.hops):
            raise UsageError("--wakers: none was recorded (perf-offcpu record does unless --no-wakers is given)")
        return profile.select(selected), replace(options, chains=chains.take(selected))

    return convert(args, load)


def _critical_path(args: argparse.Namespace) -> int:
    """Write a critical path: a track next to all threads if the format has times, else stacks; return the status."""
    if args.diff is not None or args.all_events or args.waker_stack or args.wakers:
        raise UsageError("--critical-path shows one thread: no --diff, --all-events, --waker-stack, --wakers")

    def load(options: Options) -> tuple[Profile, Options]:
        from perf_offcpu.causality.path_rows import path_lane
        from perf_offcpu.causality.path_stacks import path_profile

        profile, timeline, path = critical_path_from_args(args)
        if "path" in FORMATS[args.format].options:
            return prepared(args, profile, replace(options, path=path_lane(profile, path)))
        return prepared(args, path_profile(profile, timeline, path), options)

    return convert(args, load)


def prepared(args: argparse.Namespace, profile: Profile, options: Options) -> tuple[Profile, Options]:
    """Return the samples of the chosen events, and the options, with the head of a page if the format is one."""
    if "sentences" in FORMATS[args.format].options:
        options = shared.with_head(options, args, profile)
    return _chosen(args, profile), options


def convert(args: argparse.Namespace, load: Callable[[Options], tuple[Profile, Options]]) -> int:
    """Write the profile that `load` returns, by its options, in the chosen format; return the exit status."""
    format_, options = FORMATS[args.format], _options(args)
    format_.accept(options)
    if args.diff is not None and "diff" not in format_.options:
        raise UsageError(f"--diff: --{format_.name} does not compare recordings")
    paths = shared.inputs(args)
    first = "stdin" if paths[0] == STDOUT else paths[0].rstrip("/")
    output = args.output or first + format_.suffix_for(options)
    check_distinct(paths, output)
    with busy("reading"):
        profile, options = load(options)
    if not len(profile.samples):
        print("perf-offcpu convert: no sample was selected; the output is empty", file=sys.stderr)
    if options.waker_stack and len(profile.samples) and not (profile.samples.waker_stack >= 0).any():
        raise UsageError("--waker-stack: there are none (perf-offcpu record --waker-stacks records them)")
    if args.diff is not None:
        with busy("reading"):
            options = replace(options, diff=_chosen(args, shared.profile_from_args(shared.with_input(args, args.diff))))
    shown = paths + ([args.diff] if args.diff else [])
    with open_output(output, binary=format_.binary, inputs=shown) as out, busy(f"writing {format_.name}"):
        format_.write(profile, out, options)
    if args.output is None:
        print(f"perf-offcpu convert: wrote {output}", file=sys.stderr)
    _warn(format_, output)
    return 0


def _warn(format_: Format, output: str) -> None:
    """Warn if the output file is larger than viewers of the format open."""
    # direct: asks for the size that is shown
    size, most = os.path.getsize(output) if os.path.isfile(output) else 0, format_.most_bytes
    if size > most > 0:
        advice = "" if format_.name == "perfetto" else ", or use --perfetto"
        print(
            f"perf-offcpu convert: {output} has {size >> 20} MB, more than the {most >> 20} MB that viewers "
            f"open: select a part with --time, or long waits with --min-dur{advice}",
            file=sys.stderr,
        )


def _chosen(args: argparse.Namespace, profile: Profile) -> Profile:
    """Return the samples of the events that --event and --all-events choose."""
    from perf_offcpu.analysis.selection.select import select_events
    from perf_offcpu.analysis.times.wall_clock import wall_clock

    events = shared.split_list(args.event)
    if args.all_events:
        return shared.folded(args, wall_clock(profile, events, whole_lives=shared.whole_lives(args)))
    return shared.folded(args, select_events(profile, events))


def _options(args: argparse.Namespace) -> Options:
    """Return the options of the format; raise UsageError for options that exclude each other. SHOW in `args.pid`, `tid`
    and `state` sets the option of that name, and is removed there."""
    flags: dict[str, Any] = {}
    for name in ("pid", "tid", "state"):
        values = getattr(args, name)
        flags[name] = shared.SHOW in values
        setattr(args, name, [text for text in values if text != shared.SHOW])
    if args.objects and (args.wakers or args.cascade or args.critical_path or args.all_events):
        raise UsageError("--objects is a graph of its own: no --wakers, --cascade, --critical-path, --all-events")
    if args.objects and args.diff is not None:
        raise UsageError("--objects shows one recording: no --diff (report --diff compares objects)")
    if args.svg and args.form not in {"", "dot"}:
        raise UsageError(f"--svg draws what --callgraph dot writes, not {args.form}")
    if not 0 <= args.min_share <= 100:
        raise UsageError(f"--min-share: {args.min_share:g} is no percentage")
    return Options(**flags, **{name: getattr(args, name) for name in _FORMAT_OPTIONS})


def _write_dataset(args: argparse.Namespace) -> int:
    """Write each recording as a segment of the dataset (--parquet); report failures, and return the exit status."""
    if meaningless := [name for name in _MEANINGLESS if getattr(args, name) not in _DEFAULTS]:
        option = {"wait_class": "class"}.get(meaningless[0], meaningless[0]).replace("_", "-")
        raise UsageError(f"--{option} means nothing to --parquet, which writes whole recordings")
    paths, _ = shared.inputs(args), _labels(args)
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
    """Yield the result of `work` for each path, in order; several `jobs` run in processes."""
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
    """Write one recording as a segment; return the texts on it, which the caller prints in order of recordings."""
    args, messages = argparse.Namespace(**{**vars(args), "cut": []}), io.StringIO()
    try:
        with redirect_stderr(messages):
            text = _write_segment(args, path)
        return text, messages.getvalue(), args.cut
    except (PerfOffcpuError, OSError) as problem:  # as text: not every exception passes between processes
        text = str(problem)
        if isinstance(problem, OSError) and problem.strerror:
            text = f"{os.fsdecode(problem.filename or args.parquet)}: {problem.strerror}"
        return text, messages.getvalue(), None


def _write_segment(args: argparse.Namespace, path: str) -> str:
    """Write one recording as a segment; return the sentence on the result."""
    from perf_offcpu.dataset.dataset import open_dataset
    from perf_offcpu.dataset.rows import host_of
    from perf_offcpu.dataset.segment import write_segment

    profile = shared.folded(args, shared.whole_profile_from_args(shared.with_input(args, path), tasks=True))
    host = host_of(profile, _labels(args))
    segment = write_segment(open_dataset(args.parquet), profile, host)
    text = f"{segment.rows:,} samples of {host.host_id}, {segment.bytes:,} bytes in {segment.files} files"
    return text + (f" ({segment.skipped} are part of compacted files already)" if segment.skipped else "")
