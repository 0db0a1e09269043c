# SPDX-License-Identifier: Apache-2.0
"""Write waits between context switches as records: off-cpu time for any perf, recorded without BPF. They are samples of
an event that is added to the recording, and have their id at the same place as the samples of its other events. If the
recorded samples have no id, as a single event's may, no event can be added."""

from collections.abc import Sequence

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.attr import SampleType, SoftwareConfig
from perf_offcpu.binary.fields import Order
from perf_offcpu.decode.deferred import merge_deferred
from perf_offcpu.decode.load import read_recording
from perf_offcpu.inject.payload_words import made_extensions, payloads
from perf_offcpu.inject.samples import model_fields, raw_fields
from perf_offcpu.losses import Losses, Stage
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I64
from perf_offcpu.model.recording import Evsel, SampleFlag, Samples
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.scan import Chunk
from perf_offcpu.perfdata.write.columns import Column, chunk_of_samples, sample_records
from perf_offcpu.perfdata.write.writer import RECORD_SIZE_MAX
from perf_offcpu.structs import frozen

_WORDS_MAX = (RECORD_SIZE_MAX - 512) // 8
"""Most words of callchains in a sample: the words of its own callchain, which is in the field and in the payload,
count twice, the words of its waker's once."""

_PLACES_OF_ID = SampleType.IDENTIFIER | SampleType.ID | SampleType.ADDR | SampleType.STREAM_ID | SampleType.CPU
"""Fields that decide where samples and trailers have their id, and that must be as in the other events."""
_BEFORE_ID = SampleType.IP | SampleType.TID | SampleType.TIME
_OWN = _BEFORE_ID | SampleType.PERIOD | SampleType.CALLCHAIN | SampleType.RAW
_ID_MAX = 2**64 - 1


@frozen
class WaitRecords:
    """Holds n SAMPLE records of one event, sorted by time, and their times (int64[n], ns)."""

    spec: EventSpec
    records: Chunk
    times: I64


def wait_records(reader: PerfDataReader, counters: Losses) -> WaitRecords | None:
    """Return the waits between switches; None for a recording without switches, with an off-cpu event, or whose samples
    have no id (counted). The whole recording is read into memory. Counted are switches that are no wait and callchains
    that are too long for a record, no other losses."""
    recording = merge_deferred(read_recording(reader))
    specs = reader.events.specs
    if len(recording.evsels) == len(specs):
        return None
    for cause, count in recording.losses.items():
        counters.add(cause, count if cause.stage is Stage.SWITCHES else 0)
    samples = recording.samples.take(recording.samples.has(SampleFlag.OFFCPU))
    spec = _spec(recording.evsels[-1], specs)
    if spec is None:
        counters.add(losses.NO_ID_IN_SAMPLES, len(samples))
        return None
    lengths = np.append(recording.callchains.lengths, 0)[[samples.callchain, samples.waker_callchain]]
    long = 2 * lengths[0] + lengths[1] > _WORDS_MAX
    counters.add(losses.CALLCHAIN_TOO_LONG, int(long.sum()))
    samples = samples.take(~long)
    return WaitRecords(spec, _records(samples, recording.callchains, spec, reader.order), samples.time_ns)


def _spec(evsel: Evsel, specs: Sequence[EventSpec]) -> EventSpec | None:
    """Return the spec of the added event; None if its samples could not be distinguished by id."""
    ids = [number for spec in specs for number in spec.ids]
    sample_type = specs[0].attr.sample_type
    kind = sample_type & _PLACES_OF_ID | _OWN
    by_identifier = bool(kind & SampleType.IDENTIFIER)
    by_id = bool(kind & SampleType.ID) and sample_type & _BEFORE_ID == _BEFORE_ID
    if not ids or not (by_identifier or by_id) or max(ids) >= _ID_MAX:
        return None
    attr = evsel.attr._replace(config=SoftwareConfig.CPU_CLOCK, sample_type=kind)
    return EventSpec(attr, evsel.name, (max(ids) + 1,))


def _records(samples: Samples, callchains: Ragged, spec: EventSpec, order: Order) -> Chunk:
    none = len(callchains)  # the row of an empty callchain, added here
    with_none = Ragged(np.append(callchains.offsets, callchains.offsets[-1]), callchains.values)
    chains, wakers = (
        with_none.take(np.where(rows < 0, none, rows)) for rows in (samples.callchain, samples.waker_callchain)
    )
    columns: dict[str, Column] = {
        **dict.fromkeys(("identifier", "id"), spec.ids[0]),
        **dict.fromkeys(("addr", "stream_id", "cpu_res"), 0),
        **model_fields(samples),
        "callchain": (chains.offsets, chains.values),
        **raw_fields(payloads(samples, chains, made_extensions(samples, wakers, order), order)),
    }
    miscs = samples.cpumode.astype(np.uint16)
    return chunk_of_samples(*sample_records(spec.shape, miscs, columns, len(samples), order), miscs)
