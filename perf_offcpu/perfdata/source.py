# SPDX-License-Identifier: Apache-2.0
"""Open a recording: a file, a pipe or standard input, packed or not. A reader of the file form needs its size, and
seeks. Recordings in file form that come through a pipe (`zcat perf.data.gz | …`) and those packed with gzip, xz or zstd
are therefore copied to a temporary file, in memory while it is small; so is any pipe that is read twice."""

import contextlib
import io
import os
import select
import stat
from collections.abc import Callable
from importlib import import_module
from typing import Any, BinaryIO, cast

from perf_offcpu.abi.features import MAGIC, MAGIC_SWAPPED, PIPE_HEADER_SIZE
from perf_offcpu.errors import FormatError, RecordingError
from perf_offcpu.files import FileRefusedError, open_regular
from perf_offcpu.perfdata.compressed import zstd_library
from perf_offcpu.structs import mutable

STDIN = "-"
_IN_MEMORY = 64 << 20
_BLOCK = 1 << 20
MAX_RATIO = 1000  # a packed recording that grows more than this (and beyond `_IN_MEMORY`) is refused
_PIPE_SIZES = (PIPE_HEADER_SIZE.to_bytes(8, "little"), PIPE_HEADER_SIZE.to_bytes(8, "big"))  # after the magic


@mutable
class Source:
    """Holds an open stream with a recording, its name and size, and whether it is damaged."""

    stream: BinaryIO  # at the first byte of the recording; seekable if `size` is known
    name: str  # for messages
    size: int | None  # of the recording in bytes; None for a pipe
    damaged: bool = False  # it was packed, and this is the part before damage


def open_source(path: str, seekable: bool = False, *, fifo: bool = True) -> Source:
    """Open a regular file, standard input ("-") or, if `fifo`, a FIFO; `seekable`: copy a pipe to a file. Raises
    FormatError if it cannot be opened or unpacked, or is something else, RecordingError without room for a copy."""
    if path == STDIN:
        return _source(os.dup(0), "standard input", seekable)
    return _source(open_file(path, fifo=fifo), path, seekable)


def open_file(path: str, *, fifo: bool = False) -> int:
    """Open a regular file or, if `fifo`, a FIFO, and wait for its first bytes; return its fd. Raises FormatError."""
    try:
        fd = open_regular(path, fifo=fifo)
    except FileRefusedError as problem:
        raise FormatError(path, "cannot be read", str(problem.strerror)) from None
    except (OSError, ValueError) as problem:
        hint = "; record one with `perf-offcpu record`" if isinstance(problem, FileNotFoundError) else ""
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise FormatError(path, "cannot be opened", f"{reason}{hint}") from None
    if stat.S_ISFIFO(os.fstat(fd).st_mode):  # before it has had a writer, it reads as empty
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll()
    os.set_blocking(fd, True)
    return fd


def _source(fd: int, name: str, seekable: bool) -> Source:
    """Return the source of an open file, unpacked if it is packed; `seekable`: a pipe is copied to a file. `fd` is
    closed with the source's stream, or before an error is raised."""
    info = os.fstat(fd)
    regular = stat.S_ISREG(info.st_mode) and os.lseek(fd, 0, os.SEEK_CUR) == 0
    stream = os.fdopen(fd, "rb", buffering=0 if regular else io.DEFAULT_BUFFER_SIZE)
    try:
        start = stream.read(PIPE_HEADER_SIZE) or b""
        opener = next((open_it for magic, open_it in _OPENERS.items() if start.startswith(magic)), None)
        if regular and opener is None:
            stream.seek(0)
            return Source(stream, name, info.st_size)
        rest = _Rejoined(start, stream)
        is_file_form = start[:8] in (MAGIC, MAGIC_SWAPPED) and start[8:] not in _PIPE_SIZES
        if opener is None and not seekable and not is_file_form:
            return Source(cast(BinaryIO, io.BufferedReader(rest)), name, None)
        with stream:
            return _spooled(rest, opener, name)
    except OSError as problem:
        stream.close()
        raise FormatError(name, "cannot be read", problem.strerror or str(problem)) from None
    except BaseException:
        stream.close()
        raise


class _Rejoined(io.RawIOBase):
    """Reads a stream again from its begin: first the bytes that have been read of it, then the rest."""

    def __init__(self, start: bytes, stream: BinaryIO) -> None:
        self.start, self.stream = start, stream
        self.taken = 0  # bytes read through this object

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self.start[: len(buffer)] if self.start else self.stream.read(len(buffer)) or b""
        self.start = self.start[len(piece) :]
        buffer[: len(piece)] = piece
        self.taken += len(piece)
        return len(piece)

    def close(self) -> None:
        self.stream.close()
        super().close()


_Opener = Callable[[BinaryIO], Any]
_OPENERS: dict[bytes, _Opener] = {
    b"\x1f\x8b": lambda stream: import_module("gzip").GzipFile(fileobj=stream),
    b"\xfd7zXZ\0": lambda stream: import_module("lzma").LZMAFile(stream),
    b"\x28\xb5\x2f\xfd": lambda stream: (
        zstd_library().ZstdDecompressor().stream_reader(stream, read_across_frames=True)
    ),
}
"""Magic number of a packed file → function that returns a stream of its unpacked bytes."""


def _spooled(stream: _Rejoined, opener: _Opener | None, name: str) -> Source:
    """Copy a stream, unpacked by `opener` if given, to a temporary file, and return that as the source."""
    import tempfile

    damaged = False
    with contextlib.ExitStack() as stack:
        spool = stack.enter_context(tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY))
        try:
            raw = cast(BinaryIO, io.BufferedReader(stream))
            unpacked = raw if opener is None else opener(raw)
            while True:
                try:
                    # One block at a time, so that the part before damage is kept.
                    piece = unpacked.read1(_BLOCK) if hasattr(unpacked, "read1") else unpacked.read(_BLOCK)
                except Exception:  # each library has errors of its own: zlib.error, LZMAError, ZstdError
                    damaged, piece = True, b""
                if not piece:
                    break
                spool.write(piece)
                if spool.tell() > _IN_MEMORY + MAX_RATIO * stream.taken:
                    raise FormatError(name, "cannot be unpacked", f"it grows more than {MAX_RATIO}-fold")
        except OSError as problem:
            where = f"{tempfile.gettempdir()}: cannot keep a copy of the input"
            raise RecordingError(f"{where}: {problem.strerror} (set TMPDIR)") from None
        size = spool.tell()
        if not size:
            raise FormatError(name, "cannot be unpacked", "no part of it is intact")
        spool.seek(0)
        stack.pop_all()
    return Source(cast(BinaryIO, spool), name, size, damaged)
