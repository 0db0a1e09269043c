# SPDX-License-Identifier: Apache-2.0
"""`scripts/offcpu.py`, inside `perf script -s` and out of it.

Inside, perf's dicts become a Recording, and from there everything is as in `perf-offcpu convert`.

perf (up to 7.3) calls `process_event(dict)` for each sample, in time order. Its handlers never see
mappings, comms or losses, so those come from perf's own input file, found on perf's command line, through
this project's reader. Only if perf reads a pipe there is none: then kernel names are perf's, user
addresses of raw callchains stay addresses, and a note says so.

This is the one place that knows the keys of perf's dicts (checked with perf 6.1 and 7.2). `sample["values"]`
is never touched: reading it crashes perf.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from perf_offcpu.abi.attr import SampleType, unpack_attr
from perf_offcpu.abi.records import CpuMode, RecordType
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.binary.columnar import Columns
from perf_offcpu.binary.gather import Rows, offsets_of
from perf_offcpu.decode.account import CollectorAccount, is_counters
from perf_offcpu.decode.batch import Batch, BatchCollector
from perf_offcpu.decode.deferred import pending_chains
from perf_offcpu.decode.load import assemble, load_recording, read_tasks
from perf_offcpu.decode.retype import retype
from perf_offcpu.decode.samples import is_offcpu, ranks
from perf_offcpu.decode.stacks.borrow import with_snapshots_of
from perf_offcpu.decode.tasks.replay import TaskReplay
from perf_offcpu.decode.trim_stacks import cut_garbage
from perf_offcpu.errors import FormatError
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag, Samples
from perf_offcpu.model.strings import Strings
from perf_offcpu.objects.search import Search
from perf_offcpu.perfdata.events import Events, EventSpec
from perf_offcpu.perfdata.features import Features
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.side_records import SideRecord
from perf_offcpu.structs import mutable
from perf_offcpu.symbolize.symbolizer import SymbolizeOptions, symbolize
from perf_offcpu.unwind.unwinder import unwind

_KERNEL_HALF = 1 << 63
"""Addresses from here on are the kernel's (x86-64, arm64): perf's lists have lost the markers."""

PIPE_NOTE = "perf reads a pipe: user addresses of off-cpu samples cannot be named; give perf a file with -i"


class Door:
    """The handlers that perf calls, for `convert` with the arguments behind the script's name.

    Nothing may escape a handler: perf answers an exception with abort(). The first error is kept, the
    rest of the samples is passed over, and `trace_end` says it and ends perf with a status.

    Args:
        argv: as for `perf-offcpu convert`, with `--folded` and standard output as defaults, and the output
            also as a plain word: `-- --folded OUT`.

    Raises:
        SystemExit: the arguments are wrong, or asked for help.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._samples = PerfScriptSamples()
        self._problem: Exception | None = None
        self._args: argparse.Namespace | None = None
        status = guarded(lambda: self._parse(argv))
        if self._args is None:  # wrong, or help: nothing is to be converted
            sys.exit(status)

    def _parse(self, argv: Sequence[str]) -> int:
        self._args = parse_arguments(argv)
        return 0

    def process_event(self, event: dict[str, Any]) -> None:
        """Take one sample."""
        try:
            if self._problem is None:
                self._samples.process_event(event)
        except Exception as problem:
            self._problem = problem

    def trace_end(self) -> None:
        """Write everything.

        Raises:
            SystemExit: with a status that is not 0, after one line on stderr.
        """
        from perf_offcpu.commands.convert import convert

        args = self._args
        assert args is not None
        status = guarded(lambda: convert(args, lambda: self._profile(args)))
        if status:
            sys.exit(status)

    def _profile(self, args: argparse.Namespace) -> Profile:
        from perf_offcpu.analysis.select import select_samples
        from perf_offcpu.commands.shared.profile import selection_from_args, symbol_options

        if self._problem is not None:
            raise FormatError("perf script", "sample", f"not understood: {self._problem!r}")
        path = input_of(perf_command_line())
        if path is None:
            print(f"offcpu.py: {PIPE_NOTE}", file=sys.stderr)
        profile = self._samples.profile(path, symbol_options(args))
        return select_samples(profile, selection_from_args(args))


def main(argv: Sequence[str]) -> int:
    """The script executed by hand, or by a perf that runs scripts as programs (7.4 on)."""
    from perf_offcpu.commands.convert import run

    return guarded(lambda: run(parse_arguments(argv)))


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line of the script; `--folded` and `-o -` unless it says otherwise.

    Raises:
        UsageError: it is wrong.
        SystemExit: it asks for help.
    """
    from perf_offcpu.commands import convert
    from perf_offcpu.commands.shared.parsers import Parser
    from perf_offcpu.convert.registry import FORMATS

    words = [word for place, word in enumerate(argv) if not (place == 0 and word == "--")]
    if not any(word == f"--{name}" for word in words for name in FORMATS):
        words.insert(0, "--folded")
    parser: argparse.ArgumentParser = Parser(prog="offcpu.py")
    verb = parser.add_subparsers()
    convert.add_parser(verb)
    options = verb.choices["convert"]
    options.prog = "offcpu.py"
    options.add_argument("out", nargs="?", metavar="OUT", help="the same as -o OUT; default: -")
    args = options.parse_args(words)
    args.output = args.output or args.out or "-"
    return args


def guarded(run: Callable[[], int]) -> int:
    """The exit status of `run`; errors of ours are one line on stderr."""
    from perf_offcpu.cli import guard

    return guard("offcpu.py", run)


def input_of(argv: Sequence[str]) -> str | None:
    """The file that a `perf script` command line reads; None for a pipe."""
    name = "perf.data"
    words = list(argv)
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--":
            break
        if word in ("-i", "--input"):
            name = following
        elif word.startswith("--input="):
            name = word.removeprefix("--input=")
        elif word.startswith("-i") and not word.startswith("--"):
            name = word[2:]
    return None if name == "-" else name


def perf_command_line() -> list[str]:
    """The arguments of the process that this script runs in."""
    with open("/proc/self/cmdline", "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]


@mutable
class _Head:
    """Stands for a file's head where perf reads a pipe."""

    events: Events
    features: Features
    counters: Losses
    path: str = "standard input"


@mutable
class PerfScriptSamples:
    """Collects what perf hands over; `profile()` makes a Profile of it.

    One Python call a sample is perf's interface; all that happens here is to append.
    """

    events: list[dict[str, Any]] = field(default_factory=list)

    def process_event(self, event: dict[str, Any]) -> None:
        """Take one of perf's dicts."""
        sample = event["sample"]
        self.events.append(
            {
                "name": event["ev_name"],
                "attr": event["attr"],
                "comm": event["comm"],
                "raw": event["raw_buf"],
                "chain": event["callchain"],
                **{key: sample[key] for key in ("pid", "tid", "cpu", "ip", "time", "period", "cpumode")},
            }
        )

    def profile(self, path: str | None, options: SymbolizeOptions) -> Profile:
        """The Profile of all samples so far.

        Args:
            path: perf's input file; None if perf read a pipe.
            options: as for `symbolize`.

        Raises:
            FormatError: the file cannot be read (perf had opened it before).
        """
        if path is None:
            return self._from_pipe(options)
        with PerfDataReader.open(path) as reader:
            tasks, account = read_tasks(reader)
            recording = assemble(reader, self._batch(reader.events, reader.counters), tasks, account)
            has_copies = any(spec.attr.sample_type & SampleType.STACK_USER for spec in reader.events.specs)
        if has_copies:
            recording = with_snapshots_of(recording, load_recording(path, snapshots=True))
        recording = cut_garbage(recording)
        if has_copies:
            recording = unwind(recording, Search.usual(options.symfs, options.buildid_dir), options.cache)
        return symbolize(recording, options)

    def _from_pipe(self, options: SymbolizeOptions) -> Profile:
        counters = Losses()
        specs = {event["name"]: EventSpec(unpack_attr(event["attr"]), event["name"]) for event in self.events}
        events = Events(list(specs.values()), "<")
        head = _Head(events, Features({}, "<", counters), counters)
        tasks = TaskReplay(Strings())
        for record in self._comms():
            tasks.note(record)
        recording = assemble(head, self._batch(events, counters), tasks, CollectorAccount())
        return _named_by_perf(symbolize(recording, options), self.events)

    def _comms(self) -> list[SideRecord]:
        """perf's comms as COMM records: the last one of each thread."""
        last = {event["tid"]: event for event in self.events if not event["comm"].startswith(":")}
        return [
            SideRecord(
                RecordType.COMM,
                0,
                {"pid": event["pid"] % 2**32, "tid": tid % 2**32, "comm": event["comm"].encode()},
                0,
                -1,
                -1,
                -1,
                0,
            )
            for tid, event in last.items()
        ]

    def _batch(self, events: Events, counters: Losses) -> Batch:
        """All samples, as the decoder of files would give them."""
        number = {spec.name: row for row, spec in enumerate(events.specs)}
        raw_offcpu = {spec.name for spec in events.specs if is_offcpu(spec)}
        account = {spec.name for spec in events.specs if is_counters(spec)}  # no event of the machine
        is_raw = np.array([e["name"] in raw_offcpu and bool(e["raw"]) for e in self.events], np.bool_)
        is_account = np.array([e["name"] in account for e in self.events], np.bool_)
        rows = [np.flatnonzero(is_raw), np.flatnonzero(~is_raw & ~is_account)]
        waits, sound = _retyped([self.events[row] for row in rows[0]], number, counters)
        rows[0] = rows[0][sound]
        collector = BatchCollector()
        others = _ordinary([self.events[row] for row in rows[1]], number, raw_offcpu)
        collector.add_interleaved([waits, others], ranks(rows))
        return collector.release()


def _samples(events: list[dict[str, Any]], number: dict[str, int]) -> Samples:
    def column(key: str) -> list[int]:
        return [event[key] for event in events]

    times = np.array(column("time"), np.uint64)
    untimed = times >= np.uint64(2**63)
    return Samples.filled(
        len(events),
        evsel=[number.get(event["name"], -1) for event in events],
        time_ns=np.where(untimed, -1, times.astype(np.int64)),
        period=[min(period, 2**62) for period in column("period")],
        pid=np.array([pid % 2**32 for pid in column("pid")], np.uint32).view(np.int32),
        tid=np.array([tid % 2**32 for tid in column("tid")], np.uint32).view(np.int32),
        cpu=np.array([cpu % 2**32 for cpu in column("cpu")], np.uint32).view(np.int32),
        ip=np.array(column("ip"), np.uint64),
        cpumode=column("cpumode"),
        flags=np.where(untimed, np.uint32(SampleFlag.UNTIMED), np.uint32(0)),
    )


def _retyped(events: list[dict[str, Any]], number: dict[str, int], counters: Losses) -> tuple[Batch, Bool]:
    """Decode raw off-cpu samples, which perf from 6.16 on has re-typed, from their raw_buf.

    Returns:
        (batch, bool[n]): the samples that could be decoded, and which they are.
    """
    pieces = [event["raw"] + bytes(-len(event["raw"]) % 8) for event in events]
    starts = offsets_of(np.array([len(piece) for piece in pieces], np.int64))[:-1]
    counts = np.array([len(event["raw"]) for event in events], np.int64)
    columns = Columns(np.ones(len(events), np.bool_), {}, {"raw": Rows(starts, counts, 1)})
    data = np.frombuffer(b"".join(pieces) or bytes(8), np.uint8)
    batch, sound = retype(data, columns, _samples(events, number), "<", counters)
    waiting = pending_chains(batch.callchains).is_pending
    if waiting.any():  # the payload says that the user part came later: perf has put it into its chain
        chains = [batch.callchains.row(row).tolist() for row in range(len(batch.callchains))]
        for row in np.flatnonzero(waiting[: len(events)]).tolist():
            chains[row] = _with_markers([node["ip"] for node in events[row]["chain"]])
        batch.callchains = Ragged.from_lists(chains)
    return Batch(batch.samples.take(sound), batch.callchains, batch.from_upstream[sound]), sound


def _ordinary(events: list[dict[str, Any]], number: dict[str, int], offcpu: set[str]) -> Batch:
    samples = _samples(events, number)
    is_off = np.array([event["name"] in offcpu for event in events], np.bool_)
    samples.flags |= np.where(is_off, np.uint32(SampleFlag.OFFCPU), np.uint32(0))
    untimed = samples.has(SampleFlag.UNTIMED)
    samples.flags |= np.where(is_off & untimed, np.uint32(SampleFlag.AGGREGATED), np.uint32(0))
    samples.callchain = np.arange(len(events), dtype=np.int32)
    chains = Ragged.from_lists([_with_markers([node["ip"] for node in e["chain"]]) for e in events])
    return Batch(samples, chains, np.zeros(len(events), np.bool_))


def _with_markers(ips: list[int]) -> list[int]:
    """A callchain as on the wire, from perf's list without markers."""
    kernel = [ip for ip in ips if ip >= _KERNEL_HALF]
    user = [ip for ip in ips if ip < _KERNEL_HALF]
    words = [int(CallchainContext.KERNEL), *kernel] if kernel else []
    return words + ([int(CallchainContext.USER), *user] if user else [])


def _named_by_perf(profile: Profile, events: list[dict[str, Any]]) -> Profile:
    """Names that perf found, where we have no mappings; other user frames become their address."""
    known = {node["ip"]: node["sym"]["name"] for event in events for node in event["chain"] if "sym" in node}
    frames, strings = profile.frames, profile.strings
    for row in np.flatnonzero(frames.symbol == 0).tolist():
        address = int(frames.address[row])
        name = known.get(address) or (f"{address:#x}" if frames.cpumode[row] == CpuMode.USER else "")
        frames.symbol[row] = strings.intern(name)
    return profile
