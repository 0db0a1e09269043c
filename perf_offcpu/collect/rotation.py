# SPDX-License-Identifier: Apache-2.0
"""When a recording goes on in a new file, and what its files are called: `--switch-output`.

As in perf: at a signal (SIGUSR2), when a file has reached a size, or after a time. Each file bears the time
at which it was begun behind its name, to the hundredth of a second, as `perf record --timestamp-filename`.

Source: tools/perf/builtin-record.c: switch_output_setup().
"""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from perf_offcpu.errors import UsageError

_SIZES = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Rotation:
    """What begins a new file, beside SIGUSR2, which always does.

    Args:
        size_bytes: a file of that size, 0 none.
        seconds: so much time, 0 none.
        max_files: the oldest files beyond that number are removed; 0 none are.
    """

    size_bytes: int = 0
    seconds: int = 0
    max_files: int = 0


def parse_rotation(text: str, max_files: int = 0) -> Rotation:
    """`signal`, a size such as 100M, or a time such as 30s.

    Raises:
        UsageError: it is none of these.
    """
    if text == "signal":
        return Rotation(max_files=max_files)
    found = re.fullmatch(r"([1-9]\d{0,15})([BKMGsmhd])", text, re.ASCII)
    if not found:
        raise UsageError(
            f"--switch-output {text}: not a size (100M), a time (30s, 5m) or signal; before a command write "
            "--switch-output=signal"
        )
    number, unit = int(found[1]), found[2]
    if unit in _SIZES:
        return Rotation(size_bytes=number * _SIZES[unit], max_files=max_files)
    return Rotation(seconds=number * _TIMES[unit], max_files=max_files)


class FileNames:
    """Names of the files of one recording, in turn; the oldest files are removed as `max_files` says."""

    def __init__(self, path: str, rotation: Rotation) -> None:
        self._path, self._rotation = path, rotation
        self._names: deque[str] = deque()
        self._hundredths = 0

    def next(self) -> str:
        """The name of a file begun now; no name is given twice."""
        self._hundredths = max(int(time.time() * 100), self._hundredths + 1)
        while Path(name := self._name()).exists():
            self._hundredths += 1
        self._names.append(name)
        return name

    def forget_oldest(self) -> None:
        """Remove files beyond the number that is wanted."""
        while self._rotation.max_files and len(self._names) > self._rotation.max_files:
            Path(self._names.popleft()).unlink(missing_ok=True)

    def _name(self) -> str:
        seconds, hundredths = divmod(self._hundredths, 100)
        return f"{self._path}.{time.strftime('%Y%m%d%H%M%S', time.localtime(seconds))}{hundredths:02}"
