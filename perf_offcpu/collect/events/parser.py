# SPDX-License-Identifier: Apache-2.0
"""The on-CPU events that `-e` can name, spelled as in perf.

* software, hardware and cache events by name: `cpu-clock`, `cycles`, `L1-dcache-load-misses`;
* `rNNN`, a raw code of the machine's own PMU in hexadecimal;
* `PMU/TERM=VALUE,.../`, as sysfs describes the PMU: `cpu/event=0xc0,umask=0x01/`;
* `SYSTEM:NAME`, a tracepoint.

Modifiers follow a colon, or the slash of a PMU: `cycles:u`, `cpu/event=0xc0/pp`. `none` stands for a
recording of off-CPU time alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from perf_offcpu.abi.attr import AttrFlag, PerfType, SoftwareConfig
from perf_offcpu.collect.events import names
from perf_offcpu.collect.events.names import CYCLES, HARDWARE, SOFTWARE
from perf_offcpu.collect.events.pmu import parse_pmu_event
from perf_offcpu.collect.events.tracepoints import tracepoint_id
from perf_offcpu.errors import UsageError

DEFAULT_EVENT = "cpu-clock"
NO_EVENT = "none"


@dataclass(frozen=True, slots=True)
class SamplingEvent:
    """An on-CPU event to sample.

    Args:
        name: as the user wrote it, or as in `name=`.
        type, config, config1, config2, flags: fields of the attr.
        period, frequency_hz: terms of the event, 0 if not given.
        most_precise: use the highest precise_ip that the kernel takes.
    """

    name: str
    type: int
    config: int
    flags: AttrFlag = AttrFlag(0)
    config1: int = 0
    config2: int = 0
    period: int = 0
    frequency_hz: int = 0
    most_precise: bool = False

    @property
    def is_tracepoint(self) -> bool:
        """True for a tracepoint, whose samples hold its own data."""
        return self.type == PerfType.TRACEPOINT

    def fallback(self) -> SamplingEvent | None:
        """Return the event that perf takes where the hardware does not count this one: a clock for cycles."""
        if (self.type, self.config) != (PerfType.HARDWARE, CYCLES):
            return None
        precise = AttrFlag.PRECISE_IP_1 | AttrFlag.PRECISE_IP_2
        name = re.sub("^(cpu-)?cycles", DEFAULT_EVENT, self.name)
        clock = (name, PerfType.SOFTWARE, SoftwareConfig.CPU_CLOCK, self.flags & ~precise)
        return SamplingEvent(*clock, period=self.period, frequency_hz=self.frequency_hz)


def parse_events(texts: Iterable[str]) -> tuple[SamplingEvent, ...]:
    """Parse all `-e` options, each a list separated by commas; return events in this order, () for `none`.

    Raises:
        UsageError: an event is unknown, named twice, or `none` is not alone.
    """
    events = [name.strip() for text in texts for name in _split(text)]
    if NO_EVENT in events:
        if len(events) > 1:
            raise UsageError(f"-e none records off-CPU time alone: name no other event ({', '.join(events)})")
        return ()
    if len(set(events)) < len(events):
        raise UsageError(f"-e names an event twice: {', '.join(events)}")
    return tuple(map(_parse_event, events))


def _split(text: str) -> Iterator[str]:
    """Split at the commas that do not stand between slashes."""
    rest = text
    while True:
        found = re.match(r"(?:[^,/]|/[^/]*(?:/|$))*", rest)
        end = found.end() if found else len(rest)
        yield rest[:end]
        if end == len(rest):
            return
        rest = rest[end + 1 :]


def _parse_event(text: str) -> SamplingEvent:
    if pmu := re.fullmatch(r"([^/:]*)/([^/]*)/:?(\w*)", text):
        return _modified(SamplingEvent(**parse_pmu_event(text, pmu[1], pmu[2])), text, pmu[3])
    parts = text.split(":")
    if (known := _by_name(parts[0])) and len(parts) <= 2:
        return _modified(SamplingEvent(text, *known), text, "".join(parts[1:]))
    if len(parts) in (2, 3):
        number = tracepoint_id(text, parts[0], parts[1])
        return _modified(SamplingEvent(text, PerfType.TRACEPOINT, number, period=1), text, "".join(parts[2:]))
    known_names = ", ".join((*SOFTWARE, *HARDWARE))
    raise UsageError(
        f"-e {text}: unknown event; known are {known_names}, cache events such as LLC-load-misses, "
        "rNNN (raw, hexadecimal), PMU/TERM=VALUE/, tracepoints SYSTEM:NAME, and none"
    )


def _by_name(name: str) -> tuple[PerfType, int] | None:
    if name in SOFTWARE:
        return PerfType.SOFTWARE, int(SOFTWARE[name])
    if name in HARDWARE:
        return PerfType.HARDWARE, HARDWARE[name]
    if name.lower() in names.CACHE_CONFIGS:
        return PerfType.HW_CACHE, names.CACHE_CONFIGS[name.lower()]
    if re.fullmatch(r"r[0-9a-fA-F]{1,16}", name):
        return PerfType.RAW, int(name[1:], 16)
    return None


def _modified(event: SamplingEvent, text: str, modifiers: str) -> SamplingEvent:
    found = names.modifier_flags(modifiers)
    if found is None:
        raise UsageError(f"-e {text}: unknown modifier {modifiers!r}; known are {names.MODIFIERS}")
    return replace(event, flags=found[0], most_precise=found[1])
