# SPDX-License-Identifier: Apache-2.0
"""Keep undelivered recordings and messages, and the account, in a private directory: the spool.

    00000003.data.2026112214050112       a recording, by run of the recorder and start time
    00000003.data.2026112214050112.push-KEY-0   a message for a server, made from it
    state.json                           the account (`ledger`)
    agent.lock                           held by the agent
    lock                                 held by the agent and by its recorder

Names sort in the order of recording, even if the wall clock is set: the number of the run comes first, and a
recorder gives its files ascending names. The spool outlives the agent, and the next agent continues with it."""

import contextlib
import fcntl
import os
import re
import time
from typing import Final

from perf_offcpu.directories import Directory
from perf_offcpu.errors import UsageError
from perf_offcpu.files import FileRefusedError, descriptor, read_bounded

STATE: Final = "state.json"
LOCK: Final = "lock"
AGENT_LOCK: Final = "agent.lock"
RECORDING: Final = re.compile(r"\d{8}\.data\.\d{16}")
_MESSAGE: Final = re.compile(r"(\d{8}\.data\.\d{16})\.push-([0-9a-f]{8})-(\d{4})")
_MAX_STATE: Final = 1 << 20
_MAX_MESSAGE: Final = 1 << 28


def run_of(name: str) -> int:
    """Return the number of the run of the recorder that made the recording `name`."""
    return int(name[:8])


class Spool:
    """Directory of recordings and messages, opened and locked; it is made if missing. `patience_s`: longest wait for
    the recorder of a killed agent, which still completes its file. Raise UsageError if the directory cannot be used."""

    def __init__(self, path: str, patience_s: float = 30.0) -> None:
        self.path = os.path.abspath(path)
        with contextlib.ExitStack() as stack:
            try:
                self._directory = stack.enter_context(Directory.private(self.path, make=True))
                agent_fd = self._open_lock(AGENT_LOCK)
                stack.callback(os.close, agent_fd)
                self.lock_fd = self._open_lock(LOCK)
            except OSError as problem:
                raise UsageError(f"--spool {path}: {problem.strerror}") from None
            stack.callback(os.close, self.lock_fd)
            self._lock(agent_fd, 0, "another agent uses it; stop that one, or give this one a spool of its own")
            self._lock(self.lock_fd, patience_s, "the recorder of an agent that has ended still uses it")
            self._resources = stack.pop_all()

    def _open_lock(self, name: str) -> int:
        with contextlib.suppress(FileExistsError):
            return self._directory.create(name)
        return self._directory.open_regular(name, owners={os.geteuid()})

    def _lock(self, fd: int, patience_s: float, holder: str) -> None:
        until = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise UsageError(f"--spool {self.path}: {holder}") from None
                time.sleep(0.1)

    def close(self) -> None:
        """Unlock and close the directory."""
        self._resources.close()

    @property
    def identity(self) -> str:
        """Return a text that identifies the spool's directory on this machine, also after a restart."""
        status = os.fstat(self._directory.fd)
        return f"{status.st_dev}:{status.st_ino}"

    def is_there(self) -> bool:
        """Return True if the path still leads to the open directory."""
        try:
            status = os.stat(self.path)  # direct: compared, not opened
        except OSError:
            return False
        return os.path.samestat(status, os.fstat(self._directory.fd))

    def tidy(self) -> None:
        """Remove hidden files, which killed writers left."""
        for name in self._directory.names():
            if name.startswith("."):
                self._directory.remove(name)

    def recordings(self) -> list[str]:
        """Return the names of all recordings, oldest first."""
        return [name for name in self._directory.names() if RECORDING.fullmatch(name)]

    def messages(self, key: str = "") -> list[str]:
        """Return the names of the messages for the server with this key, or of all messages, oldest first."""
        matches = ((name, _MESSAGE.fullmatch(name)) for name in self._directory.names())
        return [name for name, match in matches if match and key in ("", match[2])]

    def last_run(self) -> int:
        """Return the largest number of a run among the recordings; 0 if there are none."""
        return max(map(run_of, self.recordings()), default=0)

    def path_of(self, name: str) -> str:
        """Return the path of the file `name`."""
        return os.path.join(self.path, name)

    def usage(self) -> tuple[int, int]:
        """Return total size on disk (bytes) and number of recordings, messages and files that are being written."""
        sizes = [status.st_blocks * 512 for name in self._directory.names() if (status := self._status(name))]
        return sum(sizes), len(sizes)

    def has(self, name: str) -> bool:
        """Return True if there is a recording or message of that name."""
        return self._status(name) is not None

    def size_of(self, name: str) -> int:
        """Return the size of a file in bytes; 0 if it does not exist."""
        status = self._status(name)
        return status.st_size if status else 0

    def age_s(self, name: str) -> float:
        """Return the seconds since a file was last written; 0 if it does not exist."""
        status = self._status(name)
        return max(0.0, time.time() - status.st_mtime) if status else 0.0

    def _status(self, name: str) -> os.stat_result | None:
        return None if name in (STATE, LOCK, AGENT_LOCK) else self._directory.status(name)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        self._directory.remove(name)

    def read(self, name: str, most: int = _MAX_MESSAGE) -> bytes:
        """Return the content of a file; raise FileRefusedError if it has more than `most` bytes."""
        with descriptor(self._directory.open_regular(name, owners={os.geteuid()}, max_bytes=most)) as fd:
            return read_bounded(fd, most, name)

    def read_state(self) -> bytes:
        """Return the saved account (`agent.ledger`); b"" if there is none that can be read."""
        try:
            return self.read(STATE, _MAX_STATE)
        except (FileNotFoundError, FileRefusedError):
            return b""

    def write(self, name: str, data: bytes) -> None:
        """Write a file that appears whole, in place of an older one of this name; raise OSError on failure."""
        with self._directory.replacing(name) as file:
            file.write(data)


def message_name(recording: str, key: str, number: int) -> str:
    """Return the file name of message `number` made from a recording; `key`: hash that identifies the server."""
    return f"{recording}.push-{key}-{number:04}"
