# SPDX-License-Identifier: Apache-2.0
"""Layout of the raw payload of `offcpu-counters` samples with budgets of threads: how they spent their time.

They share the event of `abi.counters`, so that perf shows one such event, not two; the magic tells them
apart. Each holds the budgets of some threads: of ended ones, written when the collector drained them from the
kernel, and at the end of the recording of the others.
"""

from __future__ import annotations

from perf_offcpu.binary.fields import U16, U32, U64, Field
from perf_offcpu.binary.layout import Layout

MAGIC = int.from_bytes(b"OFCB", "little")
VERSION = 1

BUDGET = Layout(
    "offcpu-counters budget of a thread",
    Field("pid", U32, doc="tgid"),
    ("tid", U32),
    Field("begin_ns", U64, doc="CLOCK_MONOTONIC: birth, or begin of the recording"),
    Field("end_ns", U64, doc="CLOCK_MONOTONIC: death, or end of the recording"),
    Field("switches", U64, doc="times that it left a CPU"),
    Field("unknown_ns", U64, doc="ns not accounted for"),
    Field("running_ns", U64, doc="ns on a CPU"),
    Field("runnable_ns", U64, doc="ns waiting for a CPU after wake-up or birth"),
    Field("preempted_ns", U64, doc="ns waiting for a CPU after preemption or yielding"),
    Field("interruptible_ns", U64, doc="ns blocked, S"),
    Field("uninterruptible_ns", U64, doc="ns blocked, D"),
    Field("idle_ns", U64, doc="ns blocked, I"),
    Field("stopped_ns", U64, doc="ns stopped, T"),
    Field("traced_ns", U64, doc="ns stopped by a tracer, t"),
    Field("other_ns", U64, doc="ns off the CPU in any other state"),
)
"""The ns fields add up to end_ns - begin_ns."""

BUDGETS = Layout(
    "offcpu-counters budgets",
    Field("magic", U32, doc='"OFCB"'),
    ("version nr", U16),
    Field("budgets", BUDGET, count="nr"),
)
