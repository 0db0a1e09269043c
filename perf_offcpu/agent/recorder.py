# SPDX-License-Identifier: Apache-2.0
"""Control the recorder: `perf-offcpu record` as a child process that writes segments into the spool of agent or `top`.
It is a separate process, so that other work never delays the draining of rings. It ends when its parent ends for any
reason (`--until-exit`), completes its file, and holds the lock of the spool until then. Lines on its standard error
report complete files. Commands (`--control`) pause it and change its period: a new start takes a second of CPU time."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final

from perf_offcpu.agent.config import AgentConfig
from perf_offcpu.collect.system.privileges import keep_rights
from perf_offcpu.environment import child_environment
from perf_offcpu.files import read_kernel
from perf_offcpu.text import printable

SAMPLES_A_SECOND: Final = 50
"""Limit of samples a second for each percent of --max-cpu. Twice as many cost a sixth more: less time is recorded."""
_LONGEST_FILES, _LONGEST_FILE_S = 2, 600
"""Length of a file for which the agent never asks for another: this many segments, and this many seconds more."""
_LEAST_RATE: Final = 10
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SAID: Final = re.compile(r"\[ perf-offcpu record: (.*) \]")
_LONGEST_LINE: Final = 1000

ROTATE, ACCOUNT, PAUSE, RESUME = "snapshot", "account", "disable", "enable"
"""Commands: ROTATE ends the file and begins another (in a pause: at RESUME); ACCOUNT writes the sums up to now; PAUSE
records nothing until RESUME."""

Said = Callable[[tuple[str, str]], None]
"""Called with a kind (`recording`, `paused`, `account`, `complete`, `says`, `ended`) and a text."""


def arguments_of(config: AgentConfig, period_ns: int, output: str) -> list[str]:
    """Return the agent's options of `record`, to sample by `period_ns` of off-CPU time into files `output`SUFFIX."""
    rate = max(_LEAST_RATE, round(config.max_cpu * 100 * SAMPLES_A_SECOND))
    own = [
        *("--off-cpu-period", f"{period_ns}ns"),
        *("--max-rate", str(rate)),
        "--no-jvm-names",  # some MB for each JVM, in each segment
        "--task-rate=0",
        f"--switch-output={_LONGEST_FILES * config.segment_s + _LONGEST_FILE_S}s",
        *("-o", output),
    ]
    return [*own, *config.record]


class Recorder:
    """Recorder process, which ends when this process does. A thread calls `said` with its reports. `run`: a number for
    the caller; `was_stopped`: it was asked to end; `is_recording`: False before it begins, in pauses and at its end."""

    def __init__(self, words: Sequence[str], said: Said, *, lock_fd: int = -1, run: int = 0) -> None:
        """Start `record` with `words`, its options and command. `lock_fd`: descriptor that it keeps open, -1 none."""
        self.run, self._said = run, said
        commands, self._control = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        own = ["--until-exit", str(os.getpid()), f"--control=fd:{commands}"]
        self.is_recording = False
        self.was_stopped, self._lock = False, threading.Lock()
        try:
            # UTC: names of files ascend, also when summer ends. -P: no modules of the working directory.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "perf_offcpu", "record", *own, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[commands, *([lock_fd] if lock_fd >= 0 else [])],
                env=child_environment(TZ="UTC"),
                start_new_session=True,
            )
        except OSError:
            os.close(self._control)
            raise
        finally:
            os.close(commands)
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """Ask the recorder to end; it then completes its file."""
        self.was_stopped = True
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def command(self, text: str) -> None:
        """Send a command (ROTATE, …); a recorder that is still starting carries it out when it begins to record."""
        with self._lock, contextlib.suppress(OSError):
            if self._control >= 0:
                os.write(self._control, f"{text}\n".encode())

    def end(self, timeout_s: float) -> None:
        """Stop the recorder and wait for its end; kill it after `timeout_s`, which leaves its file incomplete."""
        self.stop()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)

    def cpu_s(self) -> float:
        """Return the CPU time of the recorder, s; 0 once it has been waited for."""
        if self._process.returncode is not None:
            return 0.0
        try:
            fields = read_kernel(f"/proc/{self.pid}/stat").rpartition(b")")[2].split()
        except OSError:
            return 0.0
        return sum(map(int, fields[11:15])) / _TICKS

    def _read(self) -> None:
        """Read the recorder's lines, in a thread, until it ends."""
        keep_rights()
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            while line := lines.readline(_LONGEST_LINE):
                self._hear(line.decode(errors="replace").strip())
        status = self._process.wait()
        self.is_recording = False
        with self._lock:
            os.close(self._control)
            self._control = -1
        self._said(("ended", str(status)))

    def _hear(self, line: str) -> None:
        """Report by `said` what a line of the recorder's standard error means; set `is_recording` accordingly."""
        match = _SAID.fullmatch(line)
        text = match[1] if match else line
        if text in ("recording", "Events enabled"):
            self.is_recording = True
            self._said(("recording", ""))
        elif text == "Events disabled":
            self.is_recording = False
            self._said(("paused", ""))
        elif text.startswith("account "):
            self._said(("account", text.removeprefix("account ")))
        elif text.startswith("dump "):
            self._said(("complete", os.path.basename(text.removeprefix("dump "))))
        elif text and not text.startswith("Captured and wrote"):
            self._said(("says", printable(text)))
