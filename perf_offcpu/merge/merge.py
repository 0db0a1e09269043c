# SPDX-License-Identifier: Apache-2.0
"""merge: several recordings become one, in a file that perf and this project read as any other.

For one flame graph of several hosts, or one trace of several runs. What was decided:

* Recordings of one machine (host and boot) on one clock are put together as they are: a process that is in
  two of them is one process. What a recording found at its begin (processes, names, maps) holds from its
  begin on, so that a pid that was used again in between is not mistaken.
* Other machines' numbers move out of the way, and times to the wall clock (`merge_plan` says how). Where
  there are several hosts, comms and cgroups begin with the host's name, `web1:nginx`; `--no-prefix` sums up.
* Kernels of the same build share their symbols. Functions of other builds keep apart, but without names: a
  perf.data file has room for one kernel's.
* Events of the same name and layout become one event, with the ids of all; of the same name and another
  layout (one recording has CPU numbers, the other has none) stand beside each other.
* Samples stay as they are: raw off-cpu samples raw, deferred callchains deferred. For perf 6.1, inject the
  result: `perf-offcpu merge A B -o - | perf-offcpu inject -i - -o OUT`.
* Refused: other byte orders and architectures; tracepoints of several machines, whose raw fields hold process
  ids and are laid out by each kernel as it likes; times of unknown clocks (but see `--from-start`).

Records come in the order of their recordings, pieces of these by turns, so that perf's rule of
FINISHED_ROUND holds for the whole: what comes after one is not older than what came before the last one.
Two passes over each recording; memory for one piece of each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from perf_offcpu.abi.records import RecordType
from perf_offcpu.errors import UsageError
from perf_offcpu.inject.rewrite import Writer
from perf_offcpu.inject.spool import Repeatable, repeatable
from perf_offcpu.merge.merge_facts import Facts, facts_of
from perf_offcpu.merge.merge_head import merged_events, merged_features
from perf_offcpu.merge.merge_plan import MergeOptions, Plan, plan
from perf_offcpu.merge.merge_records import Mover
from perf_offcpu.perfdata.losses import Losses
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.trailers import record_times
from perf_offcpu.perfdata.write.pipe import PipeWriter
from perf_offcpu.perfdata.write.writer import FileWriter, frame_record

_ENDED = 2**63 - 1


@dataclass(slots=True)
class Merged:
    """What merge did.

    Args:
        machines: the recordings (their rows) of each machine.
        records: how many were written, without rounds.
        losses: damage, and records left out.
    """

    machines: tuple[tuple[int, ...], ...]
    records: int = 0
    losses: Losses = field(default_factory=Losses)


def merge(
    paths: Sequence[str], out_fd: int, out_path: str, argv: Sequence[str], options: MergeOptions | None = None
) -> Merged:
    """Write several recordings as one.

    Args:
        paths: files, directories, FIFOs; "-" once.
        out_fd: an empty file, open for writing and seekable, or any descriptor for the pipe form; stays
            the caller's.
        out_path: its name, for messages.
        argv: the command line, to be written into the result.

    Raises:
        FormatError: an input is no perf.data. Damage inside is counted.
        UsageError: they cannot be put together; the message says why.
        RecordingError: the output cannot be written.
    """
    options = options or MergeOptions()
    with contextlib.ExitStack() as stack:
        sources = [stack.enter_context(repeatable(path)) for path in paths]
        inputs = [_facts(source) for source in sources]
        decided = plan(inputs, options)
        readers = [stack.enter_context(source.open()) for source in sources]
        merger = _Merger(inputs, readers, decided)
        writer = merger.writer(out_fd, out_path, argv, options.pipe)
        return merger.run(writer)


def _facts(source: Repeatable) -> Facts:
    with source.open() as reader:
        return facts_of(reader)


class _Merger:
    """The second pass over all recordings at once."""

    def __init__(self, inputs: list[Facts], readers: list[PerfDataReader], decided: Plan) -> None:
        self.inputs, self.plan = inputs, decided
        self.result = Merged(decided.machines)
        self.events, of_input = merged_events(inputs, decided)
        movers = [
            Mover(facts, events, shift, self.result.losses, with_build_ids=len(decided.machines) > 1)
            for facts, events, shift in zip(inputs, of_input, decided.shifts, strict=True)
        ]
        self.streams = [_Stream(*pair) for pair in zip(readers, movers, strict=True)]
        for reader in readers:
            reader.counters = self.result.losses

    def writer(self, fd: int, path: str, argv: Sequence[str], pipe: bool) -> Writer:
        """The output, in the form that is wanted."""
        order = self.inputs[0].order
        self.features = merged_features(self.inputs, self.plan, self.events, argv)
        if pipe:
            return PipeWriter(fd, self.events, self.features, path, order, self.result.losses)
        return FileWriter(fd, self.events, path, order)

    def run(self, writer: Writer) -> Merged:
        """Write everything: always a piece of the recording that is furthest behind."""
        for stream in self.streams:
            writer.append(stream.mover.beginning())
        round_end = frame_record(RecordType.FINISHED_ROUND, 0, b"", self.inputs[0].order)
        limit = highest = 0
        going = list(self.streams)
        while going:
            stream = min(going, key=lambda one: (one.floor, one.highest))
            piece = stream.next_piece()
            if piece is None:
                going.remove(stream)
                continue
            writer.append(piece)
            highest = max(highest, stream.highest)
            if min((one.floor for one in going), default=_ENDED) >= limit:
                writer.append(round_end)
                limit = highest
        self.result.records = sum(stream.records for stream in self.streams)
        writer.finish(self.features)
        return self.result


class _Stream:
    """One recording, piece by piece: what stands between two of its FINISHED_ROUND records.

    Attributes:
        highest: the highest time so far, ns on the merged clock.
        floor: nothing that is still to come is older than this.
    """

    def __init__(self, reader: PerfDataReader, mover: Mover) -> None:
        self.mover = mover
        self.highest = self.floor = 0
        self.records = 0
        self._in_rounds = mover.facts.streams == 1
        self._pieces = self._read(reader)

    def next_piece(self) -> bytes | memoryview | None:
        """The next piece; None at the end."""
        return next(self._pieces, None)

    def _read(self, reader: PerfDataReader) -> Iterator[memoryview]:
        limit, shift = 0, self.mover.shift.time_ns
        for chunk in reader.chunks():
            times = record_times(chunk, self.mover.facts.events)
            times = np.where(times > 0, times + shift, 0)
            records, rows = self.mover.moved(chunk)
            self.records += len(records)
            begin = done = 0
            rounds = np.flatnonzero((chunk.types == RecordType.FINISHED_ROUND) & self._in_rounds)
            for end in [*rounds.tolist(), len(chunk)]:
                upto = int(np.searchsorted(rows, end))
                self.highest = max(self.highest, int(times[begin:end].max(initial=0)))
                yield records.words[records.offsets[done] : records.offsets[upto]].view(np.uint8).data
                begin, done = end, upto
                if end < len(chunk):  # what follows is not older than what had come before the last round
                    self.floor, limit = limit, self.highest


def check_inputs(paths: Sequence[str]) -> None:
    """Raise UsageError unless there is something to merge."""
    if len(paths) < 2:
        raise UsageError("one recording is nothing to merge: name two or more")
    if len(paths) > len(set(paths)):
        raise UsageError("the same recording is named twice")
