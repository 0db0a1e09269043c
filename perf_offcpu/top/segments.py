# SPDX-License-Identifier: Apache-2.0
"""Record without end, and read each interval as soon as it is over.

    recorder (a child process) ──> file of a minute, in memory ──> Recording of each interval ──> Profile

At the end of an interval the recorder writes its sums (`account`) into the file, and the part since the last interval
is read. It is asked again only after that: a machine that is too busy gets longer intervals. After a minute it begins a
new file (`snapshot`), so that memory stays bounded; the one before is kept, and older ones are removed. A file that
grows large ends by itself, while `top` is stopped.

Nothing is left behind, whatever ends this process. The recorder ends with it (`--until-exit`), and a shell that waits
on a pipe for the end of both removes the directory."""

import contextlib
import os
import queue
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from perf_offcpu.agent.cost.parts import Cost, keep_no_free_memory
from perf_offcpu.agent.recorder import ACCOUNT, ROTATE, Recorder
from perf_offcpu.analysis.classes.rules_file import usual_rules
from perf_offcpu.cache import KeptCache
from perf_offcpu.collect.output.file import machine_features
from perf_offcpu.collect.system.clock import wall_clock_pair
from perf_offcpu.decode.deferred import deferred_as_samples, merge_deferred
from perf_offcpu.decode.load import GrowingFile
from perf_offcpu.decode.trim_stacks import cut_wrong_callers
from perf_offcpu.directories import Directory
from perf_offcpu.environment import child_environment
from perf_offcpu.errors import PerfOffcpuError, UsageError
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Recording
from perf_offcpu.structs import Closing
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize
from perf_offcpu.unwind.unwinder import KnownStacks, unwind

RECORDING: Final = (
    *("-e", "none", "--compression-level", "0", "--max-rate", "500", "--task-rate=0"),
    *("--switch-output=64M", "--switch-max-files", "4"),
)
"""Options of record: waits alone; files that are read once stay as they are; at most 500 samples a second, beyond
which waits are summed with their exact times; and at most 256 MB while it is not read."""
_FILE_S: Final = 60.0
_PIECE: Final = 1 << 20
_MEMORY: Final = "/dev/shm"
_REMOVER: Final = (
    'read recorder; read _; while kill -0 "$recorder" 2>/dev/null; do sleep 0.1; done; exec rm -rf -- "$1"'
)
"""Script that gets the recorder's number, waits until its standard input and the recorder end, and removes a directory.
It cannot wait for the end of a pipe of the recorder, which the recorded command has, too."""
_PATIENCE_S: Final = 10.0
_USAGE: Final = UsageError.exit_status


class Segments(Closing):
    """Recorder in a child process, and iterator over the profiles of its intervals; the end of the recorder ends the
    last one. `unread`: number of files that the recorder removed before they were read; `status`: exit status of the
    recorder, which is that of the recorded command, 0 while it runs."""

    def __init__(self, words: Sequence[str], seconds: float, first_s: float | None = None) -> None:
        """Start `record` with `words`, its options and command. Intervals last `seconds`, the first one `first_s`."""
        keep_no_free_memory()
        self.seconds, self._first_s = seconds, seconds if first_s is None else first_s
        self._cost, self.unread, self.status = Cost(), 0, 0
        self._spent = time.monotonic(), {"top": time.process_time(), "recorder": 0.0}
        self._said, self._begun_s = "", time.monotonic()
        self._done: Callable[[list[str]], None] | None = None
        self._symbols = SymbolizeOptions(cache=KeptCache.usual())
        self._rules = usual_rules()
        self._features = machine_features([], wall_clock_pair())
        self._mail: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None  # direct: a choice between directories
        # direct: a new directory, of this user alone
        self._path = tempfile.mkdtemp(prefix="perf-offcpu-top-", dir=memory)
        self._remover = subprocess.Popen(
            ["/bin/sh", "-c", _REMOVER, "sh", self._path],
            stdin=subprocess.PIPE,
            env=child_environment(),
            start_new_session=True,
        )
        output = os.path.join(self._path, "data")
        self.recorder = Recorder([*RECORDING, "-o", output, *words], self._mail.put)
        self._tell_remover(f"{self.recorder.pid}\n")

    def close(self) -> None:
        """End the recorder and remove the directory."""
        self.recorder.end(_PATIENCE_S)
        assert self._remover.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._remover.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._remover.wait(_PATIENCE_S)

    def __iter__(self) -> Iterator[Profile]:
        """Yield the profile of each interval; raise UsageError or PerfOffcpuError if the recorder fails to record."""
        with Directory.named(self._path) as directory:
            for recording in self._recordings(directory):
                yield replace(symbolize(deferred_as_samples(recording), self._symbols), rules=self._rules)

    def percent(self) -> dict[str, float]:
        """Return part (top, recorder) → CPU time since the last call, in % of a CPU."""
        self._cost.measure(self.recorder)
        parts, now = self._cost.parts(), time.monotonic()
        spent = {"top": parts["agent"], "recorder": parts["recorder"]}
        before, self._spent = self._spent, (now, spent)
        return {part: 100 * (s - before[1][part]) / (now - before[0]) for part, s in spent.items()}

    def end(self) -> None:
        """End the iteration, from any thread."""
        self._mail.put(("end", ""))

    def keep(self, done: Callable[[list[str]], None]) -> None:
        """Copy the last one or two minutes into the working directory as soon as the interval ends; then call `done`,
        in the thread that iterates, with the paths of the copies."""
        self._done = done

    def _recordings(self, directory: Directory) -> Iterator[Recording]:
        """Yield the recording of each interval, read from the recorder's files in `directory`; remove files read."""
        current, past = "", ""
        file, stacks, maps = None, KnownStacks(), 0
        try:
            for name, size in self._parts(directory):
                if name == past:
                    continue
                if directory.status(name) is None:  # the recorder removes what is read too late
                    self.unread += 1
                    continue
                if file is None or name != current:
                    if file is not None:
                        file.close()
                    file = GrowingFile(os.path.join(self._path, name), self._features)
                    current, self._begun_s, stacks = name, time.monotonic(), KnownStacks()
                recording = file.read(size or None)
                if recording is not None:
                    if maps != (maps := sum(map(len, recording.perf_maps.values()))):
                        stacks = KnownStacks()  # a JVM has told its methods
                    yield cut_wrong_callers(merge_deferred(unwind(recording, self._symbols.search(), stacks)))
                if not size:
                    file.close()
                    file = None
                    if done := self._done:
                        self._done = None
                        done([*_copied(directory, past), *_copied(directory, name)])
                    if past:
                        directory.remove(past)
                    past = name
        finally:
            if file is not None:
                file.close()

    def _parts(self, directory: Directory) -> Iterator[tuple[str, int]]:
        """Yield (name, size) of the recorder's file at the end of each interval, size 0 if that file has ended.
        Intervals end `seconds` after the previous one was due, or later if it was not read by then."""
        due, has_recorded = float("inf"), False
        last_due = time.monotonic()
        while True:
            try:
                kind, text = self._mail.get(timeout=min(max(0.0, due - time.monotonic()), _PATIENCE_S))
            except queue.Empty:
                if time.monotonic() >= due:
                    is_old = self._done is not None or time.monotonic() - self._begun_s > _FILE_S
                    self.recorder.command(ROTATE if is_old else ACCOUNT)
                    due, last_due = float("inf"), due
                continue
            if kind == "recording":
                has_recorded, due = True, time.monotonic() + self._first_s
            elif kind in ("account", "complete"):
                size, _, path = text.partition(" ") if kind == "account" else ("0", "", text)
                yield os.path.basename(path), int(size)
                due = min(due, max(time.monotonic(), last_due + self.seconds))
            elif kind == "says":
                self._said = text
            elif kind == "ended":
                status = int(text)
                self.status = status if status >= 0 else 128 - status
                if not has_recorded:
                    raise self._problem()
                yield from ((name, 0) for name in sorted(directory.names()))
                return
            elif kind == "end":
                return

    def _problem(self) -> PerfOffcpuError:
        """Return the error of a recorder that ended before it recorded anything, with its last message."""
        text = self._said.removeprefix("perf-offcpu record: ") or f"the recorder ended with status {self.status}"
        return UsageError(text) if self.status == _USAGE else PerfOffcpuError(text)

    def _tell_remover(self, text: str) -> None:
        assert self._remover.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._remover.stdin.write(text.encode())
            self._remover.stdin.flush()


def _copied(directory: Directory, name: str) -> list[str]:
    """Copy a file, "" for none, into the working directory; return [path of the copy], [] if none was made."""
    if name:
        with contextlib.suppress(OSError):
            return [copy_new(directory.open_regular(name), name)]
    return []


def copy_new(fd: int, name: str) -> str:
    """Copy an open recording into the working directory as a new file perf.`name`, and close it; return that name.
    Raise OSError if the file exists or cannot be written."""
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        write_new(f"perf.{name}", iter(lambda: file.read(_PIECE), b""))
    return f"perf.{name}"


def write_new(path: str, pieces: Iterable[bytes]) -> None:
    """Write a new file; raise OSError if it exists or cannot be written."""
    directory, name = Directory.of_output(path)
    with directory, os.fdopen(directory.create(name), "wb") as file:
        file.writelines(pieces)
