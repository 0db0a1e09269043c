# SPDX-License-Identifier: Apache-2.0
"""Parse lengths of time and sizes: the one syntax of options, files of options and commands. A number, with or without
a fraction, and a suffix: 250us, 1.5s, 2h; 512K, 1G. A number without suffix is in the unit of the option, mostly
perf's. Imports little, because each command line needs it."""

import re
from collections.abc import Callable
from typing import Final

from perf_offcpu.errors import UsageError

_Parse = Callable[[str], int | None]
UNITS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}  # nanoseconds in each unit of `--unit`
_TIMES: Final = UNITS | {"m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9, "w": 7 * 86400 * 10**9}
_SIZES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_NUMBER: Final = r"(?=\.?\d)(\d{0,15})(?:\.(\d{0,9}))?"
_TIME: Final = re.compile(_NUMBER + "([a-z]*)", re.ASCII)
_SIZE: Final = re.compile(_NUMBER + "(?:([KMGT]?)(i?B)?)", re.ASCII | re.IGNORECASE)
LONGEST: Final = "100000d"  # longest time that is accepted: its nanoseconds fit an int64
TIMES: Final = "250us, 5ms, 60s, 2h"  # examples for messages, as SIZES
SIZES: Final = "512K, 100M, 2G"


def time_ns(text: str, unit: str = "") -> int | None:
    """Parse a length of time such as `1.5ms`, or `2` in `unit`, to ns; None for others, also for `2` without `unit`."""
    match = _TIME.fullmatch(text)
    factor = _TIMES.get(match[3] or unit) if match else None
    return None if match is None or factor is None else _product(match, factor)


def size_bytes(text: str, unit: int = 1) -> int | None:
    """Parse a size such as `4M`, or `4` (times `unit`), to bytes; None for other texts, also for `4` if `unit` is 0."""
    match = _SIZE.fullmatch(text)
    factor = 0 if match is None else _SIZES[match[3].upper()] if match[3] or match[4] else unit
    return _product(match, factor) if match and factor else None


def _product(match: re.Match[str], factor: int) -> int:
    """Return the number that a pattern with _NUMBER matched times a factor, rounded down."""
    fraction = match[2] or ""
    number: int = int(match[1] or 0) * factor + int(fraction or 0) * factor // 10 ** len(fraction)
    return number


def parse_time(option: str, value: object, unit: str, least: str = "0ns", most: str = LONGEST) -> int:
    """Parse the value of an option, a text or a number of a configuration file, to ns. `unit`: of a number without
    suffix, "" to require a suffix; `least`, `most`: bounds, as texts. Raise UsageError, which names the option."""
    bare = f"; a number alone is in {unit}" if unit else ""
    kind = f"not a length of time ({TIMES}{bare})"
    return _bounded(option, value, time_ns(_text(value), unit), kind, (least, most), time_ns)


def parse_size(
    option: str, value: object, unit: tuple[str, int] = ("bytes", 1), least: str = "0", most: str = "1024T"
) -> int:
    """Parse the value of an option, a text or a number of a configuration file, to bytes. `unit`: name and bytes of the
    unit of a number without suffix; `least`, `most`: bounds, as texts. Raise UsageError, which names the option."""
    kind = f"not a size ({SIZES}; a number alone is in {unit[0]})"
    return _bounded(option, value, size_bytes(_text(value), unit[1]), kind, (least, most), size_bytes)


def _text(value: object) -> str:
    """Convert the value of an option to text; "" if it is neither a text nor a number."""
    if isinstance(value, float):
        return f"{value:.9f}"
    return str(value).strip() if isinstance(value, str) or type(value) is int else ""


def _bounded(option: str, value: object, number: int | None, kind: str, bounds: tuple[str, str], parse: _Parse) -> int:
    """Return `number`, the parsed value of an option; raise UsageError if it is None, with the reason `kind`, or
    outside of `bounds` (least, most), texts that `parse` parses."""
    subject = f"{option} {value}" if value != "" else f"{option} ''"
    if number is None:
        raise UsageError(f"{subject}: {kind}")
    if number < (parse(bounds[0]) or 0):
        raise UsageError(f"{subject}: at least {bounds[0]}")
    if number > (parse(bounds[1]) or 0):
        raise UsageError(f"{subject}: at most {bounds[1]}")
    return number
