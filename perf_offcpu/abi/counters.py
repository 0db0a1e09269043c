# SPDX-License-Identifier: Apache-2.0
"""The raw payload of the one `offcpu-counters` sample: what the collector says of the recording itself.

A recording is only as good as what it admits to have lost. Losses in full rings have records of their own
(LOST, LOST_SAMPLES); what the collector's BPF program had to leave out has not. perf.data has no place for
it that stock perf passes over in silence: perf 6.1 stops at records of unknown type, and its `perf inject`
crashes on unknown header features. So it is a sample of a bpf-output event of its own, the last record of the
data: perf shows it as an event with one sample and period 0, and carries it along through inject and pipes.
"""

from __future__ import annotations

from perf_offcpu.binary.layout import BYTE, U16, U32, U64, Field, Layout

EVENT_NAME = "offcpu-counters"
"""Its evsel has one id, chosen by the recorder: no kernel event stands behind it."""

EVENT_ID = int.from_bytes(b"offcpu-c", "big")
"""That id. The kernel counts its own from 1; this one is beyond what it will reach."""

MAGIC = int.from_bytes(b"OFCC", "little")
VERSION = 1
NAME_SIZE = 48

COUNTER = Layout(
    "offcpu-counters counter",
    (
        Field("events", U64, doc="how often"),
        Field("ns", U64, doc="off-cpu time concerned, 0 where it is not known"),
        Field("name", BYTE, count=NAME_SIZE, doc="what was counted, NUL-padded; lower case, with dashes"),
    ),
)

COUNTERS = Layout(
    "offcpu-counters raw payload",
    (
        Field("magic", U32, doc='"OFCC"'),
        Field("version", U16),
        Field("nr", U16),
        Field("begin_ns", U64, doc="CLOCK_MONOTONIC: waits that end from here on are recorded"),
        Field("end_ns", U64, doc="CLOCK_MONOTONIC: waits that end before are recorded"),
        Field("threshold_ns", U64, doc="waits from here on are samples of their own, shorter ones summed"),
        Field("counters", COUNTER, count="nr"),
    ),
)
