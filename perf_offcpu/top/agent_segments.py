# SPDX-License-Identifier: Apache-2.0
"""Show what a running agent records, without a second recorder: each recording that it completes is an interval. The
agent writes recordings into its spool, makes rows of each complete one, and removes it. Here each is opened while the
recorder still writes it, so that it can be read after it has left the spool. Only the agent's user opens the spool;
nothing is asked of the agent, and nothing in the spool is changed."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from perf_offcpu.agent.spool import RECORDING
from perf_offcpu.cache import KeptCache
from perf_offcpu.directories import Directory
from perf_offcpu.errors import FormatError, UsageError
from perf_offcpu.model.profile import Profile
from perf_offcpu.structs import Closing
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.top.segments import copy_new

_LOOK_S: Final = 0.5
_DATA_SIZE_AT: Final = 48  # tools/perf/util/header.h, struct perf_file_header: data.size


class AgentSegments(Closing):
    """Iterator over the profiles of recordings that an agent completes from now on; used as `segments.Segments` is."""

    status = 0

    def __init__(self, spool: str) -> None:
        """Open the agent's spool directory; raise UsageError if this user cannot read it."""
        self._resources = contextlib.ExitStack()
        try:
            self._directory = self._resources.enter_context(Directory.private(os.path.abspath(spool)))
        except OSError as problem:
            raise UsageError(f"--agent {spool}: {problem.strerror}; no agent's spool of this user") from None
        self._symbols, self._ended = SymbolizeOptions(cache=KeptCache.usual()), threading.Event()
        self._last: tuple[str, int] | None = None  # name and descriptor of the last recording read
        self._being_written: dict[str, int] = {}  # name → descriptor of recordings that are not complete
        self._done: Callable[[list[str]], None] | None = None
        self._spent = time.monotonic(), time.process_time()
        self.unread = 0  # number of recordings that could not be read

    def close(self) -> None:
        """Close the spool and the recordings."""
        self._resources.close()
        for fd in (*self._being_written.values(), *([self._last[1]] if self._last else [])):
            os.close(fd)

    def __iter__(self) -> Iterator[Profile]:
        """Yield the profile of each recording as soon as it is complete or has left the spool."""
        being_written = self._being_written
        past = set(self._names()[:-1])
        while not self._ended.wait(_LOOK_S):
            names = self._names()
            for name in sorted({*names} - past - being_written.keys()):
                with contextlib.suppress(OSError):  # it has just been removed
                    being_written[name] = self._directory.open_regular(name, owners={os.geteuid()})
            for name in [name for name, fd in being_written.items() if name not in names or _is_complete(fd)]:
                past.add(name)
                yield from self._read(name, being_written.pop(name))
            past &= {*names}

    def _names(self) -> list[str]:
        return [name for name in self._directory.names() if RECORDING.fullmatch(name)]

    def _read(self, name: str, fd: int) -> Iterator[Profile]:
        if self._last is not None:
            os.close(self._last[1])
        self._last = name, fd
        if done := self._done:
            self._done = None
            with contextlib.suppress(OSError):
                done([copy_new(os.dup(fd), name)])
        try:
            yield load_profile([f"/proc/self/fd/{fd}"], self._symbols)
        except FormatError:  # the recorder was killed before it had written anything
            self.unread += 1

    def percent(self) -> dict[str, float]:
        """Return {"top": CPU time of this process since the last call, in % of a CPU}."""
        (then, before), now = self._spent, (time.monotonic(), time.process_time())
        self._spent = now
        return {"top": 100 * (now[1] - before) / (now[0] - then)}

    def end(self) -> None:
        """End the iteration, from any thread."""
        self._ended.set()

    def keep(self, done: Callable[[list[str]], None]) -> None:
        """Copy the next complete recording into the working directory, then call `done` with [its path]."""
        self._done = done


def _is_complete(fd: int) -> bool:
    """Return True if a recording is complete: its writer sets the data size in the header last."""
    return any(os.pread(fd, 8, _DATA_SIZE_AT))
