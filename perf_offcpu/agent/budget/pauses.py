# SPDX-License-Identifier: Apache-2.0
"""Choose whether a recorder follows processes during a pause.

If it does, its file stays open. Otherwise a file ends with the pause and a new one begins after it, which has
to be described, read and symbolized, too: about half a second of CPU time. Where programs start all the time,
following them costs more than that.
"""

from __future__ import annotations

from typing import Final

COSTLY_S: Final = 0.5
"""CPU time of a recorder in a pause from which on a file for each part of a minute is cheaper."""
_FOR_S: Final = 600.0
"""Time after which the recorder follows processes again, to see whether that has become cheap."""


class Pauses:
    """The pauses of a recorder.

    Attributes:
        paused: recording is off until the next minute.
        following: the recorder follows processes meanwhile.
    """

    def __init__(self) -> None:
        self.paused = self.following = False
        self._cpu_s, self._costly_until_s = 0.0, 0.0

    def begin(self, now_s: float, cpu_s: float, is_short: bool) -> None:
        """Begin a pause.

        Args:
            cpu_s: CPU time of the recorder up to now.
            is_short: it ends with the minute.
        """
        self.paused, self.following = True, is_short and now_s >= self._costly_until_s
        self._cpu_s = cpu_s

    def look(self, now_s: float, cpu_s: float) -> None:
        """Note at the end of a minute the CPU time of following processes; arguments as of `begin`."""
        if self.following and cpu_s - self._cpu_s > COSTLY_S:
            self._costly_until_s = now_s + _FOR_S
        self._cpu_s = cpu_s
