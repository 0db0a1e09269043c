# SPDX-License-Identifier: Apache-2.0
"""Layout of the raw payload of the `offcpu-counters` sample: losses and limits of the recording itself.

Losses in full rings have records of their own (LOST, LOST_SAMPLES), losses in the BPF program have not. Stock
perf ignores no other place in perf.data: perf 6.1 stops at records of unknown type, and its `perf inject`
crashes on unknown header features. So they are a sample of a separate bpf-output event, the last record of
the data: perf shows an event with one sample and period 0, and keeps it in inject and pipes.
"""

from __future__ import annotations

from perf_offcpu.binary.fields import BYTE, U16, U32, U64, Field
from perf_offcpu.binary.layout import Layout

EVENT_NAME = "offcpu-counters"
"""The name of its evsel, which has one id, chosen by the recorder: there is no such event in the kernel."""

EVENT_ID = int.from_bytes(b"offcpu-c", "big")
"""That id. The kernel counts from 1 and will not reach it."""

MAGIC = int.from_bytes(b"OFCC", "little")
VERSION = 1
NAME_SIZE = 48

COUNTER = Layout(
    "offcpu-counters counter",
    Field("events", U64, doc="how often"),
    Field("ns", U64, doc="off-cpu time concerned, 0 where it is not known"),
    Field("name", BYTE, count=NAME_SIZE, doc="what was counted, NUL-padded; lower case, with dashes"),
)

COUNTERS = Layout(
    "offcpu-counters raw payload",
    Field("magic", U32, doc='"OFCC"'),
    ("version nr", U16),
    Field("begin_ns", U64, doc="CLOCK_MONOTONIC: waits that end from here on are recorded"),
    Field("end_ns", U64, doc="CLOCK_MONOTONIC: waits that end before are recorded"),
    Field("threshold_ns", U64, doc="waits from here on are samples of their own, shorter ones summed"),
    Field("counters", COUNTER, count="nr"),
)
