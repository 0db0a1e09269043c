# SPDX-License-Identifier: Apache-2.0
"""Rotation of the files of a recording, `--switch-output`: when a new one begins, and their names.

As in perf: at a signal (SIGUSR2), when a file has reached a size, or after a time. The name of each file ends with the
time at which it was begun, to the hundredth of a second, as with `perf record --timestamp-filename`.

Source: tools/perf/builtin-record.c: switch_output_setup()."""

import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from perf_offcpu.directories import Directory
from perf_offcpu.errors import UsageError
from perf_offcpu.units import SIZES, TIMES, size_bytes, time_ns


@dataclass(frozen=True, slots=True)
class Rotation:
    """Limits of size and age of a file, beyond which a new one begins; SIGUSR2 always begins one."""

    size_bytes: int = 0  # size at which a file ends, 0 for no limit
    seconds: float = 0  # age at which a file ends, 0 for no limit
    max_files: int = 0  # number of files to keep, the newest; 0 for all

    def is_due(self, size_bytes: int, seconds: float) -> bool:
        """Return whether a file of this size and age has reached one of the limits."""
        return 0 < self.size_bytes <= size_bytes or 0 < self.seconds <= seconds


def parse_rotation(text: str, max_files: int = 0) -> Rotation:
    """Parse `signal`, a size such as 100M, or a time such as 30s. Raises UsageError: the text is none of these."""
    if text == "signal":
        return Rotation(max_files=max_files)
    seconds = (time_ns(text) or 0) / 1e9  # first: m is a minute, M a megabyte
    size = 0 if seconds else size_bytes(text, unit=0)
    if not seconds and not size:
        raise UsageError(
            f"--switch-output {text}: not a size ({SIZES}), a length of time ({TIMES}) or signal; before a "
            "command write --switch-output=signal"
        )
    return Rotation(size or 0, seconds, max_files)


class FileNames:
    """Make the names of the files of one recording, and remove the oldest files beyond `max_files`."""

    def __init__(self, path: str, rotation: Rotation) -> None:
        self._path, self._max_files = path, rotation.max_files
        self._names: deque[str] = deque()
        self._hundredths = 0

    def next(self) -> str:
        """Return the name of a file that is begun now; no name is returned twice."""
        self._hundredths = max(int(time.time() * 100), self._hundredths + 1)
        name = self._name()
        # A directory that cannot be opened is reported where the file is created.
        with suppress(OSError), Directory.named(os.path.dirname(self._path)) as directory:
            while directory.status(os.path.basename(name)) is not None:
                self._hundredths += 1
                name = self._name()
        self._names.append(name)
        return name

    def forget_oldest(self) -> None:
        """Remove the oldest files beyond `max_files`."""
        while self._max_files and len(self._names) > self._max_files:
            with Directory.named(os.path.dirname(self._path)) as directory:
                directory.remove(os.path.basename(self._names.popleft()))

    def _name(self) -> str:
        seconds, hundredths = divmod(self._hundredths, 100)
        return f"{self._path}.{time.strftime('%Y%m%d%H%M%S', time.localtime(seconds))}{hundredths:02}"
