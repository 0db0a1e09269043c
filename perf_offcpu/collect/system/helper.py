# SPDX-License-Identifier: Apache-2.0
"""Read data of other processes in a helper process, which is abandoned if it hangs.

Such a read may take for ever. A mapped file or memory can lie on a file system that does not answer (FUSE, NFS); a
process that waits for one in execve(2) or epoll_ctl(2) holds locks that readers of /proc/PID/maps and /proc/PID/fdinfo
take. Not even SIGKILL ends some of these waits, and a process with a thread in one never ends. So the recorder asks a
fork of itself, a *helper*, which holds no descriptor of the recorder, and of root's capabilities only READING. A helper
that does not answer in time is killed and left behind, and another helper is asked for the remaining items.

An exception in the helper is an answer, too (`Answer.problem`): nothing that a process does ends the recorder."""

import contextlib
import gc
import marshal
import mmap
import os
import select
import signal
import socket
import struct
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from perf_offcpu.collect.system.privileges import READING, keep_capabilities, niceness
from perf_offcpu.files import read_kernel

PATIENCE_S: Final = 1.0  # time after which an item counts as stuck; halved after each such item
_LEAST_PATIENCE_S: Final = 0.05
_BUSY: Final = 20  # a helper that runs, or waits for a CPU, has this many times longer
_LIFE_S: Final = 20.0  # a helper that is older ends after its items: its CPU time then counts as the recorder's
MOST_LEFT: Final = 16  # killed helpers that have not ended: with so many, no helper is asked
AVOIDED_S: Final = 600.0  # time for which a process or file system that has not answered is not asked again
_MOST_AVOIDED: Final = 4096
_NAP_S: Final = 0.02
_BLOCK: Final = 1 << 18
_SIZE: Final = struct.Struct("=Q")

_left: list[int] = []  # ids of helpers that were killed and may not have ended


class Answer(NamedTuple):
    """The answer of a helper process to one item: the result of the work, its problem, or that it is stuck."""

    value: Any = None  # result of `work`; None if it failed
    is_stuck: bool = False  # there was no answer in time
    problem: str = ""  # the exception that the work raised, as text; "" for none


STUCK: Final = Answer(is_stuck=True)


class Helper:
    """Call `work` with one item after the other in a forked process, which is started when there are items. Items and
    results are plain values (`marshal`). `work` sees the memory of the recorder as it was when the process was started.
    `until`: time (`time.monotonic`) after which all items count as stuck; may be changed."""

    def __init__(self, work: Callable[[Any], Any], patience_s: float = PATIENCE_S) -> None:
        self._work, self._full_patience_s = work, patience_s
        self._patience_s, self._stuck_at_s = patience_s, 0.0
        self.until = float("inf")
        self._pid, self._begun_s = 0, 0.0
        self._socket: socket.socket | None = None
        self._received = bytearray()
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)

    def note(self, number: int) -> None:
        """Note the number of the device that `work` is about to read; 0 after it. Called in the helper process."""
        _SIZE.pack_into(self._shared, 0, number)

    @property
    def noted(self) -> int:
        """Number of the device that `work` was about to read when the last helper got stuck; 0 for none."""
        number: int = _SIZE.unpack_from(self._shared)[0]
        return number

    def each(self, items: Sequence[Any], step: Callable[[], object] | None = None) -> Iterator[Answer]:
        """Yield the answer to each item in order, up to the first STUCK. `step`: is called meanwhile."""
        if time.monotonic() >= self.until:
            yield STUCK
            return
        if not self._start():  # no process is to be had: better to risk a wait than to know nothing
            for item in items:
                value, problem = _attempt(self._work, item)
                yield Answer(value, problem=problem)
            return
        assert self._socket is not None
        answered = 0
        try:
            data = marshal.dumps(list(items))
            with contextlib.suppress(OSError):  # it has been killed: `_receive` sees that
                self._socket.sendall(_SIZE.pack(len(data)) + data)
            while answered < len(items):
                answer = self._receive(step)
                if answer is None:
                    self._stuck_at_s = time.monotonic()
                    self._patience_s = max(_LEAST_PATIENCE_S, self._patience_s / 2)
                    yield STUCK
                    return
                answered += 1
                yield answer
        finally:
            if answered < len(items):
                self._leave()
            elif time.monotonic() - self._begun_s > _LIFE_S:
                self.close()

    def close(self) -> None:
        """End the process, if there is one; kill it if it does not end in time."""
        if self._socket is None:
            return
        self._socket.close()
        self._socket = None
        end = time.monotonic() + self._patience_s
        while not _has_ended(self._pid):
            if time.monotonic() > end:
                self._leave()
                return
            time.sleep(0.001)

    def _start(self) -> bool:
        """Start a process unless there is one; return False if that fails."""
        if self._socket is not None:
            return True
        _reap()
        if time.monotonic() - self._stuck_at_s > AVOIDED_S:
            self._patience_s = self._full_patience_s
        self.note(0)
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            return False
        # No handler of the recorder runs in the child, neither now nor later.
        take_niceness = niceness()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12, where threads exist
                self._pid = os.fork()
            if not self._pid:
                take_niceness()
                _serve(self._work, theirs)
        except OSError:
            ours.close()
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        self._socket, self._begun_s = ours, time.monotonic()
        self._received.clear()
        return True

    def _receive(self, step: Callable[[], object] | None) -> Answer | None:
        """Return the next answer; None if it does not come in time, or something has killed the helper."""
        assert self._socket is not None
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        waited_s = 0.0
        while (data := self._whole_message()) is None:
            begin_s = time.monotonic()
            if poll.poll(_NAP_S * 1000):
                try:
                    block = self._socket.recv(_BLOCK)
                except OSError:
                    block = b""
                if not block:  # something has killed it
                    return None
                self._received += block
                waited_s = 0.0
            else:  # at most two naps: the recorder itself may have been stopped for longer
                waited_s += min(time.monotonic() - begin_s, 2 * _NAP_S)
                if time.monotonic() >= self.until or self._is_late(waited_s):
                    return None
            if step is not None:
                step()
        value, problem = marshal.loads(data)
        return Answer(value, problem=problem)

    def _whole_message(self) -> bytes | None:
        """Remove and return the first received message; None if it is not complete."""
        if len(self._received) < _SIZE.size:
            return None
        end = _SIZE.size + _SIZE.unpack_from(self._received)[0]
        if len(self._received) < end:
            return None
        message = bytes(self._received[_SIZE.size : end])
        del self._received[:end]
        return message

    def _is_late(self, waited_s: float) -> bool:
        if waited_s < self._patience_s:
            return False
        try:
            runs = read_kernel(f"/proc/{self._pid}/stat").rpartition(b")")[2].split()[0] == b"R"
        except (OSError, IndexError):
            runs = False
        return not runs or waited_s > _BUSY * self._full_patience_s

    def _leave(self) -> None:
        """Kill the process without waiting for its end."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        os.kill(self._pid, signal.SIGKILL)  # a child that was not waited for: the id is still its own
        _left.append(self._pid)
        _reap()


class Avoided:
    """Set of processes and file systems that did not answer; each stays in it for AVOIDED_S and is not asked again."""

    def __init__(self) -> None:
        self._until: dict[Hashable, float] = {}

    def add(self, key: Hashable) -> None:
        """Avoid a process or file system for AVOIDED_S from now on."""
        if len(self._until) >= _MOST_AVOIDED:
            del self._until[next(iter(self._until))]
        self._until[key] = time.monotonic() + AVOIDED_S

    def __contains__(self, key: Hashable) -> bool:
        return time.monotonic() < self._until.get(key, 0.0)


def ask_each(
    helper: Helper, items: Sequence[tuple[Any, ...]], avoided: Avoided, step: Callable[[], object] | None = None
) -> Iterator[tuple[tuple[Any, ...], Answer]]:
    """Yield (item, answer) for each item; after a stuck item, ask a new helper process. The first member of an item is
    a key: items with a key in `avoided` come first, as STUCK; keys of stuck items are added. If time is up, the rest is
    STUCK. `step`: is called again and again while an answer is awaited."""
    remaining = list(items)
    while remaining:
        if is_too_much_left() or time.monotonic() >= helper.until:
            yield from ((item, STUCK) for item in remaining)
            return
        yield from ((item, STUCK) for item in remaining if item[0] in avoided)
        remaining = [item for item in remaining if item[0] not in avoided]
        answered = 0
        for answer in helper.each(remaining, step):
            if answer.is_stuck and time.monotonic() < helper.until:
                avoided.add(remaining[answered][0])
            yield remaining[answered], answer
            answered += 1
        remaining = remaining[answered:]


def is_too_much_left() -> bool:
    """Return True if MOST_LEFT killed helpers still have not ended: no further helper should be asked."""
    return len(_left) >= MOST_LEFT


def _reap() -> None:
    _left[:] = [pid for pid in _left if not _has_ended(pid)]


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _serve(work: Callable[[Any], Any], connection: socket.socket) -> None:
    """Run in the child: answer requests with `work` until the recorder closes the connection or ends; then exit."""
    try:
        # direct: a list of its own numbers
        for fd in {*map(int, os.listdir("/proc/self/fd"))} - {connection.fileno()}:
            with contextlib.suppress(OSError):  # that of the list itself
                os.close(fd)
        for _ in range(3):  # the standard streams
            os.open(os.devnull, os.O_RDWR)
        os.chdir("/")  # direct: keeps no file system from being unmounted
        keep_capabilities(READING)
        gc.disable()  # it would touch all memory that is shared with the recorder
        with connection.makefile("rb") as requests:
            while size := requests.read(_SIZE.size):
                for item in marshal.loads(requests.read(_SIZE.unpack(size)[0])):
                    value, problem = _attempt(lambda item: marshal.dumps((work(item), "")), item)
                    data = value or marshal.dumps((None, problem))
                    connection.sendall(_SIZE.pack(len(data)) + data)
    finally:
        os._exit(0)


def _attempt(work: Callable[[Any], Any], item: Any) -> tuple[Any, str]:
    """Call `work` with an item; return (result, ""), or (None, the exception as text)."""
    try:
        return work(item), ""
    except Exception as problem:
        return None, f"{type(problem).__name__}: {problem}"[:200]
