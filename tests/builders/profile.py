# SPDX-License-Identifier: Apache-2.0
"""Profiles made by hand, for tests of everything that takes one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perf_offcpu.abi.attr import Attr, SampleType
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.losses import LossCause, Stage
from perf_offcpu.model.callchains import Ragged, build_stack_tree, frames_of
from perf_offcpu.model.columns import Strings
from perf_offcpu.model.profile import Frames, Objects, Profile, ProfileSamples, Stacks
from perf_offcpu.model.recording import Comms, Evsel, Meta, SampleFlag, Tasks

OFFCPU = "offcpu-time"


@dataclass(frozen=True)
class Code:
    """A frame in full; a plain string stands for `Code(symbol=string)`."""

    symbol: str = ""
    dso: str = ""
    address: int = 0
    kernel: bool = False
    file: str = ""
    line: int = 0
    inline_depth: int = 0


Stack = Sequence[Any]
"""Frames, each a string or a `Code`; of a list of both mypy makes list[object]."""


def kernel(symbol: str) -> Code:
    return Code(symbol, "[kernel.kallsyms]", kernel=True)


def stack(text: str) -> Stack:
    """Return the frames of `root;…;leaf`: SYMBOL, SYMBOL_[k] of the kernel, or DSO!SYMBOL."""
    return [_code(word) for word in text.split(";")] if text else []


def _code(word: str) -> Code:
    dso, _, symbol = word.rpartition("!")
    return kernel(word.removesuffix("_[k]")) if word.endswith("_[k]") else Code(symbol, dso)


@dataclass
class ProfileBuilder:
    """Collects samples, then builds a checked Profile. `events`: name → unit; `meta`: fields; `build_ids`: by dso."""

    events: dict[str, str] = field(default_factory=lambda: {OFFCPU: "ns", "cpu-clock": "ns"})
    losses: Mapping[Any, int] = field(default_factory=dict)
    """By cause, or by a text that stands for one."""
    meta: dict[str, Any] = field(default_factory=dict)
    build_ids: dict[str, str] = field(default_factory=dict)
    comms: Iterable[tuple[int, int, int, str]] = ()
    """Names of threads: tid, pid, since when, name."""
    tasks: Iterable[tuple[int, ...]] = ()
    """Lives of threads: tid, pid, begin, end (-1 unknown), and the parent if it is known."""
    cgroups: dict[int, str] = field(default_factory=dict)
    _strings: Strings = field(default_factory=Strings)
    _codes: dict[Code, int] = field(default_factory=dict)
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _chains: list[list[int]] = field(default_factory=list)
    _waker_chains: list[list[int]] = field(default_factory=list)
    _objects: list[dict[str, Any]] = field(default_factory=list)

    def thing(
        self, name: str, kind: ObjectKind = ObjectKind.FUTEX, *, protocol: str = "", stable: str = "", **columns: Any
    ) -> int:
        """Add an object to wait for; the result is the value of the column `object` of samples."""
        texts = {"name": name, "stable": stable or name, "protocol": protocol}
        rows = {column: self._strings.intern(text) for column, text in texts.items()}
        self._objects.append({"kind": int(kind)} | rows | columns)
        return len(self._objects) - 1

    def sample(
        self, comm: str | bytes, path: Stack, weight: int, *, event: str = OFFCPU, tid: int = 100, pid: int = 100,
        flags: SampleFlag | None = None, waker_path: Stack | None = None, **columns: Any,
    ) -> "ProfileBuilder":  # fmt: skip
        """Add one sample. Paths are root first: `path` is empty for a sample without stack, `waker_path` is the
        waker's. `weight` is its period; `flags` are besides OFFCPU, which samples of `offcpu-time` always have;
        `columns` are other columns of ProfileSamples."""
        self._chains.append(self._chain(path))
        self._waker_chains.append(self._chain(waker_path or []))
        own = SampleFlag.OFFCPU if event == OFFCPU else SampleFlag(0)
        row = {
            "time_ns": 1_000_000 * len(self._rows), "period": weight, "evsel": list(self.events).index(event),
            "pid": pid, "tid": tid, "comm": self._strings.intern(comm), "flags": int(own | (flags or SampleFlag(0))),
        }  # fmt: skip
        self._rows.append(row | columns)
        return self

    def _chain(self, path: Stack) -> list[int]:
        codes = [Code(item) if isinstance(item, str) else item for item in reversed(path)]
        return [self._codes.setdefault(code, len(self._codes)) for code in codes]

    def build(self) -> Profile:
        parent, frame, both = build_stack_tree(Ragged.from_lists(self._chains + self._waker_chains))
        stack, waker_stack = np.split(both, [len(self._chains)])
        given, defaults = {name for row in self._rows for name in row}, ProfileSamples.filled(1)
        columns = {name: [row.get(name, int(getattr(defaults, name)[0])) for row in self._rows] for name in given}
        profile = Profile(
            samples=ProfileSamples.filled(len(self._rows), **{"stack": stack, "waker_stack": waker_stack} | columns),
            stacks=Stacks(parent, frame), frames=self._frames(), objects=self._things(), strings=self._strings,
            evsels=[Evsel(name, Attr(sample_type=SampleType.CALLCHAIN), unit) for name, unit in self.events.items()],
            losses={_cause(cause): count for cause, count in self.losses.items()},
            build_ids={self._strings.intern(dso): build_id for dso, build_id in self.build_ids.items()},
            comms=Comms.from_rows([(*row, self._strings.intern(name)) for *row, name in self.comms]),
            tasks=Tasks.from_rows(list(self.tasks)), cgroups=dict(self.cgroups), meta=Meta(**self.meta),
        )  # fmt: skip
        profile.check()
        return profile

    def _things(self) -> Objects:
        given, blank = {name for row in self._objects for name in row}, Objects.filled(1)
        columns = {name: [row.get(name, int(getattr(blank, name)[0])) for row in self._objects] for name in given}
        return Objects.filled(len(self._objects), **columns)

    def _frames(self) -> Frames:
        codes = list(self._codes)
        return Frames.filled(
            len(codes), symbol=self._strings.intern_all(code.symbol for code in codes),
            dso=self._strings.intern_all(code.dso for code in codes),
            address=np.array([code.address for code in codes], np.uint64),
            file=self._strings.intern_all(code.file for code in codes), line=[code.line for code in codes],
            inline_depth=[code.inline_depth for code in codes],
            cpumode=[CpuMode.KERNEL if code.kernel else CpuMode.USER for code in codes],
        )  # fmt: skip


def _cause(cause: LossCause | str) -> LossCause:
    return cause if isinstance(cause, LossCause) else LossCause(Stage.FILE, cause, cause)


def functions_of(profile: Profile, stack: int) -> list[str]:
    """Return the names of the frames of a stack, root first."""
    frames = frames_of(profile.stacks.parent, profile.stacks.frame, stack)
    return [profile.strings[row] for row in profile.frames.symbol[frames].tolist()]


def classes_of(profile: Profile) -> list[str]:
    return [WaitClass(number).label for number in classify(profile).wait_class.tolist()]
