# SPDX-License-Identifier: Apache-2.0
"""Make the header of a rewritten recording: events that perf 6.1 accepts, and features that are still true."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import or_

from perf_offcpu import losses
from perf_offcpu.abi.attr import Attr, AttrFlag, PerfType, ReadFormat, SampleType, SoftwareConfig
from perf_offcpu.abi.features import FEATURE_LAYOUTS, Feature
from perf_offcpu.binary.layout import Order
from perf_offcpu.decode.samples import is_offcpu
from perf_offcpu.errors import LayoutError
from perf_offcpu.losses import Losses
from perf_offcpu.objects.search import Search
from perf_offcpu.perfdata.events import NO_TIME, EventSpec
from perf_offcpu.perfdata.features import Features, event_desc_body, feature_body, text_body
from perf_offcpu.perfdata.tracing_data import tracepoint_formats
from perf_offcpu.structs import frozen

LAST_FEATURE_6_1 = Feature.PMU_CAPS  # perf 6.1 skips later ones as it reads, but its own inject crashes on them

LAST_BRANCH_TYPES_6_1 = (1 << 19) - 1
"""Bits of branch_sample_type up to PRIV_SAVE. Without bit 19 (Linux 6.8) samples have no branch counters."""

_DROPPED = {
    Feature.EVENT_DESC,  # written again, with what changed;
    Feature.DIR_FORMAT,  # the output is one file,
    Feature.COMPRESSED,  # not compressed,
    Feature.AUXTRACE,  # without processor traces;
    Feature.BRANCH_STACK,  # set where samples have a branch stack: perf insists on it then
}

_NEEDED = SampleType.IP | SampleType.TID | SampleType.TIME | SampleType.PERIOD | SampleType.RAW
_STACK = SampleType.REGS_USER | SampleType.STACK_USER


@frozen
class RewriteOptions:
    """Options of `inject.rewrite.rewrite`: what it changes, and the form of its output."""

    retype: bool = True  # convert raw off-cpu samples to ordinary ones (glossary: re-type), else copy them
    merge: bool = True  # put deferred callchains into their samples, else leave them in records unknown to perf 6.1
    pipe: bool = False  # write the pipe form
    compress: bool = False  # write compressed records; not in the pipe form
    switches: bool = False  # add an off-cpu event of the waits between switches, if the recording has none
    keep_stacks: bool = False  # keep copies of user stacks in samples
    search: Search | None = None  # where files are looked up to unwind these copies; None: they are not unwound


def is_raw_offcpu(spec: EventSpec) -> bool:
    """Return True if an evsel has raw off-cpu samples (bpf-output) with all fields that re-typing needs."""
    is_raw = spec.attr.config == SoftwareConfig.BPF_OUTPUT and spec.attr.sample_type & _NEEDED == _NEEDED
    return is_raw and is_offcpu(spec)


def has_stacks(spec: EventSpec) -> bool:
    """Return True if an evsel's samples have copies of user registers and stacks."""
    return spec.attr.sample_type & _STACK == _STACK


def written_events(specs: Sequence[EventSpec], options: RewriteOptions, features: Features) -> list[EventSpec]:
    """Return the events to write: named, with attrs that perf 6.1 accepts, each id once. If no event has an id, all
    samples are the first event's, as perf takes them only if it is the only event: then only the first is returned."""
    taken, events, damage = {0}, list[EventSpec](), Losses()
    tracepoints = tracepoint_formats(features.bodies.get(Feature.TRACING_DATA, b""), damage)
    for spec in specs if any(spec.ids for spec in specs) else specs[:1]:
        ids = tuple(number for number in dict.fromkeys(spec.ids) if number not in taken)
        taken.update(ids)
        attr = _cut(spec.attr, options.merge)
        if options.retype and is_raw_offcpu(spec):
            kind = attr.sample_type | SampleType.CALLCHAIN | SampleType.CGROUP
            attr = attr._replace(config=SoftwareConfig.CPU_CLOCK, sample_type=kind)
        if has_stacks(spec) and not options.keep_stacks:
            kind = attr.sample_type & ~_STACK
            attr = attr._replace(sample_type=kind, sample_regs_user=0, sample_stack_user=0)
        if attr.type == PerfType.TRACEPOINT and (damage or attr.config not in tracepoints):
            # perf refuses a file without the format of a tracepoint, which a killed recorder did not write.
            attr = attr._replace(type=PerfType.SOFTWARE, config=SoftwareConfig.BPF_OUTPUT)
        events.append(replace(spec.named(), attr=attr, ids=ids))
    return events


_SAMPLE_TYPES, _READ_FORMATS = reduce(or_, SampleType), reduce(or_, ReadFormat)


def _cut(attr: Attr, merge: bool) -> Attr:
    """Return an attr without fields and bits newer than perf 6.1, which takes them for damage. The flags that ask for
    deferred callchains stay unless `merge` is set."""
    deferring = attr.flags & (AttrFlag.DEFER_CALLCHAIN | AttrFlag.DEFER_OUTPUT)
    cut = attr.cut()._replace(
        sample_type=attr.sample_type & _SAMPLE_TYPES,
        read_format=attr.read_format & _READ_FORMATS,
        branch_sample_type=attr.branch_sample_type & LAST_BRANCH_TYPES_6_1,
        reserved_2=0,
        aux_action=0,
    )
    return cut if merge else cut._replace(flags=cut.flags | deferring)


def written_features(
    features: Features, events: Sequence[EventSpec], span: tuple[int, int], order: Order, counters: Losses
) -> dict[int, bytes]:
    """Return bit → body of the features to write; damaged ones are left out and counted. `features`: as recorded;
    `events`: as written; `span`: times of the first and last sample in ns, -1 if there is none."""
    kept = {bit: body for bit, body in features.bodies.items() if bit <= LAST_FEATURE_6_1 and bit not in _DROPPED}
    bodies = {bit: body for bit, body in kept.items() if _is_whole(bit, body, order)}
    counters.add(losses.BAD_FEATURE, len(kept) - len(bodies))
    bodies[Feature.EVENT_DESC] = event_desc_body(events, order)
    if any(event.attr.sample_type & SampleType.BRANCH_STACK for event in events):
        bodies[Feature.BRANCH_STACK] = b""
    if order == ">":
        # perf finds out by this bit which way the bitmap of features was swapped.
        bodies.setdefault(Feature.HOSTNAME, text_body("", order))
    stated = bodies.pop(Feature.SAMPLE_TIME, b"")
    return bodies | _sample_time(stated, span, order)


def _is_whole(bit: int, body: bytes, order: Order) -> bool:
    """Return True if perf can read the body of feature `bit`. perf 7.0 and later refuse a file with a damaged feature;
    any perf refuses a file with truncated formats of tracepoints."""
    damage = Losses()
    if bit == Feature.TRACING_DATA:
        return bool(tracepoint_formats(body, damage)) and not damage
    try:
        if bit in FEATURE_LAYOUTS:
            FEATURE_LAYOUTS[bit].unpack(body, order)
    except LayoutError:
        return False
    return True


def _sample_time(body: bytes, span: tuple[int, int], order: Order) -> dict[int, bytes]:
    """Return {SAMPLE_TIME: body}: the recorded `body` if its times are plausible and include `span`, else a body with
    the times of `span`; {} without a sample. perf 7.2 includes dummy times of sums, and writes only zeros to a pipe."""
    first, last = span
    if first < 0:
        return {}
    with contextlib.suppress(LayoutError):
        stated = FEATURE_LAYOUTS[Feature.SAMPLE_TIME].unpack(body, order)
        if 0 < stated["first"] <= first and last <= stated["last"] < NO_TIME:
            return {Feature.SAMPLE_TIME: body}
    return {Feature.SAMPLE_TIME: feature_body(Feature.SAMPLE_TIME, order, first=first, last=last)}
