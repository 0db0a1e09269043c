# SPDX-License-Identifier: Apache-2.0
"""Events of PMUs as sysfs describes them: `cpu/event=0xc0,umask=0x01,name=work/`.

/sys/bus/event_source/devices/PMU has a file `type` (attr.type), a directory `format` whose files say which bits of
attr.config, config1 or config2 a term fills (`config:0-7,32-35`), and a directory `events` with named lists of terms.

Source: Documentation/ABI/testing/sysfs-bus-event_source-devices-{format,events}; tools/perf/util/pmu.c.
"""

# direct in this module: files of /sys, whose names are checked
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perf_offcpu.errors import UsageError

DEVICES = Path("/sys/bus/event_source/devices")

_WORD = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_FORMAT = re.compile(r"(config[12]?):(\d{1,2}(?:-\d{1,2})?(?:,\d{1,2}(?:-\d{1,2})?)*)\s*")


Fields = dict[str, Any]  # fields of a `SamplingEvent`

_CONFIGS = ("config", "config1", "config2")
_NUMBERS = {"period": "period", "freq": "frequency_hz"}


def parse_pmu_event(text: str, pmu: str, terms: str) -> Fields:
    """Parse the event `PMU/TERM=VALUE,TERM,.../` into arguments of `SamplingEvent`. `text`: the event as the user wrote
    it, for messages. Raises UsageError: there is no such PMU or term, or a value does not fit."""
    directory = DEVICES / pmu
    if not _WORD.fullmatch(pmu) or not (directory / "type").exists():
        known = ", ".join(sorted(path.name for path in DEVICES.glob("*"))) or "none"
        raise UsageError(f"-e {text}: this machine has no PMU {pmu}; it has {known}")
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
        known = sorted({path.name for kind in ("format", "events") for path in (directory / kind).glob("*")})
        raise UsageError(f"-e {text}: PMU {directory.name} has no term {name}; it has {', '.join(known) or 'none'}")


def _number(text: str, name: str, value: str | None) -> int:
    try:
        number = int(value or "", 0)
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise UsageError(f"-e {text}: {name}={value}: not a number such as 17 or 0x11")
    return number


def _fill(event: Fields, text: str, name: str, layout: str, value: int) -> None:
    """Put the bits of a value, lowest first, into the bit ranges of a config field that `layout` lists."""
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
