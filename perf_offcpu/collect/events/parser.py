# SPDX-License-Identifier: Apache-2.0
"""The on-CPU events that `-e` can name, spelled as in perf.

* software, hardware and cache events by name: `cpu-clock`, `cycles`, `L1-dcache-load-misses`;
* `rNNN`, a raw code of the machine's own PMU in hexadecimal;
* `PMU/TERM=VALUE,.../`, as sysfs describes the PMU: `cpu/event=0xc0,umask=0x01/`;
* `SYSTEM:NAME`, a tracepoint.

Modifiers follow a colon, or the slash of a PMU: `cycles:u`, `cpu/event=0xc0/pp`. `none`: off-CPU time alone.

A sample of a tracepoint holds a structure of the running kernel. perf opens a file with such an event only if the
feature TRACING_DATA describes its layout (`perfdata.tracing_data` reads that feature).

Source: tools/perf/util/parse-events.c, evsel.c (names) and pmu.c, include/uapi/linux/perf_event.h (numbers),
Documentation/ABI/testing/sysfs-bus-event_source-devices-{format,events}; of tracepoints
tools/perf/util/trace-event-info.c, tools/lib/api/fs/tracing_path.c."""

# direct in this module: files of /sys and tracefs, whose names are checked
import ctypes
import functools
import operator
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from perf_offcpu.abi.attr import AttrFlag, PerfType, SoftwareConfig
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.errors import CapabilityError, UsageError
from perf_offcpu.perfdata.tracing_data import tracing_data_body

DEFAULT_EVENT = "cpu-clock"
NO_EVENT = "none"
CYCLES = 0
_SOFTWARE = """
cpu-clock task-clock page-faults/faults context-switches/cs cpu-migrations/migrations minor-faults major-faults
alignment-faults emulation-faults - - cgroup-switches
"""
"""Names of the values of enum perf_sw_ids that can be sampled, in order."""
_HARDWARE = """
cycles/cpu-cycles instructions cache-references cache-misses branches/branch-instructions branch-misses bus-cycles
stalled-cycles-frontend/idle-cycles-frontend stalled-cycles-backend/idle-cycles-backend ref-cycles
"""
"""Names of the values of enum perf_hw_id, in order."""
SOFTWARE, HARDWARE = (
    {name: number for number, names in enumerate(text.split()) for name in names.split("/") if name != "-"}
    for text in (_SOFTWARE, _HARDWARE)
)

# enum perf_hw_cache_id, perf_hw_cache_op_id, perf_hw_cache_op_result_id; the first name of each is perf's own
_CACHES = (
    ("L1-dcache", "l1-d", "l1d", "L1-data"),
    ("L1-icache", "l1-i", "l1i", "L1-instruction"),
    ("LLC", "L2"),
    ("dTLB", "d-tlb", "Data-TLB"),
    ("iTLB", "i-tlb", "Instruction-TLB"),
    ("branch", "bpu", "btb", "bpc"),
    ("node",),
)
_OPERATIONS = (
    ("load", "loads", "read"),
    ("store", "stores", "write"),
    ("prefetch", "prefetches", "speculative-read", "speculative-load"),
)
_RESULTS = (("refs", "Reference", "ops", "access"), ("misses", "miss"))


def _cache_configs() -> dict[str, int]:
    """Return cache[-operation][-result] in lower case → attr.config; default operation is load, default result refs."""
    configs = {}
    for (cache, names), (operation, operations), (result, results) in product(
        enumerate(_CACHES), enumerate(_OPERATIONS), enumerate(_RESULTS)
    ):
        middles = [f"-{word}" for word in operations] + ([""] if not operation else [])
        ends = [f"-{word}" for word in results] + ([""] if not result else [])
        for spelling in map("".join, product(names, middles, ends)):
            configs[spelling.lower()] = cache | operation << 8 | result << 16
    return configs


CACHE_CONFIGS = _cache_configs()  # name in lower case, such as `l1-dcache-load-misses` or `dtlb-loads` → attr.config

_MODES = {"u": AttrFlag.EXCLUDE_USER, "k": AttrFlag.EXCLUDE_KERNEL, "h": AttrFlag.EXCLUDE_HV}
_SIDES = {"G": AttrFlag.EXCLUDE_GUEST, "H": AttrFlag.EXCLUDE_HOST}
_OTHERS = {"I": AttrFlag.EXCLUDE_IDLE, "D": AttrFlag.PINNED, "e": AttrFlag.EXCLUSIVE}
MODIFIERS = "u, k, h, G, H, I, D, e, p, pp, ppp and P"


@dataclass(frozen=True, slots=True)
class SamplingEvent:
    """An on-CPU event to sample, as parsed from `-e`: fields of the attr, and terms of the event."""

    name: str  # as the user wrote it, or the value of the term `name=`
    type: int  # of the attr, as the next four
    config: int
    flags: AttrFlag = AttrFlag(0)
    config1: int = 0
    config2: int = 0
    period: int = 0  # 0 if not given
    frequency_hz: int = 0  # 0 if not given
    most_precise: bool = False  # use the highest precise_ip that the kernel takes

    @property
    def is_tracepoint(self) -> bool:
        """True for a tracepoint, whose samples hold raw data of its own format."""
        return self.type == PerfType.TRACEPOINT

    def fallback(self) -> "SamplingEvent | None":
        """Return the event to use where the hardware does not count this one: cpu-clock for cycles, else None."""
        if (self.type, self.config) != (PerfType.HARDWARE, CYCLES):
            return None
        precise = AttrFlag.PRECISE_IP_1 | AttrFlag.PRECISE_IP_2
        name = re.sub("^(cpu-)?cycles", DEFAULT_EVENT, self.name)
        clock = (name, PerfType.SOFTWARE, SoftwareConfig.CPU_CLOCK, self.flags & ~precise)
        return SamplingEvent(*clock, period=self.period, frequency_hz=self.frequency_hz)


def parse_events(texts: Iterable[str]) -> tuple[SamplingEvent, ...]:
    """Parse all `-e` options, each a list separated by commas; return the events in their order, () for `none`. Raises
    UsageError: an event is unknown, named twice, or `none` is not alone; CapabilityError: tracefs cannot be read."""
    events = [name.strip() for text in texts for name in _split(text)]
    if NO_EVENT in events:
        if len(events) > 1:
            raise UsageError(f"-e none records off-CPU time alone: name no other event ({', '.join(events)})")
        return ()
    if len(set(events)) < len(events):
        raise UsageError(f"-e names an event twice: {', '.join(events)}")
    return tuple(map(_parse_event, events))


def _split(text: str) -> Iterator[str]:
    """Split the text of an `-e` option at commas that are not between slashes; yield the events."""
    unread = text
    while event := re.match(r"((?:[^,/]|/[^/]*(?:/|$))*)(,?)", unread):
        yield event[1]
        if not event[2]:
            return
        unread = unread[event.end() :]


def _parse_event(text: str) -> SamplingEvent:
    if pmu := re.fullmatch(r"([^/:]*)/([^/]*)/:?(\w*)", text):
        return _modified(SamplingEvent(**parse_pmu_event(text, pmu[1], pmu[2])), text, pmu[3])
    parts = text.split(":")
    if (generic := _by_name(parts[0])) and len(parts) <= 2:
        return _modified(SamplingEvent(text, *generic), text, "".join(parts[1:]))
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
        return PerfType.SOFTWARE, SOFTWARE[name]
    if name in HARDWARE:
        return PerfType.HARDWARE, HARDWARE[name]
    if name.lower() in CACHE_CONFIGS:
        return PerfType.HW_CACHE, CACHE_CONFIGS[name.lower()]
    if re.fullmatch(r"r[0-9a-fA-F]{1,16}", name):
        return PerfType.RAW, int(name[1:], 16)
    return None


def _modified(event: SamplingEvent, text: str, modifiers: str) -> SamplingEvent:
    flags_and_precision = modifier_flags(modifiers)
    if flags_and_precision is None:
        raise UsageError(f"-e {text}: unknown modifier {modifiers!r}; known are {MODIFIERS}")
    return replace(event, flags=flags_and_precision[0], most_precise=flags_and_precision[1])


def modifier_flags(text: str) -> tuple[AttrFlag, bool] | None:
    """Return (attr flags for the modifier letters of an event, True if `P`, most precise, is among them); None if a
    letter is unknown. As in perf, naming some modes (u, k, h) or sides (G, H) excludes the others."""
    plain = text.replace("p", "")
    precise = text.count("p")
    if not re.fullmatch(r"[ukhGHIDePp]*", text) or precise > 3 or len(set(plain)) < len(plain):
        return None
    flags = [AttrFlag(precise * AttrFlag.PRECISE_IP_1)]
    for kinds in (_MODES, _SIDES):
        if set(kinds) & set(text):
            flags += [flag for letter, flag in kinds.items() if letter not in text]
    flags += [flag for letter, flag in _OTHERS.items() if letter in text]
    return functools.reduce(operator.or_, flags), "P" in text


DEVICES = Path("/sys/bus/event_source/devices")
"""DEVICES/PMU has a file `type` (attr.type), a directory `format` whose files say which bits of attr.config, config1 or
config2 a term fills (`config:0-7,32-35`), and a directory `events` with named lists of terms."""
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_FORMAT = re.compile(r"(config[12]?):(\d{1,2}(?:-\d{1,2})?(?:,\d{1,2}(?:-\d{1,2})?)*)\s*")

Fields = dict[str, Any]  # fields of a `SamplingEvent`

_CONFIGS = ("config", "config1", "config2")
_NUMBERS = {"period": "period", "freq": "frequency_hz"}


def parse_pmu_event(text: str, pmu: str, terms: str) -> Fields:
    """Return the arguments of `SamplingEvent` for the event PMU/TERM=VALUE,TERM,.../. `text`: the event as the user
    wrote it, for messages. Raises UsageError: there is no such PMU or term, or a value does not fit."""
    directory = DEVICES / pmu
    if not _WORD.fullmatch(pmu) or not (directory / "type").exists():
        pmus = ", ".join(sorted(path.name for path in DEVICES.glob("*"))) or "none"
        raise UsageError(f"-e {text}: this machine has no PMU {pmu}; it has {pmus}")
    event: Fields = {"name": text, "type": int((directory / "type").read_text())} | dict.fromkeys(_CONFIGS, 0)
    for name, value in _terms(text, terms):
        _apply(event, text, directory, name, value)
    return event


def _terms(text: str, terms: str) -> Iterator[tuple[str, str | None]]:
    for term in filter(None, terms.split(",")):
        name, equals, value = term.strip().partition("=")
        if not _WORD.fullmatch(name) or (equals and not value):
            raise UsageError(f"-e {text}: {term!r} is no term: NAME or NAME=VALUE")
        yield name, value if equals else None


def _apply(event: Fields, text: str, directory: Path, name: str, value: str | None) -> None:
    if name == "name" and value:
        event["name"] = value
    elif name in _CONFIGS:
        event[name] |= _number(text, name, value)
    elif name in _NUMBERS:
        event[_NUMBERS[name]] = _number(text, name, value)
    elif (layout := directory / "format" / name).is_file():
        _fill(event, text, name, layout.read_text(), _number(text, name, "1" if value is None else value))
    elif value is None and (named := directory / "events" / name).is_file():
        for inner, inner_value in _terms(text, named.read_text().strip()):
            _apply(event, text, directory, inner, "1" if inner_value is None else inner_value)
    else:
        names = sorted({path.name for kind in ("format", "events") for path in (directory / kind).glob("*")})
        raise UsageError(f"-e {text}: PMU {directory.name} has no term {name}; it has {', '.join(names) or 'none'}")


def _number(text: str, name: str, value: str | None) -> int:
    try:
        number = int(value or "", 0)
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise UsageError(f"-e {text}: {name}={value}: not a number such as 17 or 0x11")
    return number


def _fill(event: Fields, text: str, name: str, layout: str, value: int) -> None:
    """Put the bits of `value`, lowest first, into the bit ranges of a config field of `event`. `layout`: these ranges,
    as in sysfs ("config:0-7,32-35"). `text`, `name`: event and term, for messages. Raises UsageError."""
    match = _FORMAT.fullmatch(layout)
    if not match:
        raise UsageError(f"-e {text}: the kernel's format of {name} is not understood: {layout.strip()}")
    left = value
    for part in match[2].split(","):
        low, _, high = part.partition("-")
        width = int(high or low) - int(low) + 1
        event[match[1]] |= (left & (1 << width) - 1) << int(low)
        left >>= width
    if left:
        raise UsageError(f"-e {text}: {name}={value:#x} is too large for its format {layout.strip()}")


TRACEFS = Path("/sys/kernel/tracing")
DEBUGFS = Path("/sys/kernel/debug")

_NAME = re.compile(r"\w{1,100}")


def tracepoint_id(text: str, system: str, name: str) -> int:
    """Return the id of the tracepoint `system`:`name`, its attr.config. `text`: the event as the user wrote it, for
    messages. Raises UsageError: the kernel has no such tracepoint; CapabilityError: tracefs cannot be read."""
    if not _NAME.fullmatch(system) or not _NAME.fullmatch(name):
        raise UsageError(f"-e {text}: unknown event; a tracepoint is SYSTEM:NAME, such as sched:sched_switch")
    events = events_directory(text)
    try:
        return int((events / system / name / "id").read_text())
    except PermissionError:
        raise CapabilityError(f"-e {text}: {events} may not be read", "run as root") from None
    except (OSError, ValueError):
        raise UsageError(f"-e {text}: unknown event; this kernel has no tracepoint {system}:{name}") from None


def events_directory(text: str) -> Path:
    """Return the directory in which tracefs lists events; mount tracefs if it is not mounted yet, as perf does. `text`:
    the event, for messages. Raises CapabilityError: tracefs is not mounted, and this process may not mount it."""
    for directory in (TRACEFS, DEBUGFS / "tracing"):
        if (directory / "events").is_dir():
            return directory / "events"
    if ctypes.CDLL(None).mount(b"nodev", os.fsencode(TRACEFS), b"tracefs", 0, None):
        raise CapabilityError(
            f"-e {text}: tracepoints are listed in tracefs, which is not mounted", f"mount -t tracefs nodev {TRACEFS}"
        )
    return TRACEFS / "events"


def tracing_data(names: Iterable[str]) -> bytes:
    """Return the body of the feature TRACING_DATA for tracepoints. `names`: SYSTEM:NAME[:MODIFIERS] of each."""
    systems: dict[bytes, list[bytes]] = {}
    events = events_directory("tracepoints")
    for system, name in dict.fromkeys(tuple(name.split(":")[:2]) for name in names):
        text = (events / system / name / "format").read_bytes()
        systems.setdefault(os.fsencode(system), []).append(text)
    headers = ((events / "header_page").read_bytes(), (events / "header_event").read_bytes())
    return tracing_data_body(headers, systems, NATIVE)
