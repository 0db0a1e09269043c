# SPDX-License-Identifier: Apache-2.0
"""Print samples as `perf script` does, for people, grep and the tools that read that text.

    sleeper     128    13.959392:   10208510 offcpu-time:
            7fca03d37efe clock_nanosleep+0x6e (/usr/lib/x86_64-linux-gnu/libc.so.6)
            …

    comm        tid    time s       period   event

It differs from perf where perf has no way to say what is true: samples without a time of their own (sums of waits)
show `-` and come last, and off-cpu samples have fields of their own (`state=S syscall=futex …`, `fields.OWN_FIELDS`).
Columns are formatted a block of samples at a time and joined by C code; stacks come from `frames`."""

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.attr import PerfType, SampleType
from perf_offcpu.abi.offcpu import SYSCALL_NONE
from perf_offcpu.analysis.classes.classify import Waits, classify
from perf_offcpu.analysis.classes.network import network_of, texts_of
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.holders import holders_of
from perf_offcpu.analysis.selection.containers import container_of
from perf_offcpu.analysis.selection.states import STATES, state_codes
from perf_offcpu.model.callchains import frames_of
from perf_offcpu.model.columns import I32, I64, distinct, group
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import Evsel, Meta, SampleFlag
from perf_offcpu.script.fields import EVENT_TYPES, FRAME_FIELDS, OWN_FIELDS, FieldChoice
from perf_offcpu.script.frames import UNKNOWN_VALUE, FrameTexts, format_distinct, format_known, format_times, where
from perf_offcpu.structs import frozen
from perf_offcpu.text import frame_label, id_text, printable

_BLOCK = 4096


@frozen
class TextOptions:
    """Says how samples are shown as text."""

    fields: FieldChoice = field(default_factory=FieldChoice)  # the fields to show. Default: perf's
    nanoseconds: bool = False  # times with 9 decimals. Default: 6, cut off, as in perf
    call_graph: bool = True  # whole stacks. Default: yes; else the innermost frame, on the sample's line
    full_source_path: bool = False  # source files with their directories. Default: names only, as in perf


def write(profile: Profile, out: IO[str], options: TextOptions | None = None) -> None:
    """Write all samples of a profile that was symbolized with `keep_ips`, by time. Samples with evsel -1 are deferred
    callchains (`decode.deferred.deferred_as_samples`)."""
    options = options or TextOptions()
    # The row in `printers` of each event; the last element is for evsel -1.
    kinds = [*(EVENT_TYPES.get(evsel.attr.type, "") for evsel in profile.evsels), ""]
    used = sorted({kind if kind in options.fields.of_type else "" for kind in kinds})
    choices = (options.fields.of_type.get(kind, options.fields) for kind in used)
    printers = [_Printer(profile, replace(options, fields=fields)) for fields in choices]
    of_event = np.array([used.index(kind if kind in used else "") for kind in kinds])
    # Samples without a time stand first in a profile. perf takes their dummy for a late time and so prints them last.
    order = np.argsort(profile.samples.time_ns < 0, kind="stable")
    for begin in range(0, len(order), _BLOCK):
        rows = order[begin : begin + _BLOCK]
        if len(printers) == 1:
            out.writelines(printers[0].text(rows))
            continue
        texts = np.full(len(rows), "", object)
        printer_of_row = of_event[profile.samples.evsel[rows]]
        for number, printer in enumerate(printers):
            texts[printer_of_row == number] = list(printer.text(rows[printer_of_row == number]))
        out.writelines(texts.tolist())


class _Printer:
    """Formats blocks of samples of one profile with one choice of fields."""

    def __init__(self, profile: Profile, options: TextOptions) -> None:
        self._profile, self._digits, self._fields = profile, 9 if options.nanoseconds else 6, options.fields
        self._frames = FrameTexts(profile, options.fields, full_paths=options.full_source_path)
        has_own = self._fields.has(*OWN_FIELDS)
        self._waits = WaitTexts(profile, self._fields, self._digits) if has_own else None
        self._with_frames = self._fields.has(*FRAME_FIELDS)
        evsels = profile.evsels
        # The last element is for evsel -1: a deferred callchain, which has no field but its frames.
        stacks = options.call_graph and self._with_frames
        self._has_stack = np.array([*(stacks and _has_callchain(evsel) for evsel in evsels), True])
        self._has_stack[distinct(profile.samples.evsel[profile.is_offcpu()])] |= stacks
        self._has_frames = np.array([*(self._with_frames and self._shows_frames(evsel) for evsel in evsels), True])
        # By default not of tracepoints, where it is mostly 1.
        shows_period = (not _is_tracepoint(evsel) or "period" in self._fields.asked for evsel in evsels)
        self._has_period = np.array([*shows_period, False])
        width = max((len(evsel.name) for evsel in evsels), default=0)
        self._events = [*(f"{printable(evsel.name):>{width}}: " for evsel in evsels), ""]
        self._with_cpus = "cpu" in self._fields.asked or _all_have_cpus(profile)

    def text(self, rows: I64) -> Iterator[str]:
        """Return the text of each sample in `rows`, in this order."""
        if not self._fields.shown:
            return iter([""] * len(rows))
        return map("".join, zip(*self._columns(rows, self._profile.samples.take(rows)), strict=True))

    def _columns(self, rows: I64, samples: ProfileSamples) -> Iterator[list[str]]:
        """Yield the columns that are shown, in perf's order: each is a text for every sample."""
        has = self._fields.has
        if has("comm"):
            yield self._comms(samples)
        if has("pid", "tid"):
            yield self._ids(samples)
        if has("cpu") and self._with_cpus:
            yield format_distinct(samples.cpu, lambda cpu: f"[{cpu:03}] " if cpu >= 0 else f"[{UNKNOWN_VALUE:>3}] ")
        if has("time"):
            yield format_times(samples.time_ns, self._digits, ": ")
        if has("period"):
            periods = format_distinct(samples.period, lambda period: f"{period:10} ")
            yield where(self._has_period[samples.evsel], periods, [""] * len(periods))
        if has("event"):
            yield [self._events[row] for row in samples.evsel.tolist()]
        if self._waits is not None:
            yield self._waits.texts(rows, samples)
        if has("cgroup"):
            yield format_distinct(samples.cgroup, self._cgroup)
        yield where(samples.evsel >= 0, self._stacks(samples), self._deferred(samples))

    def _comms(self, samples: ProfileSamples) -> list[str]:
        strings = self._profile.strings
        # perf aligns comms only where no stack follows.
        narrow = format_distinct(samples.comm, lambda row: f"{printable(strings[row])} ")
        wide = format_distinct(samples.comm, lambda row: f"{printable(strings[row]):>16} ")
        return where(self._has_stack[samples.evsel], narrow, wide)

    def _ids(self, samples: ProfileSamples) -> list[str]:
        pid, tid = samples.pid, samples.tid
        if self._fields.shown >= {"pid", "tid"}:
            first, pair_of_sample = group(pid, tid)
            pairs = zip(pid[first].tolist(), tid[first].tolist(), strict=True)
            texts = [f"{pid:7}/{tid:<7} " for pid, tid in pairs]
            return [texts[pair] for pair in pair_of_sample.tolist()]
        return format_distinct(tid if self._fields.has("tid") else pid, lambda number: f"{number:7} ")

    def _shows_frames(self, evsel: Evsel) -> bool:
        """Return True if frames are printed for an event: by default not for tracepoints if none has callchains."""
        if not _is_tracepoint(evsel) or not self._fields.asked.isdisjoint(FRAME_FIELDS):
            return True
        return any(_is_tracepoint(other) and _has_callchain(other) for other in self._profile.evsels)

    def _cgroup(self, cgroup: int) -> str:
        path = self._profile.cgroups.get(cgroup)
        return f"{UNKNOWN_VALUE if path is None else printable(path)} "

    def _stacks(self, samples: ProfileSamples) -> list[str]:
        """Return the end of each sample's text: its stack on lines of their own, or its innermost frame; a newline."""
        stacks, frames = samples.stack.tolist(), self._frames
        has_stack = (self._has_stack & self._has_frames)[samples.evsel].tolist()
        has_frames = self._has_frames[samples.evsel].tolist()
        return [
            f"\n{frames.lines(stack)}\n" if as_lines else f" {frames.leaf(stack)}\n" if shown else "\n"
            for stack, as_lines, shown in zip(stacks, has_stack, has_frames, strict=True)
        ]

    def _deferred(self, samples: ProfileSamples) -> list[str]:
        """Return the text of each deferred callchain (evsel -1); "" for samples."""
        texts = [""] * len(samples)
        for row in np.flatnonzero(samples.evsel < 0).tolist():
            cookie, frames = self._frames.deferred(int(samples.stack[row]))
            texts[row] = f"DEFERRED CALLCHAIN{cookie}\n" + (f"{frames}\n" if self._with_frames else "")
        return texts


def _is_tracepoint(evsel: Evsel) -> bool:
    return evsel.attr.type == PerfType.TRACEPOINT


def _has_callchain(evsel: Evsel) -> bool:
    return bool(evsel.attr.sample_type & SampleType.CALLCHAIN)


def _all_have_cpus(profile: Profile) -> bool:
    """Return True if all events with samples have the CPU; otherwise perf shows no CPU at all."""
    samples = profile.samples
    sampled = samples.evsel[samples.evsel >= 0]
    with_cpu = samples.evsel[(samples.evsel >= 0) & (samples.cpu >= 0)]
    return len(with_cpu) > 0 and np.array_equal(distinct(sampled), distinct(with_cpu))


_RULE = "# ========"
_MINUTE_NS = 60 * 10**9


def header_lines(profile: Profile) -> Iterator[str]:
    """Yield known facts about machine and run as lines that begin with `#`, as `perf script --header` does."""
    meta = profile.meta
    facts = {
        "captured on": _captured(meta),
        "hostname": meta.hostname,
        "os release": meta.os_release,
        "perf version": meta.version,
        "arch": meta.arch,
        "nrcpus online": str(meta.nr_cpus or ""),
        "cpudesc": meta.cpu_desc,
        "cmdline": " ".join(meta.cmdline),
    }
    yield _RULE
    yield from (_fact(name, text) for name, text in facts.items() if text)
    for event in profile.evsels:
        yield _fact("event", f"name = {event.name}" + (f", unit = {event.unit}" if event.unit else ""))
    if meta.threshold_ns >= 0:
        yield _fact("off-cpu threshold", f"{meta.threshold_ns} ns")
    for part in meta.recorded if 0 < meta.begin_ns < meta.end_ns else ():
        begin, end = (f"{ns // 10**9}.{ns % 10**9:09}" for ns in part)
        yield _fact("recorded", f"from {begin} to {end}")
    yield from (_RULE, "#")


def _captured(meta: Meta) -> str:
    """Return the date of the first sample as text; "" if the recording has no wall clock. perf notes the wall clock and
    the clock of its events before the first sample. In a time namespace its clock differs from that of the kernel,
    which takes the samples: perf's note may then be later than all samples, and the result is a text that says so."""
    if not meta.wall_clock_ns or meta.first_ns < 0:
        return ""
    if meta.wall_clock_at_ns > max(meta.last_ns, meta.end_ns) + _MINUTE_NS:
        return "unknown, by its clock perf began after the last sample (in a time namespace?)"
    wall_ns = meta.wall_clock_ns + meta.first_ns - meta.wall_clock_at_ns
    return time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(wall_ns // 10**9))


def _fact(name: str, text: str) -> str:
    return f"# {name} : {printable(text)}"


_NO_SYSCALL = "none"
_TIMES = {"switch_out": "switch_out_ns", "wakeup": "wakeup_ns"}


class WaitTexts:
    """Formats the fields of off-cpu samples that only this project has (OWN_FIELDS). `digits`: decimals of times."""

    def __init__(self, profile: Profile, fields: FieldChoice, digits: int) -> None:
        self._profile, self._shown, self._digits = profile, fields.shown, digits

    def texts(self, rows: I64, samples: ProfileSamples) -> list[str]:
        """Return for each sample `key=value ` of the fields that are shown; "" if it is no wait. `rows`: int64[n], rows
        of `samples` in the profile."""
        offcpu = samples.has(SampleFlag.OFFCPU)
        waits, rows = samples.take(offcpu), rows[offcpu]
        names = [name for name in OWN_FIELDS if name in self._shown]
        columns = [[f"{name}={text} " for text in self._column(name, waits, rows)] for name in names]
        texts = np.full(len(samples), "", object)
        texts[offcpu] = list(map("".join, zip(*columns, strict=True)))
        return texts.tolist()

    def _column(self, name: str, waits: ProfileSamples, rows: I64) -> list[str]:
        """Return the text of field `name` for each wait. `rows`: int64[n], rows of `waits` in the profile's samples."""
        if name in _TIMES:
            return [text.strip() for text in format_times(getattr(waits, _TIMES[name]), self._digits)]
        if name == "nspid":
            budget = self._profile.budget
            lives = rows_at(budget.tid, budget.begin_ns, waits.tid, waits.time_ns)
            return _ids_text(np.append(budget.own_pid, -1)[lives], np.append(budget.own_tid, -1)[lives])
        if name in ("waker", "syscall"):
            return _ids_text(waits.waker_pid, waits.waker_tid) if name == "waker" else self._syscalls(waits, rows)
        makers: dict[str, tuple[Callable[[], NDArray[Any]], Callable[[int], str]]] = {
            "state": (lambda: state_codes(waits), lambda code: STATES[code].letter or UNKNOWN_VALUE),
            "class": (lambda: self._waits.wait_class[rows], lambda number: WaitClass(number).label),
            "container": (lambda: waits.cgroup, self._container),
            "object": (lambda: waits.object, self._object),
            "holder": (lambda: self._held[rows], format_known),
            "network": (lambda: self._network[1][rows], lambda code: _word(self._network[0][code])),
            "asked": (lambda: waits.asked_ns, format_known),
            "count": (lambda: waits.count, str),
            "longest": (lambda: waits.longest_ns, format_known),
            "waker_stack": (lambda: waits.waker_stack, self._stack),
            "runq": (lambda: waits.runq_ns, format_known),
            "flags": (lambda: waits.flags, _flags),
        }
        values, label = makers[name]
        return format_distinct(values(), label)

    @functools.cached_property
    def _waits(self) -> Waits:
        return classify(self._profile)

    @functools.cached_property
    def _network(self) -> tuple[list[str], I64]:
        return texts_of(network_of(self._profile, self._waits))

    @functools.cached_property
    def _held(self) -> I32:
        return holders_of(self._profile).held

    def _stack(self, stack: int) -> str:
        profile = self._profile
        if stack < 0:
            return UNKNOWN_VALUE
        frames = frames_of(profile.stacks.parent, profile.stacks.frame, stack)
        symbols, dsos = (column[frames].tolist() for column in (profile.frames.symbol, profile.frames.dso))
        strings = profile.strings
        labels = (frame_label(strings[symbol], strings[dso]) for symbol, dso in zip(symbols, dsos, strict=True))
        return ";".join(label.replace(";", ":").replace(" ", "_") for label in labels)

    def _object(self, row: int) -> str:
        profile = self._profile
        return _word(profile.strings[int(profile.objects.name[row])] if row >= 0 else "")

    def _container(self, cgroup: int) -> str:
        return _word(container_of(self._profile.cgroups.get(cgroup, "")))

    def _syscalls(self, samples: ProfileSamples, rows: I64) -> list[str]:
        names = self._waits.syscall_names
        named = format_distinct(self._waits.syscall[rows], lambda row: printable(names[row]) or UNKNOWN_VALUE)
        return where(samples.syscall != SYSCALL_NONE, named, [_NO_SYSCALL] * len(named))


def _ids_text(pids: I32, tids: I32) -> list[str]:
    both = [f"{pid}/{tid}" for pid, tid in zip(format_distinct(pids, id_text), format_distinct(tids, str), strict=True)]
    return where(tids >= 0, both, [UNKNOWN_VALUE] * len(both))


def _word(text: str) -> str:
    return printable(text).replace(" ", "_") or UNKNOWN_VALUE


def _flags(flags: int) -> str:
    names = [str(flag.name).lower() for flag in SampleFlag if flag & flags and flag != SampleFlag.OFFCPU]
    return "|".join(names) or UNKNOWN_VALUE
