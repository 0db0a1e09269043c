# SPDX-License-Identifier: Apache-2.0
"""What `perf-offcpu script` says of off-cpu samples beyond perf's fields: `state=S syscall=futex …`.

Also the ways in which columns become text, a block of samples at a time: each different value once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.offcpu import SYSCALL_NONE
from perf_offcpu.abi.task_state import state_letter
from perf_offcpu.analysis.classify import classify
from perf_offcpu.analysis.wait_rules import WaitClass
from perf_offcpu.model.columns import I64, Bool
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.model.stacks import frames_of
from perf_offcpu.script.fields import OWN_FIELDS, FieldChoice
from perf_offcpu.text import frame_label, printable

UNKNOWN_VALUE = "-"
_NO_SYSCALL = "none"
_NS_PER_S = 10**9


class OwnTexts:
    """The text of the own fields of one profile's samples.

    Args:
        fields: which fields are shown.
        digits: decimals of times.
    """

    def __init__(self, profile: Profile, fields: FieldChoice, digits: int) -> None:
        self._profile, self._shown, self._digits = profile, fields.shown, digits
        self._waits = classify(profile) if fields.has("class", "syscall") else None

    def texts(self, rows: I64, samples: ProfileSamples) -> list[str]:
        """One text a sample, with a blank behind it; "" for samples that are no waits.

        Args:
            rows: int64[n], of the profile's samples.
            samples: the same, taken.
        """
        offcpu: Bool = (samples.flags & np.uint32(SampleFlag.OFFCPU)) != 0
        makers: dict[str, Callable[[ProfileSamples, I64], list[str]]] = {
            "state": lambda waits, _: _states(waits),
            "class": lambda _, at: self._classes(at),
            "syscall": self._syscalls,
            "count": lambda waits, _: each(waits.count, str),
            "longest": lambda waits, _: each(waits.longest_ns, _not_negative),
            "switch_out": lambda waits, _: self._times(waits.switch_out_ns),
            "wakeup": lambda waits, _: self._times(waits.wakeup_ns),
            "waker": lambda waits, _: _wakers(waits),
            "waker_stack": lambda waits, _: each(waits.waker_stack, self._stack),
            "runq": lambda waits, _: each(waits.runq_ns, _not_negative),
            "flags": lambda waits, _: each(waits.flags, _flags),
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

    def _times(self, values: I64) -> list[str]:
        return [text.strip() for text in times(values, self._digits)]

    def _classes(self, rows: I64) -> list[str]:
        assert self._waits is not None
        return each(self._waits.wait_class[rows], lambda number: WaitClass(number).label)

    def _syscalls(self, samples: ProfileSamples, rows: I64) -> list[str]:
        assert self._waits is not None
        names = self._waits.syscall_names
        known = each(self._waits.syscall[rows], lambda row: printable(names[row]) or UNKNOWN_VALUE)
        return chosen(samples.syscall != SYSCALL_NONE, known, [_NO_SYSCALL] * len(known))


def each(values: NDArray[Any], make: Callable[[int], str]) -> list[str]:
    """The text of each value, made once for each different one."""
    different, row = np.unique(values, return_inverse=True)
    texts = [make(value) for value in different.tolist()]
    return [texts[number] for number in row.tolist()]


def chosen(wanted: Bool, texts: list[str], others: list[str]) -> list[str]:
    """Row by row: a text if it is wanted, else the other one."""
    if wanted.all():
        return texts
    return [one if want else other for want, one, other in zip(wanted.tolist(), texts, others, strict=True)]


def times(values: I64, digits: int, end: str = "") -> list[str]:
    """Times in seconds, cut off behind so many decimals; `-` for those that are not known."""
    seconds, parts = np.divmod(values, _NS_PER_S)
    parts //= 10 ** (9 - digits)
    unknown = f"{UNKNOWN_VALUE:>{6 + digits}}{end}"
    return [
        unknown if whole < 0 else f"{whole:5}.{part:0{digits}}{end}"
        for whole, part in zip(seconds.tolist(), parts.tolist(), strict=True)
    ]


def _states(samples: ProfileSamples) -> list[str]:
    preempted = (samples.flags & np.uint32(SampleFlag.PREEMPTED)) != 0
    pairs = samples.state.astype(np.int64) * 2 + preempted
    return each(pairs, lambda pair: state_letter(pair >> 1, bool(pair & 1)) or UNKNOWN_VALUE)


def _wakers(samples: ProfileSamples) -> list[str]:
    pids = each(samples.waker_pid, lambda pid: "?" if pid < 0 else str(pid))
    tids = each(samples.waker_tid, str)
    both = [f"{pid}/{tid}" for pid, tid in zip(pids, tids, strict=True)]
    return chosen(samples.waker_tid >= 0, both, [UNKNOWN_VALUE] * len(both))


def _not_negative(number: int) -> str:
    return str(number) if number >= 0 else UNKNOWN_VALUE


def _flags(flags: int) -> str:
    names = [str(flag.name).lower() for flag in SampleFlag if flag & flags and flag != SampleFlag.OFFCPU]
    return "|".join(names) or UNKNOWN_VALUE
