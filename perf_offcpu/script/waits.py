# SPDX-License-Identifier: Apache-2.0
"""Print the fields of off-cpu samples that perf script does not have: `state=S syscall=futex …`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perf_offcpu.abi.offcpu import SYSCALL_NONE
from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.holders import holders_of
from perf_offcpu.analysis.states import STATES, state_codes
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.model.stacks import frames_of
from perf_offcpu.script.fields import OWN_FIELDS, FieldChoice
from perf_offcpu.script.frames import UNKNOWN_VALUE, format_distinct, format_known, format_times, where
from perf_offcpu.text import frame_label, id_text, printable

_NO_SYSCALL = "none"


class WaitTexts:
    """The texts of the own fields of one profile's samples.

    Args:
        fields: the fields to show.
        digits: decimals of times.
    """

    def __init__(self, profile: Profile, fields: FieldChoice, digits: int) -> None:
        self._profile, self._shown, self._digits = profile, fields.shown, digits
        self._waits = classify(profile) if fields.has("class", "syscall") else None
        self._held = holders_of(profile).held if fields.has("holder") else None

    def texts(self, rows: I64, samples: ProfileSamples) -> list[str]:
        """Return one text a sample, with a blank at its end; "" for samples that are no waits.

        Args:
            rows: int64[n], rows of the profile's samples.
            samples: these rows, taken.
        """
        offcpu = samples.has(SampleFlag.OFFCPU)
        makers: dict[str, Callable[[ProfileSamples, I64], list[str]]] = {
            "state": lambda waits, _: _states(waits),
            "class": lambda _, at: self._classes(at),
            "syscall": self._syscalls,
            "object": lambda waits, _: format_distinct(waits.object, self._object),
            "holder": lambda _, at: self._holders(at),
            "asked": lambda waits, _: format_distinct(waits.asked_ns, format_known),
            "count": lambda waits, _: format_distinct(waits.count, str),
            "longest": lambda waits, _: format_distinct(waits.longest_ns, format_known),
            "switch_out": lambda waits, _: self._times(waits.switch_out_ns),
            "wakeup": lambda waits, _: self._times(waits.wakeup_ns),
            "waker": lambda waits, _: _wakers(waits),
            "waker_stack": lambda waits, _: format_distinct(waits.waker_stack, self._stack),
            "runq": lambda waits, _: format_distinct(waits.runq_ns, format_known),
            "flags": lambda waits, _: format_distinct(waits.flags, _flags),
        }
        columns = [
            [f"{name}={text} " for text in makers[name](samples.take(offcpu), rows[offcpu])]
            for name in OWN_FIELDS
            if name in self._shown
        ]
        texts = np.full(len(samples), "", object)
        texts[offcpu] = list(map("".join, zip(*columns, strict=True)))
        return texts.tolist()

    def _stack(self, stack: int) -> str:
        profile = self._profile
        if stack < 0:
            return UNKNOWN_VALUE
        frames = frames_of(profile.stacks.parent, profile.stacks.frame, stack)
        symbols, dsos = (column[frames].tolist() for column in (profile.frames.symbol, profile.frames.dso))
        strings = profile.strings
        labels = (frame_label(strings[one], strings[dso]) for one, dso in zip(symbols, dsos, strict=True))
        return ";".join(label.replace(";", ":").replace(" ", "_") for label in labels)

    def _object(self, row: int) -> str:
        profile = self._profile
        name = printable(profile.strings[int(profile.objects.name[row])]) if row >= 0 else ""
        return name.replace(" ", "_") or UNKNOWN_VALUE

    def _holders(self, rows: I64) -> list[str]:
        assert self._held is not None
        return format_distinct(self._held[rows], format_known)

    def _times(self, values: I64) -> list[str]:
        return [text.strip() for text in format_times(values, self._digits)]

    def _classes(self, rows: I64) -> list[str]:
        assert self._waits is not None
        return format_distinct(self._waits.wait_class[rows], lambda number: WaitClass(number).label)

    def _syscalls(self, samples: ProfileSamples, rows: I64) -> list[str]:
        assert self._waits is not None
        names = self._waits.syscall_names
        named = format_distinct(self._waits.syscall[rows], lambda row: printable(names[row]) or UNKNOWN_VALUE)
        return where(samples.syscall != SYSCALL_NONE, named, [_NO_SYSCALL] * len(named))


def _states(samples: ProfileSamples) -> list[str]:
    return format_distinct(state_codes(samples), lambda code: STATES[code].letter or UNKNOWN_VALUE)


def _wakers(samples: ProfileSamples) -> list[str]:
    pids = format_distinct(samples.waker_pid, id_text)
    tids = format_distinct(samples.waker_tid, str)
    both = [f"{pid}/{tid}" for pid, tid in zip(pids, tids, strict=True)]
    return where(samples.waker_tid >= 0, both, [UNKNOWN_VALUE] * len(both))


def _flags(flags: int) -> str:
    names = [str(flag.name).lower() for flag in SampleFlag if flag & flags and flag != SampleFlag.OFFCPU]
    return "|".join(names) or UNKNOWN_VALUE
