# SPDX-License-Identifier: Apache-2.0
"""Handle the samples of `perf script -s scripts/offcpu.py`, and run the script by hand.

Inside perf (up to 7.3) the dicts of perf become a Recording, which the script writes as `perf-offcpu convert` does.
perf calls `process_event(dict)` for each sample, in time order, and passes no mappings, comms or losses: these
are read from perf's input file, which its command line names, and so are registers and stack bytes; the file
may hold more samples (`perf script --comm`, `--time`). For a pipe there is no file: then kernel names are those
of perf, and user addresses of raw callchains stay addresses, with a note. Checked with perf 6.1 and 7.2.

`sample["values"]` is never read: that crashes perf."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from perf_offcpu.abi.attr import SampleType, unpack_attr
from perf_offcpu.abi.records import CpuMode, RecordType
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.binary.columnar import Columns, Rows, offsets_of
from perf_offcpu.decode.account import CollectorAccount, is_counters
from perf_offcpu.decode.batch import Batch, BatchCollector
from perf_offcpu.decode.deferred import pending_chains
from perf_offcpu.decode.load import Head, assemble, load_recording, read_tasks
from perf_offcpu.decode.retype import retype
from perf_offcpu.decode.samples import is_offcpu, is_python
from perf_offcpu.decode.tasks.columns import SideRecord, task_record
from perf_offcpu.decode.tasks.replay import TaskReplay
from perf_offcpu.decode.trim_stacks import cut_wrong_callers
from perf_offcpu.errors import FormatError
from perf_offcpu.losses import Losses
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I32, I64, Bool, Strings, group
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Recording, SampleFlag, Samples
from perf_offcpu.perfdata.events import Events, EventSpec
from perf_offcpu.perfdata.features import Features
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize
from perf_offcpu.unwind.unwinder import unwind

Event = dict[str, Any]

_KERNEL_HALF = 1 << 63  # first address of the kernel (x86-64, arm64): perf's lists lack the context markers
_USUAL = "perf.data"
_TAKEN = ("pid", "tid", "cpu", "ip", "time", "period", "cpumode")
PIPE_NOTE = "perf reads a pipe: user addresses of off-cpu samples cannot be named; give perf a file with -i"


class PerfScriptHandler:
    """Handlers that perf calls. `argv`: the arguments of the script, those of `convert`; `--folded` and standard output
    are the defaults, and the output may be a plain word: `-- --folded OUT`. The constructor raises SystemExit if they
    are wrong or ask for help. No exception may leave a handler: perf would call abort(). The first one is kept and the
    later samples are ignored; `trace_end` prints it and ends perf with a status."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._events: list[Event] = []
        self._problem: Exception | None = None
        self._args = argparse.Namespace()
        status = _guarded(lambda: self._parse(argv))
        if not vars(self._args):
            sys.exit(status)

    def _parse(self, argv: Sequence[str]) -> int:
        self._args = _parse_arguments(argv)
        return 0

    def process_event(self, event: Event) -> None:
        """Keep the needed fields of a sample; perf calls this for each sample, so it does as little as possible."""
        try:
            if self._problem is None:
                sample = event["sample"]
                fields = {key: sample[key] for key in _TAKEN}
                fields |= {"name": event["ev_name"], "attr": event["attr"], "comm": event["comm"]}
                fields |= {"raw": event["raw_buf"], "chain": event["callchain"]}
                self._events.append(fields)
        except Exception as problem:
            self._problem = problem

    def trace_end(self) -> None:
        """Write the output; after a failure, print one line on stderr and raise SystemExit with its status."""
        from perf_offcpu.commands.convert import convert, prepared

        if (path := _input_of(_perf_command_line())) not in (None, _USUAL):
            self._args.input = [path]  # for commands that the page shows
        args = self._args
        if status := _guarded(lambda: convert(args, lambda options: prepared(args, self._profile(), options))):
            sys.exit(status)

    def _profile(self) -> Profile:
        """Return the selected samples of those that perf passed; raise FormatError if one was not understood."""
        from perf_offcpu.analysis.selection.select import select_samples
        from perf_offcpu.commands.shared.profile import selection_from_args, symbol_options

        if self._problem is not None:
            raise FormatError("perf script", "sample", f"not understood: {self._problem!r}")
        path, options = _input_of(_perf_command_line()), symbol_options(self._args)
        if path is None:
            print(f"offcpu.py: {PIPE_NOTE}", file=sys.stderr)
            profile = name_by_perf(symbolize(recorded_in_pipe(self._events), options), self._events)
        else:
            profile = profile_of_file(path, self._events, options)
        return select_samples(profile, selection_from_args(self._args))


def main(argv: Sequence[str]) -> int:
    """Run scripts/offcpu.py by hand, or by a perf that runs scripts as programs (7.4 on); return the exit status."""
    from perf_offcpu.commands.convert import run

    return _guarded(lambda: run(_parse_arguments(argv)))


def _parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the script's command line; raise UsageError if it is wrong, SystemExit if it asks for help."""
    from perf_offcpu.commands import convert
    from perf_offcpu.commands.shared.parsers import Parser
    from perf_offcpu.convert.registry import FORMATS

    words = list(argv[1:] if argv[:1] == ["--"] else argv)
    if not any(word == f"--{name}" for word in words for name in FORMATS):
        words.insert(0, "--folded")
    top: argparse.ArgumentParser = Parser(prog="offcpu.py")
    verb = top.add_subparsers()
    convert.add_parser(verb)
    parser = verb.choices["convert"]
    parser.prog = "offcpu.py"
    parser.add_argument("out", nargs="?", metavar="OUT", help="same as -o OUT; default: -")
    args = parser.parse_args(words)
    args.output = args.output or args.out or "-"
    return args


def _guarded(run: Callable[[], int]) -> int:
    from perf_offcpu.cli import guard

    return guard("offcpu.py", run)


def _input_of(argv: Sequence[str]) -> str | None:
    """Return the path of the file that a `perf script` command line reads; None for a pipe."""
    name = _USUAL
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        if word == "--":
            break
        if word in ("-i", "--input"):
            name = following
        elif word.startswith("--input="):
            name = word.removeprefix("--input=")
        elif word.startswith("-i") and not word.startswith("--"):
            name = word[2:]
    return None if name == "-" else name


def _perf_command_line() -> list[str]:
    """Return the command line of this process, which inside perf is perf's."""
    with open("/proc/self/cmdline", "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]


def profile_of_file(path: str, samples: list[Event], options: SymbolizeOptions) -> Profile:
    """Return the profile of samples that perf passed, with tasks, mappings and losses of its input file `path`."""
    with PerfDataReader.open(path) as reader:
        tasks, account = read_tasks(reader)
        recording = assemble(reader, _batch(samples, reader.events, reader.counters), tasks, account)
        has_copies = any(spec.attr.sample_type & SampleType.STACK_USER for spec in reader.events.specs)
    if has_copies:
        recording = with_snapshots_of(recording, load_recording(path, snapshots=True))
    recording = cut_wrong_callers(recording)
    if has_copies:
        recording = unwind(recording, options.search())
    return symbolize(recording, options)


def recorded_in_pipe(samples: list[Event]) -> Recording:
    """Return a recording of samples that perf passed, without its input file; each thread has the last comm in them."""
    counters, tasks = Losses(), TaskReplay(Strings())
    specs = {event["name"]: EventSpec(unpack_attr(event["attr"]), event["name"]) for event in samples}
    events = Events(list(specs.values()), "<")
    last = {event["tid"]: event for event in samples if not event["comm"].startswith(":")}
    for tid, event in last.items():
        fields = {"pid": event["pid"] % 2**32, "tid": tid % 2**32, "comm": event["comm"].encode()}
        tasks.notes.take([task_record(SideRecord(RecordType.COMM, 0, fields))])
    head = Head(events, Features({}, "<", counters), counters, "standard input")
    return assemble(head, _batch(samples, events, counters), tasks, CollectorAccount())


def _batch(samples: list[Event], events: Events, counters: Losses) -> Batch:
    """Convert samples that perf passed to a Batch, as the decoder of files makes it, in their order."""
    number = {spec.name: row for row, spec in enumerate(events.specs)}
    raw_offcpu = {spec.name for spec in events.specs if is_offcpu(spec)}
    account = {spec.name for spec in events.specs if is_counters(spec) or is_python(spec)}  # not of perf's
    is_raw = np.array([sample["name"] in raw_offcpu and bool(sample["raw"]) for sample in samples], np.bool_)
    is_account = np.array([sample["name"] in account for sample in samples], np.bool_)
    rows = [np.flatnonzero(is_raw), np.flatnonzero(~is_raw & ~is_account)]
    waits, sound = _retyped([samples[row] for row in rows[0]], number, counters)
    rows[0] = rows[0][sound]
    collector = BatchCollector()
    others = _ordinary([samples[row] for row in rows[1]], number, raw_offcpu)
    collector.add_interleaved([waits, others], rows)
    return collector.release()


def _columns(events: list[Event], number: dict[str, int]) -> Samples:
    """Convert samples that perf passed to columns of the model; `number`: name of an event → its evsel."""

    def column(key: str) -> list[int]:
        return [event[key] for event in events]

    def ids(key: str) -> I32:
        return np.array([value % 2**32 for value in column(key)], np.uint32).view(np.int32)

    times = np.array(column("time"), np.uint64)
    untimed = times >= np.uint64(2**63)
    return Samples.filled(
        len(events),
        evsel=[number.get(event["name"], -1) for event in events],
        time_ns=np.where(untimed, -1, times.astype(np.int64)),
        period=[min(period, 2**62) for period in column("period")],
        pid=ids("pid"),
        tid=ids("tid"),
        cpu=ids("cpu"),
        ip=np.array(column("ip"), np.uint64),
        cpumode=column("cpumode"),
        flags=np.where(untimed, np.uint32(SampleFlag.UNTIMED), np.uint32(0)),
    )


def _retyped(events: list[Event], number: dict[str, int], counters: Losses) -> tuple[Batch, Bool]:
    """Decode raw off-cpu samples from their raw_buf, although perf from 6.16 on has re-typed them. `number`: name of an
    event → its evsel. Return the decoded samples, and bool[n]: True for each of `events` that could be decoded."""
    pieces = [event["raw"] + bytes(-len(event["raw"]) % 8) for event in events]
    starts = offsets_of(np.array([len(piece) for piece in pieces], np.int64))[:-1]
    counts = np.array([len(event["raw"]) for event in events], np.int64)
    columns = Columns(np.ones(len(events), np.bool_), {}, {"raw": Rows(starts, counts, 1)})
    data = np.frombuffer(b"".join(pieces) or bytes(8), np.uint8)
    batch, sound = retype(data, columns, _columns(events, number), "<", counters)
    waiting = pending_chains(batch.callchains).is_pending
    if waiting.any():  # user callchains that were deferred: perf has merged them into its own
        chains = [batch.callchains.row(row).tolist() for row in range(len(batch.callchains))]
        for row in np.flatnonzero(waiting[: len(events)]).tolist():
            chains[row] = _with_markers(events[row])
        batch.callchains = Ragged.from_lists(chains)
    return Batch(batch.samples.take(sound), batch.callchains, batch.from_upstream[sound]), sound


def _ordinary(events: list[Event], number: dict[str, int], offcpu: set[str]) -> Batch:
    """Convert samples without a payload to a Batch; `offcpu`: names of the events that count off-CPU time."""
    samples = _columns(events, number)
    is_off = np.array([event["name"] in offcpu for event in events], np.bool_)
    samples.flags |= np.where(is_off, np.uint32(SampleFlag.OFFCPU), np.uint32(0))
    untimed = samples.has(SampleFlag.UNTIMED)
    samples.flags |= np.where(is_off & untimed, np.uint32(SampleFlag.AGGREGATED), np.uint32(0))
    samples.callchain = np.arange(len(events), dtype=np.int32)
    chains = Ragged.from_lists([_with_markers(event) for event in events])
    return Batch(samples, chains, np.zeros(len(events), np.bool_))


def _with_markers(event: Event) -> list[int]:
    """Return the callchain of a sample that perf passed as words with context markers, leaf first, as in a file."""
    ips = [node["ip"] for node in event["chain"]]
    kernel, user = [ip for ip in ips if ip >= _KERNEL_HALF], [ip for ip in ips if ip < _KERNEL_HALF]
    words = [int(CallchainContext.KERNEL), *kernel] if kernel else []
    return words + ([int(CallchainContext.USER), *user] if user else [])


def name_by_perf(profile: Profile, events: list[Event]) -> Profile:
    """Name frames without a symbol in place, as perf does, else user frames by their address; return the profile."""
    name_of = {node["ip"]: node["sym"]["name"] for event in events for node in event["chain"] if "sym" in node}
    frames, strings = profile.frames, profile.strings
    for row in np.flatnonzero(frames.symbol == 0).tolist():
        address = int(frames.address[row])
        name = name_of.get(address) or (f"{address:#x}" if frames.cpumode[row] == CpuMode.USER else "")
        frames.symbol[row] = strings.intern(name)
    return profile


def with_snapshots_of(recording: Recording, whole: Recording) -> Recording:
    """Return `recording` with the snapshots (copies of user stacks) that `whole`, read from the same file, has for its
    samples; samples that `whole` lacks get none. Both have samples in order of time."""
    samples_of_all, samples = whole.samples, recording.samples
    names, size = ("time_ns", "tid", "evsel"), len(samples_of_all)
    _, key = group(*(np.concatenate([getattr(samples_of_all, name), getattr(samples, name)]) for name in names))
    first, key = group(key, np.concatenate([_ordinals(key[:size]), _ordinals(key[size:])]))
    row_of = np.full(len(first), -1, np.int64)
    row_of[key[:size]] = np.arange(size)
    snapshot = np.append(samples_of_all.snapshot, np.int32(-1))[row_of[key[size:]]]
    return recording.replaced(samples=samples.with_columns(snapshot=snapshot), snapshots=whole.snapshots)


def _ordinals(key: I64) -> I64:
    """Return int64[n]: for each row, the number of earlier rows with an equal key."""
    order = np.argsort(key, kind="stable")
    ordinal = np.empty(len(key), np.int64)
    ordinal[order] = np.arange(len(key)) - np.searchsorted(key[order], key[order])
    return ordinal
