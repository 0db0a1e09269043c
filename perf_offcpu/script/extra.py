# SPDX-License-Identifier: Apache-2.0
"""Fields that few events sample, as `perf script -F` prints them: data addresses, registers, branches, …

As process_event() of tools/perf/builtin-script.c has them. Where an event has not sampled a field, `-` stands
in place of a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.attr import Attr, PerfType, SampleType, SoftwareConfig
from perf_offcpu.abi.branches import branch_flags_text
from perf_offcpu.abi.data_source import data_source_text
from perf_offcpu.abi.registers import register_names
from perf_offcpu.errors import UsageError
from perf_offcpu.model.profile import Profile, ProfileSamples
from perf_offcpu.script.field_places import BRANCH_WORDS, FieldPlaces
from perf_offcpu.script.fields import FieldChoice
from perf_offcpu.script.frames import FrameTexts
from perf_offcpu.script.tracepoints.text import reader_of, remembered, text_maker
from perf_offcpu.script.tracepoints.values import Text
from perf_offcpu.script.waits import UNKNOWN_VALUE
from perf_offcpu.text import UNKNOWN, printable

_Texts = Callable[[ProfileSamples], list[str]]
_DATA_SRC_LONGEST = 99
"""perf has room for so many characters."""


_SAMPLED = {
    "trace": (SampleType.RAW, "-e SYSTEM:TRACEPOINT"),
    "addr": (SampleType.ADDR, "-d"),
    "data_src": (SampleType.DATA_SRC, "-d"),
    "weight": (SampleType.WEIGHT | SampleType.WEIGHT_STRUCT, "-W"),
    "ins_lat": (SampleType.WEIGHT_STRUCT, "-W"),
    "retire_lat": (SampleType.WEIGHT_STRUCT, "-W"),
    "transaction": (SampleType.TRANSACTION, "--transaction"),
    "iregs": (SampleType.REGS_INTR, "--intr-regs"),
    "uregs": (SampleType.REGS_USER, "--user-regs"),
    "brstack": (SampleType.BRANCH_STACK, "-b"),
    "brstacksym": (SampleType.BRANCH_STACK, "-b"),
    "bpf-output": (SampleType.RAW, "-e bpf-output"),
    "phys_addr": (SampleType.PHYS_ADDR, "--phys-data"),
    "data_page_size": (SampleType.DATA_PAGE_SIZE, "--data-page-size"),
    "code_page_size": (SampleType.CODE_PAGE_SIZE, "--code-page-size"),
}
"""Field → the bit with which it is sampled, and the option of perf record that asks for it."""

_OF = {"trace": PerfType.TRACEPOINT, "bpf-output": PerfType.SOFTWARE}
"""Fields that only events of one type have."""


def check_sampled(profile: Profile, fields: FieldChoice) -> None:
    """Raise UsageError if a field is asked for that no event has sampled."""
    for name in sorted(fields.all_asked() & _SAMPLED.keys()):
        bit, option = _SAMPLED[name]
        attrs = [event.attr for event in profile.evsels if name not in _OF or _is_type(event.attr, _OF[name])]
        if not any(_has(attr, bit) for attr in attrs):
            raise UsageError(
                f"--fields: no event of {profile.meta.source or 'the recording'} has sampled '{name}' "
                f"(perf record {option})"
            )


def _is_type(attr: Attr | None, kind: PerfType) -> bool:
    return attr is not None and attr.type == kind


class ExtraTexts:
    """The text of such fields of one profile's samples.

    Args:
        places: where their addresses lie.
        fields: which fields are shown.
        frames: names places.
    """

    def __init__(
        self, profile: Profile, places: FieldPlaces, fields: FieldChoice, frames: FrameTexts
    ) -> None:
        self.profile, self.places, self.fields, self.frames = profile, places, fields, frames
        self._makers: dict[int, Text | None] = {}
        self._data_src_width = 0

    def in_front(self) -> list[_Texts]:
        """What makes the columns that stand in front of the frames, in perf's order."""
        return self._chosen(
            {
                "trace": self._traces,
                "addr": self._addresses,
                "data_src": self._data_sources,
                "weight": self._weights,
                "ins_lat": lambda samples: self._numbers("var2_w", samples, "16d"),
                "retire_lat": lambda samples: self._numbers("var3_w", samples, "16d"),
                "transaction": lambda samples: self._numbers("transaction", samples, "16x"),
            }
        )

    def behind(self) -> list[_Texts]:
        """What makes the columns that stand behind them."""
        branches = "brstack" if self.fields.has("brstack") else "brstacksym"
        return self._chosen(
            {
                "iregs": lambda samples: self._registers("regs_intr", samples),
                "uregs": lambda samples: self._registers("regs_user", samples),
                branches: self._branches,
                "bpf-output": self._bpf_outputs,
                "phys_addr": lambda samples: self._numbers("phys_addr", samples, "16x"),
                "data_page_size": lambda samples: self._page_sizes("data_page_size", samples),
                "code_page_size": lambda samples: self._page_sizes("code_page_size", samples),
            }
        )

    def _chosen(self, makers: dict[str, _Texts]) -> list[_Texts]:
        return [make for name, make in makers.items() if self.fields.has(name)]

    # Numbers.

    def _scalar(self, name: str, samples: ProfileSamples) -> list[int | None]:
        values, known = self.profile.fields.scalar(name, samples.evsel, samples.field_row)
        return [value if has else None for value, has in zip(values.tolist(), known.tolist(), strict=True)]

    def _numbers(self, name: str, samples: ProfileSamples, form: str) -> list[str]:
        return [
            f"{UNKNOWN_VALUE:>16}" if value is None else f"{value:{form}}"
            for value in self._scalar(name, samples)
        ]

    def _weights(self, samples: ProfileSamples) -> list[str]:
        """With WEIGHT_STRUCT the lowest part is the weight."""
        # The last element answers for evsel -1: deferred callchains, perhaps of a recording without events.
        evsels = self.profile.evsels
        structured = [*(_has(event.attr, SampleType.WEIGHT_STRUCT) for event in evsels), False]
        both = zip(
            self._numbers("weight", samples, "16d"), self._numbers("var1_dw", samples, "16d"), strict=True
        )
        return [
            part if structured[evsel] else whole
            for evsel, (whole, part) in zip(samples.evsel.tolist(), both, strict=True)
        ]

    def _page_sizes(self, name: str, samples: ProfileSamples) -> list[str]:
        return [
            f" {UNKNOWN_VALUE if size is None else _page_size(size)}" for size in self._scalar(name, samples)
        ]

    def _data_sources(self, samples: ProfileSamples) -> list[str]:
        texts = []
        for value in self._scalar("data_src", samples):
            text = f"{UNKNOWN_VALUE:>16}" if value is None else f"{value:16x} {data_source_text(value)}"
            text = text[:_DATA_SRC_LONGEST]
            self._data_src_width = max(self._data_src_width, len(text))
            texts.append(text.ljust(self._data_src_width))
        return texts

    # Places.

    def _addresses(self, samples: ProfileSamples) -> list[str]:
        numbers = self._numbers("addr", samples, "16x")
        if not self.fields.has("sym", "dso"):
            return numbers
        texts = []
        for number, evsel, row in zip(
            numbers, samples.evsel.tolist(), samples.field_row.tolist(), strict=True
        ):
            frames = self.places.addr.get(evsel)
            place = "" if frames is None or row < 0 else self._place(int(frames[row]))
            texts.append(number + place)
        return texts

    def _place(self, frame: int) -> str:
        symbol, dso = self._symbol_and_dso(frame, self.fields.has("symoff"))
        parts = [f" {symbol}"] if self.fields.has("sym") else []
        return "".join([*parts, f" ({dso})"] if self.fields.has("dso") else parts)

    def _symbol_and_dso(self, frame: int, offset: bool) -> tuple[str, str]:
        if frame < 0:
            return UNKNOWN, UNKNOWN
        return self.frames.symbol(frame, offset), self.frames.dso(frame)

    def _branches(self, samples: ProfileSamples) -> list[str]:
        return [
            "".join(self._branch_stack(evsel, row))
            for evsel, row in zip(samples.evsel.tolist(), samples.field_row.tolist(), strict=True)
        ]

    def _branch_stack(self, evsel: int, row: int) -> list[str]:
        event = self.profile.fields.events.get(evsel)
        items = event.arrays.get("branch_stack") if event is not None else None
        if items is None or row < 0:
            return []
        by_name, texts = not self.fields.has("brstack"), []
        first = int(items.offsets[row]) // BRANCH_WORDS
        for number, words in enumerate(items.row(row).reshape(-1, BRANCH_WORDS).tolist(), first):
            ends = []
            for side in range(2):
                frame = int(self.places.branches[evsel][2 * number + side])
                symbol, dso = self._symbol_and_dso(frame, True)
                name = symbol if by_name else f"0x{words[side]:x}"
                ends.append(f"{name}({dso})" if self.fields.has("dso") else name)
            texts.append(f"{'' if by_name else ' '}{'/'.join(ends)}{branch_flags_text(words[2])} ")
        return texts

    # Texts.

    def _registers(self, name: str, samples: ProfileSamples) -> list[str]:
        texts = []
        abis = self._scalar(f"{name}_abi", samples)
        arch = self.profile.meta.arch
        mask_name = "sample_regs_user" if name == "regs_user" else "sample_regs_intr"
        masks = [*(getattr(event.attr, mask_name, 0) for event in self.profile.evsels), 0]
        named = [register_names(arch, mask) for mask in masks]
        for abi, evsel, row in zip(abis, samples.evsel.tolist(), samples.field_row.tolist(), strict=True):
            values = self._array(name, evsel, row)
            shown = [
                f"{register:>5}:0x{value:x} " for register, value in zip(named[evsel], values, strict=False)
            ]
            texts.append(f" ABI:{abi} {''.join(shown)}" if abi else "")
        return texts

    def _array(self, name: str, evsel: int, row: int) -> list[int]:
        found: NDArray[Any] | None = self.profile.fields.array(name, evsel, row)
        return [] if found is None else found.tolist()

    def _raw(self, evsel: int, row: int) -> bytes | None:
        found = self.profile.fields.array("raw", evsel, row)
        return None if found is None else found.tobytes()

    def _traces(self, samples: ProfileSamples) -> list[str]:
        texts = np.full(len(samples), "", object)
        for evsel in np.unique(samples.evsel).tolist():
            event = self.profile.fields.events.get(evsel)
            raw = event.arrays.get("raw") if event is not None else None
            make = self._trace_maker(evsel)
            if raw is None or make is None:
                continue
            mine = np.flatnonzero((samples.evsel == evsel) & (samples.field_row >= 0))
            rows, data = samples.field_row[mine], raw.values.data
            begins, ends = raw.offsets[rows].tolist(), raw.offsets[rows + 1].tolist()
            texts[mine] = [make(bytes(data[at:end])) for at, end in zip(begins, ends, strict=True)]
        found: list[str] = texts.tolist()
        return found

    def _trace_maker(self, evsel: int) -> Text | None:
        if evsel not in self._makers:
            attr = self.profile.evsels[evsel].attr if evsel >= 0 else None
            tracing, event = self.profile.tracing, None
            if attr is not None and attr.type == PerfType.TRACEPOINT and tracing is not None:
                event = tracing.formats.get(attr.config)
            self._makers[evsel] = None
            if tracing is not None and event is not None:
                make = text_maker(reader_of(tracing, event), self._function)
                self._makers[evsel] = remembered(lambda data: printable(make(data)), event)
        return self._makers[evsel]

    def _function(self, address: int) -> tuple[str, int] | None:
        frame = self.places.functions.get(address, -1)
        frames = self.profile.frames
        if frame < 0 or not frames.symbol[frame]:
            return None
        return self.profile.strings[frames.symbol[frame]], int(frames.offset[frame])

    def _bpf_outputs(self, samples: ProfileSamples) -> list[str]:
        is_output = [_is_bpf_output(event.attr) for event in self.profile.evsels]
        texts = []
        for evsel, row in zip(samples.evsel.tolist(), samples.field_row.tolist(), strict=True):
            raw = self._raw(evsel, row) if evsel >= 0 and is_output[evsel] else None
            texts.append("" if raw is None else _bpf_output(raw))
        return texts


def _has(attr: Attr | None, bit: SampleType) -> bool:
    return attr is not None and bool(attr.sample_type & bit)


def _is_bpf_output(attr: Attr | None) -> bool:
    return attr is not None and (attr.type, attr.config) == (PerfType.SOFTWARE, SoftwareConfig.BPF_OUTPUT)


def _page_size(size: int) -> str:
    """`4K`, `2M`: unit_number__scnprintf() of tools/perf/util/units.c."""
    unit = 0
    while size // 1024 > 1 and unit < 3:
        size, unit = size // 1024, unit + 1
    return f"{size}{'BKMG'[unit]}" if size else "N/A"


def _bpf_output(raw: bytes) -> str:
    """Bytes, 8 a line, in hex and as far as they are ASCII; and, if they are one, the string."""
    lines = []
    for at in range(0, len(raw), 8):
        part = raw[at : at + 8]
        shown = "".join(f" {byte:02x}" for byte in part) + "   " * (8 - len(part))
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part).ljust(8)
        lines.append(f"{'BPF output:' if not at else '':>17} {at:04x}:{shown}  {text}\n")
    string, _, rest = raw.partition(b"\0")
    if rest.strip(b"\0") == b"" and len(string) < len(raw) and all(32 <= byte < 127 for byte in string):
        lines.append(f'{"BPF string:":>17} "{string.decode("ascii")}"\n')
    return "\n" + "".join(lines)
