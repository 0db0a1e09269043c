# SPDX-License-Identifier: Apache-2.0
"""Find the peers of goroutines in "IO wait". Go watches each of its descriptors by one epoll instance, whose user data
is the address of the descriptor's `runtime.pollDesc` (src/runtime/netpoll.go), tagged since 1.21; that has the
descriptor, and the goroutine that waits for it. Descriptors and sockets are the kernel's word."""

import os
import re
from contextlib import suppress
from typing import Final

import numpy as np

from perf_offcpu.collect.go.program import U64, Memory
from perf_offcpu.collect.wait_objects.sockets import EPOLL, Socket, socket_inode, sockets_of
from perf_offcpu.files import read_kernel_if_any

_WATCHED: Final = re.compile(rb"^tfd:\s+(\d+) events:\s+\w+ data:\s+(\w+)", re.MULTILINE)
_MOST_BYTES, _MOST_LINKS, _MOST_EPOLLS, _MOST_SOCKETS, _MOST_KEPT = 2 << 20, 1024, 4, 256, 4096
_DESC_BYTES, _FD, _WAITERS = 48, 1, slice(2, 6)  # of a pollDesc; words: its descriptor, goroutines among other things
_TAG_BITS, _ALIGNMENT = np.int64(19), np.int64(3)


class Peers:
    """Finds peers of the goroutines of one process, as long as it runs the same program."""

    def __init__(self, pid: int, memory: Memory) -> None:
        self._pid, self._memory = pid, memory
        self._epolls = list[str]()
        self._sockets: dict[bytes, Socket] = {}

    def of(self, goroutines: U64) -> dict[int, str]:
        """Return address of `runtime.g` → peer that it waits for: "tcp 10.0.0.7:5432", "a client", "the next
        connection"; goroutines without a known peer are left out."""
        descriptor_of = self._descriptors(goroutines)
        fds = [*set(descriptor_of.values())][:_MOST_SOCKETS]
        inode_of = {fd: inode for fd in fds if (inode := socket_inode(self._pid, fd))}
        if unknown := frozenset(inode_of.values()) - self._sockets.keys():
            kept = self._sockets if len(self._sockets) < _MOST_KEPT else {}
            self._sockets = kept | dict.fromkeys(unknown, Socket(b"", False, False)) | sockets_of(self._pid, unknown)
        texts = {fd: _text(self._sockets[inode]) for fd, inode in inode_of.items()}
        return {goroutine: texts[fd] for goroutine, fd in descriptor_of.items() if texts.get(fd)}

    def _descriptors(self, goroutines: U64) -> dict[int, int]:
        """Return address of `runtime.g` → file descriptor for which the goroutine waits."""
        with suppress(OSError):
            self._epolls = self._epolls or self._find_epolls()
        text = b"".join(read_kernel_if_any(f"/proc/{self._pid}/fdinfo/{fd}", _MOST_BYTES) for fd in self._epolls)
        rows = [(int(fd), int(data, 16)) for fd, data in _WATCHED.findall(text)]
        if not rows:
            return {}
        fds, data = np.array(rows, np.uint64).T
        descriptor_of = dict[int, int]()
        for places in (data, (data.view(np.int64) >> _TAG_BITS << _ALIGNMENT).view(np.uint64)):
            content, is_read = self._memory.gather(places, np.full(len(places), _DESC_BYTES, np.uint64))
            words = content.view(np.uint64).reshape(-1, _DESC_BYTES // 8)
            is_desc = is_read & (words[:, _FD] == fds)
            row, column = np.nonzero(np.isin(words[:, _WAITERS], goroutines) & is_desc[:, None])
            descriptor_of |= dict(zip(words[:, _WAITERS][row, column].tolist(), fds[row].tolist(), strict=True))
        return descriptor_of

    def _find_epolls(self) -> list[str]:
        names = sorted(os.listdir(f"/proc/{self._pid}/fd"), key=int)[:_MOST_LINKS]  # direct: a directory of /proc
        return [fd for fd in names if os.readlink(f"/proc/{self._pid}/fd/{fd}").encode().endswith(EPOLL)][:_MOST_EPOLLS]


def _text(sock: Socket) -> str:
    name = sock.name.decode("utf-8", "replace")
    return "the next connection" if sock.listens else name if sock.is_outward else "a client" if name else ""
