# SPDX-License-Identifier: Apache-2.0
"""Samples as text, as `perf script` prints them, for people, grep and the tools that read that text.

    sleeper     128    13.959392:   10208510 offcpu-time:
            7fca03d37efe clock_nanosleep+0x6e (/usr/lib/x86_64-linux-gnu/libc.so.6)
            …

    comm        tid    time s       period   event

Where it differs from perf, perf has no place for what is true: samples without a time of their own (sums of
waits) show `-` and come last; off-cpu samples can tell more (`perf_fields.OWN_FIELDS`). Columns are made
text a block of samples at a time and joined by C code; stacks come from `perf_frames`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import IO

import numpy as np

from perf_offcpu.abi.attr import PerfType, SampleType
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import Evsel
from perf_offcpu.script.extra import ExtraTexts, check_sampled
from perf_offcpu.script.field_places import FieldPlaces
from perf_offcpu.script.fields import FRAME_FIELDS, OWN_FIELDS, FieldChoice
from perf_offcpu.script.frames import FrameTexts
from perf_offcpu.script.waits import UNKNOWN_VALUE, OwnTexts, chosen, each, times
from perf_offcpu.text import printable

_BLOCK = 4096
_EVENT_TYPES = {0: "hw", 1: "sw", 2: "trace", 4: "raw"}
"""attr.type → its name in `-F`."""
_ADDRESSES = ("addr", "brstack", "brstacksym")


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How to print samples."""

    fields: FieldChoice = field(default_factory=FieldChoice)
    """Which fields. Default: perf's."""
    nanoseconds: bool = False
    """Times with 9 decimals. Default: 6, cut off, as in perf."""
    call_graph: bool = True
    """Whole stacks. Default: yes; else the innermost frame, on the sample's line."""
    full_source_path: bool = False
    """Source files with their directories. Default: their names only, as in perf."""

    @property
    def digits(self) -> int:
        """Decimals of times."""
        return 9 if self.nanoseconds else 6


def write(
    profile: Profile, out: IO[str], options: TextOptions | None = None, places: FieldPlaces | None = None
) -> None:
    """Write all samples of a profile, by time.

    Args:
        profile: symbolized with `keep_ips`; samples of no event (evsel -1) are deferred callchains, see
            `decode.unmerged`.
        places: where addresses in its fields lie.

    Raises:
        UsageError: a field is asked for that no event has sampled.
    """
    options, places = options or TextOptions(), places or FieldPlaces()
    check_sampled(profile, options.fields)
    # Row in `printers` of each event; the last element answers for evsel -1.
    kinds = [*(_event_type(one) for one in profile.evsels), ""]
    used = sorted({kind if kind in options.fields.of_type else "" for kind in kinds})
    printers = [
        _Printer(profile, replace(options, fields=options.fields.of_type.get(kind, options.fields)), places)
        for kind in used
    ]
    of_event = np.array([used.index(kind if kind in used else "") for kind in kinds])
    # They stand first in a profile. perf takes their dummy for a time beyond all others: so they come last.
    order = np.argsort(profile.samples.time_ns < 0, kind="stable")
    for begin in range(0, len(order), _BLOCK):
        rows = order[begin : begin + _BLOCK]
        if len(printers) == 1:
            out.writelines(printers[0].text(rows))
            continue
        texts = np.full(len(rows), "", object)
        which = of_event[profile.samples.evsel[rows]]
        for number, printer in enumerate(printers):
            mine = which == number
            texts[mine] = list(printer.text(rows[mine]))
        out.writelines(texts.tolist())


def _event_type(evsel: Evsel) -> str:
    """As perf calls it in `-F`; "" for those that have no name there."""
    kind = -1 if evsel.attr is None else evsel.attr.type
    return _EVENT_TYPES.get(kind, "")


class _Printer:
    """Turns blocks of samples into text."""

    def __init__(self, profile: Profile, options: TextOptions, places: FieldPlaces) -> None:
        self.profile, self.options, self.fields = profile, options, options.fields
        self.frames = FrameTexts(profile, options.fields, full_paths=options.full_source_path)
        self.extra = ExtraTexts(profile, places, options.fields, self.frames)
        self.own = (
            OwnTexts(profile, options.fields, options.digits) if options.fields.has(*OWN_FIELDS) else None
        )
        evsels = profile.evsels
        # Names without addresses are those of the other addresses that are shown.
        elsewhere = self.fields.has(*_ADDRESSES)
        self._with_frames = self.fields.has(*(("ip",) if elsewhere else FRAME_FIELDS))
        # The last element answers for evsel -1: a deferred callchain, which is nothing but its frames.
        stacks = options.call_graph and self._with_frames
        waits = np.unique(profile.samples.evsel[profile.is_offcpu()])
        self._has_stack = np.array([*(stacks and _has_callchain(one) for one in evsels), True])
        self._has_stack[waits] |= stacks
        self._has_frames = np.array(
            [*(self._with_frames and self._shows_frames(one) for one in evsels), True]
        )
        self._has_period = np.array([*(self._shows_period(one) for one in evsels), False])
        width = max((len(one.name) for one in evsels), default=0)
        self._events = [*(f"{printable(one.name):>{width}}: " for one in evsels), ""]
        self._cpus = "cpu" in options.fields.asked or _all_have_cpus(profile)

    def text(self, rows: I64) -> Iterator[str]:
        """The samples of a block, in order."""
        if not self.fields.shown:
            return iter([""] * len(rows))
        samples = self.profile.samples.take(rows)
        own = self.own.texts(rows, samples) if self.own else [""] * len(rows)
        columns = [make(samples) for make in self._columns(own)]
        return map("".join, zip(*columns, strict=True))

    def _columns(self, own: list[str]) -> list[Callable[[ProfileSamples], list[str]]]:
        """What makes the texts of each column that is shown, in perf's order."""
        shown = self.fields
        candidates: tuple[tuple[bool, Callable[[ProfileSamples], list[str]]], ...] = (
            (shown.has("comm"), self._comms),
            (shown.has("pid", "tid"), self._ids),
            (shown.has("cpu") and self._cpus, lambda samples: each(samples.cpu, _cpu)),
            (shown.has("time"), lambda samples: times(samples.time_ns, self.options.digits, ": ")),
            (shown.has("period"), self._periods),
            (shown.has("event"), lambda samples: [self._events[row] for row in samples.evsel.tolist()]),
            (self.own is not None, lambda _: own),
            *((True, make) for make in self.extra.in_front()),
            (shown.has("cgroup"), lambda samples: each(samples.cgroup, self._cgroup)),
            (True, self._stacks),
        )
        return [make for wanted, make in candidates if wanted]

    def _comms(self, samples: ProfileSamples) -> list[str]:
        strings = self.profile.strings
        # perf aligns comms only where no stack follows.
        narrow = each(samples.comm, lambda row: f"{printable(strings[row])} ")
        wide = each(samples.comm, lambda row: f"{printable(strings[row]):>16} ")
        return chosen(self._has_stack[samples.evsel], narrow, wide)

    def _ids(self, samples: ProfileSamples) -> list[str]:
        tids = samples.tid.astype(np.int64)
        if self.fields.shown >= {"pid", "tid"}:
            pairs: I64 = (samples.pid.astype(np.int64) << 32) + tids - np.iinfo(np.int32).min
            return each(pairs, _pid_and_tid)
        return each(tids if self.fields.has("tid") else samples.pid, lambda number: f"{number:7} ")

    def _periods(self, samples: ProfileSamples) -> list[str]:
        texts = each(samples.period, lambda period: f"{period:10} ")
        return chosen(self._has_period[samples.evsel], texts, [""] * len(texts))

    def _shows_frames(self, evsel: Evsel) -> bool:
        """perf's defaults have no address for tracepoints, if none was recorded with callchains."""
        if not _is_tracepoint(evsel) or self.fields.asked & {"ip", "sym", "dso"}:
            return True
        return any(_is_tracepoint(one) and _has_callchain(one) for one in self.profile.evsels)

    def _shows_period(self, evsel: Evsel) -> bool:
        """perf's defaults have no period for tracepoints: it counts occurrences, and is mostly 1."""
        return not _is_tracepoint(evsel) or "period" in self.fields.asked

    def _cgroup(self, cgroup: int) -> str:
        path = self.profile.cgroups.get(cgroup)
        return f"{UNKNOWN_VALUE if path is None else printable(path)} "

    # Frames.

    def _stacks(self, samples: ProfileSamples) -> list[str]:
        """What ends each sample: its stack on lines of their own or its innermost frame, and what perf prints
        behind them."""
        whole, leaf, texts = self.frames.lines, self.frames.leaf, []
        makers = self.extra.behind()
        behind = list(map("".join, zip(*(make(samples) for make in makers), strict=True))) if makers else []
        for stack, several, shown, end in zip(
            samples.stack.tolist(),
            self._has_stack[samples.evsel].tolist(),
            self._has_frames[samples.evsel].tolist(),
            behind or [""] * len(samples),
            strict=True,
        ):
            frames = "" if not shown else f"\n{whole(stack)}" if several else f" {leaf(stack)}"
            texts.append(f"{frames}{end}\n")
        return chosen(samples.evsel >= 0, texts, self._cookies(samples))

    def _cookies(self, samples: ProfileSamples) -> list[str]:
        """As `_stacks`, of deferred callchains; "" for others."""
        texts = [""] * len(samples)
        for row in np.flatnonzero(samples.evsel < 0).tolist():
            stack = int(samples.stack[row])
            cookie = ""
            if self.frames.is_cookie(stack):
                cookie = f" [cookie: {self.frames.leaf_ip(stack):x}]"
                stack = self.frames.parent(stack)
            frames = f"{self.frames.lines(stack)}\n" if self._with_frames else ""
            texts[row] = f"DEFERRED CALLCHAIN{cookie}\n{frames}"
        return texts


def _is_tracepoint(evsel: Evsel) -> bool:
    return evsel.attr is not None and evsel.attr.type == PerfType.TRACEPOINT


def _has_callchain(evsel: Evsel) -> bool:
    return evsel.attr is None or bool(evsel.attr.sample_type & SampleType.CALLCHAIN)


def _all_have_cpus(profile: Profile) -> bool:
    """Whether each event that has samples has sampled the CPU; else perf shows it for none."""
    samples = profile.samples
    sampled = samples.evsel[samples.evsel >= 0]
    with_cpu = samples.evsel[(samples.evsel >= 0) & (samples.cpu >= 0)]
    return len(with_cpu) > 0 and np.array_equal(np.unique(sampled), np.unique(with_cpu))


def _cpu(cpu: int) -> str:
    return f"[{cpu:03}] " if cpu >= 0 else f"[{UNKNOWN_VALUE:>3}] "


def _pid_and_tid(pair: int) -> str:
    pid, tid = divmod(pair, 2**32)
    return f"{pid:7}/{tid + np.iinfo(np.int32).min:<7} "
