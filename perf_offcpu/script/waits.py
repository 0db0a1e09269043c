# SPDX-License-Identifier: Apache-2.0
"""Print the fields of off-cpu samples that perf script does not have: `state=S syscall=futex …`."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.offcpu import SYSCALL_NONE
from perf_offcpu.analysis.classes.classify import Waits, classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.holders import holders_of
from perf_offcpu.analysis.states import STATES, state_codes
from perf_offcpu.model.columns import I32, I64
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.model.stacks import frames_of
from perf_offcpu.script.fields import OWN_FIELDS, FieldChoice
from perf_offcpu.script.frames import UNKNOWN_VALUE, format_distinct, format_known, format_times, where
from perf_offcpu.text import frame_label, id_text, printable

_NO_SYSCALL = "none"
_TIMES = {"switch_out": "switch_out_ns", "wakeup": "wakeup_ns"}


class WaitTexts:
    """The texts of the own fields of one profile's samples. `digits`: decimals of times."""

    def __init__(self, profile: Profile, fields: FieldChoice, digits: int) -> None:
        self._profile, self._shown, self._digits = profile, fields.shown, digits

    def texts(self, rows: I64, samples: ProfileSamples) -> list[str]:
        """Return one text a sample, with a blank at its end; "" for samples that are no waits. `samples` are the rows
        of the profile's samples, taken."""
        offcpu = samples.has(SampleFlag.OFFCPU)
        waits, rows = samples.take(offcpu), rows[offcpu]
        columns = [
            [f"{name}={text} " for text in self._column(name, waits, rows)]
            for name in OWN_FIELDS
            if name in self._shown
        ]
        texts = np.full(len(samples), "", object)
        texts[offcpu] = list(map("".join, zip(*columns, strict=True)))
        return texts.tolist()

    def _column(self, name: str, waits: ProfileSamples, rows: I64) -> list[str]:
        """Return the texts of a field. `rows`: of the waits, in the profile's samples."""
        if name in _TIMES:
            return [text.strip() for text in format_times(getattr(waits, _TIMES[name]), self._digits)]
        if name in ("waker", "syscall"):
            return _wakers(waits) if name == "waker" else self._syscalls(waits, rows)
        makers: dict[str, tuple[Callable[[], NDArray[Any]], Callable[[int], str]]] = {
            "state": (lambda: state_codes(waits), lambda code: STATES[code].letter or UNKNOWN_VALUE),
            "class": (lambda: self._waits.wait_class[rows], lambda number: WaitClass(number).label),
            "object": (lambda: waits.object, self._object),
            "holder": (lambda: self._held[rows], format_known),
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
        name = printable(profile.strings[int(profile.objects.name[row])]) if row >= 0 else ""
        return name.replace(" ", "_") or UNKNOWN_VALUE

    def _syscalls(self, samples: ProfileSamples, rows: I64) -> list[str]:
        names = self._waits.syscall_names
        named = format_distinct(self._waits.syscall[rows], lambda row: printable(names[row]) or UNKNOWN_VALUE)
        return where(samples.syscall != SYSCALL_NONE, named, [_NO_SYSCALL] * len(named))


def _wakers(samples: ProfileSamples) -> list[str]:
    pids = format_distinct(samples.waker_pid, id_text)
    tids = format_distinct(samples.waker_tid, str)
    both = [f"{pid}/{tid}" for pid, tid in zip(pids, tids, strict=True)]
    return where(samples.waker_tid >= 0, both, [UNKNOWN_VALUE] * len(both))


def _flags(flags: int) -> str:
    names = [str(flag.name).lower() for flag in SampleFlag if flag & flags and flag != SampleFlag.OFFCPU]
    return "|".join(names) or UNKNOWN_VALUE
