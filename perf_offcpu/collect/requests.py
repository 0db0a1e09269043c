# SPDX-License-Identifier: Apache-2.0
"""Requests to a recorder that runs: the commands of `--control`, and SIGUSR2 for a new file.

`enable` and `disable` are left to the session, which pauses and goes on; the other commands are carried out
here, or noted until the session has time for them.
"""

from __future__ import annotations

from collections.abc import Callable

from perf_offcpu.collect.control import LEAST_PERIOD, Command, Control
from perf_offcpu.collect.options import RecordOptions
from perf_offcpu.collect.system.signals import RecordingSignals
from perf_offcpu.errors import UsageError
from perf_offcpu.units import parse_time

_NEED_NEW_FILE = ("period", "snapshot")


class Requests:
    """The requests of one recording.

    Args:
        say: is called with a sentence on a command that cannot be carried out.

    Attributes:
        control: the commands that have come.
        period_ns: sampling period of waits for the next file; 0: waits are not sampled by length.
        stopping: the recording shall end.
    """

    def __init__(self, options: RecordOptions, signals: RecordingSignals, say: Callable[[str], None]) -> None:
        self.control = Control(options.control)
        self.period_ns, self.stopping = options.off_cpu_period_ns, False
        self._has_files, self._signals, self._say = options.rotation is not None, signals, say

    def obey(self, expected: str) -> bool:
        """Carry out and acknowledge the commands up to the expected one, which is left to the caller.

        Returns:
            Whether the expected command has come.
        """
        while not self.stopping and (command := self.control.next()) is not None:
            if command.name == expected:
                return True
            self._carry_out(command)
            self.control.acknowledge()
        return False

    def take_rotate(self) -> bool:
        """Return whether a new file was asked for since the last call."""
        asked, self._signals.rotate = self._signals.rotate, False
        return asked

    def _carry_out(self, command: Command) -> None:
        if command.name in _NEED_NEW_FILE and not self._has_files:
            self._say(f"--control: {command.name}: needs a new file, and there is no --switch-output")
        elif command.name == "period":
            self._change_period(command.argument)
        elif command.name == "snapshot":
            self._signals.rotate = True
        elif command.name == "stop":
            self.stopping = True

    def _change_period(self, text: str) -> None:
        """Sample with another period from the next file on, which begins at once."""
        if not self.period_ns:
            self._say("--control: period: waits are not sampled by length (--off-cpu-period)")
            return
        try:
            self.period_ns = parse_time("--control: period", text, "ms", LEAST_PERIOD)
            self._signals.rotate = True
        except UsageError as problem:
            self._say(str(problem))
