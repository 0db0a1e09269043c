# SPDX-License-Identifier: Apache-2.0
"""Read perf.data in every form, as a stream of chunks in bounded memory.

    with PerfDataReader.open("perf.data") as reader:
        for chunk in reader.chunks():
            ...

`events` and `features` are complete for files from the start; in the pipe form they arrive as records, and are read
before the chunk that holds these records is yielded. Compressed records are yielded decompressed. Damage is counted in
`counters`; the module `header` says which damage raises."""

import contextlib
import io
import os
import stat
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import BinaryIO, Self

import numpy as np

from perf_offcpu import losses
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import RecordType
from perf_offcpu.errors import FormatError
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.compressed import Decompressor
from perf_offcpu.perfdata.events import Events, without_leaked_flags
from perf_offcpu.perfdata.features import Features
from perf_offcpu.perfdata.header import FileHead, PipeHead, read_head
from perf_offcpu.perfdata.scan import Chunk, Scanner
from perf_offcpu.perfdata.source import Source, open_file, open_source
from perf_offcpu.structs import Closing

PIECE = 16 << 20
COMPRESSED_TYPES = (RecordType.COMPRESSED, RecordType.COMPRESSED2)


class PerfDataReader(Closing):
    """Reads one open recording: a context manager, made by `open`. `head`: its form (file, pipe) and where its sections
    are; `events`: its evsels (of a pipe, so far); `features`: its header features; `counters`: damage and losses."""

    def __init__(self, source: Source, directory: str = "") -> None:
        self.stream, self.path, self.directory = source.stream, directory or source.name, directory
        self.counters = Losses()
        self.counters.add(losses.BAD_WRAPPER, int(source.damaged))
        self.head: FileHead = read_head(source.stream, self.path, source.size, self.counters)
        self.order = self.head.order
        self.features = Features(self.head.features, self.order, self.counters)
        specs = [spec.named() for spec in self.features.named(self.head.events)]
        self.events = Events(specs, self.order)
        self.counters.add(losses.DUPLICATE_ID, self.events.duplicates)
        self._pipe_head: PipeHead | None = None
        if self.head.is_pipe or Feature.EVENT_DESC not in self.features.bodies:
            self._pipe_head = PipeHead(self.features, self.order, self.counters, specs)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a recording: a file (also packed by gzip, xz or zstd), a directory of `perf record --threads`, a FIFO,
        or "-" for standard input. Raise FormatError if it cannot be opened, or is no perf.data."""
        directory, main = _parts_of(str(path))
        source = open_source(main, fifo=not directory)
        try:
            return cls(source, directory)
        except BaseException:
            source.stream.close()
            raise

    @classmethod
    @contextlib.contextmanager
    def repeatable(cls, path: str | os.PathLike[str]) -> "Iterator[Callable[[], PerfDataReader]]":
        """Open a recording that is read several times, a pipe too (its copy is kept in TMPDIR). Yields a function that
        returns a new reader at the beginning; do not use earlier readers after that. Raises FormatError as `open`,
        RecordingError if there is no room for the copy."""
        directory, main = _parts_of(str(path))
        source = open_source(main, seekable=True, fifo=not directory)

        def again() -> "PerfDataReader":
            source.stream.seek(0)
            return cls(source, directory)

        with source.stream:
            yield again

    def close(self) -> None:
        """Close the recording."""
        self.stream.close()

    def reopen(self, origin: str) -> int | None:
        """Return a new descriptor of the file that `origin` names (`Chunk.origin`); None for pipes and packed files."""
        try:
            if origin:
                return open_file(os.path.join(self.directory, origin)) if " " not in origin else None
            number = self.stream.fileno() if isinstance(self.stream, io.FileIO) else -1
            return os.dup(number) if number >= 0 and stat.S_ISREG(os.fstat(number).st_mode) else None
        except (OSError, FormatError):
            return None

    def chunks(self, *, with_compressed: bool = False) -> Iterator[Chunk]:
        """Yield all records in file order, decompressed; `with_compressed`: compressed ones too, before the content."""
        begin, end = self.head.data_offset, self.head.data_end
        if end is not None:
            self.stream.seek(begin)
        size = None if end is None else end - begin
        yield from self._stream_chunks(self.stream, size, begin, "", with_compressed)
        for part in _thread_files(self.directory) if self.directory else ():
            with os.fdopen(open_file(part), "rb", buffering=0) as stream:
                yield from self._stream_chunks(stream, None, 0, os.path.basename(part), with_compressed)

    def chunks_between(self, begin: int, end: int) -> Iterator[Chunk]:
        """Yield the records of a file between two bytes at which records begin. The file may still be growing."""
        self.stream.seek(begin)
        yield from self._stream_chunks(self.stream, end - begin, begin, "", False)

    def _pieces(self, stream: BinaryIO, left: int | None, scanner: Scanner) -> Iterator[memoryview]:
        """Yield `left` bytes of `stream` (None: all) in blocks, each after the incomplete record that `scanner` has
        kept; count missing and unreadable bytes."""
        while left is None or left > 0:
            rest = scanner.take_rest()
            # New memory each time: chunks are not copied out of it.
            room = np.empty(len(rest) + (PIECE if left is None else min(PIECE, left)), np.uint8).data
            room[: len(rest)] = rest
            try:
                size = stream.readinto(room[len(rest) :]) or 0  # type: ignore[attr-defined]
                problem = None if size else (losses.FILE_CUT, left or 0)
            except OSError:
                size, problem = 0, (losses.UNREADABLE, 1)
            if rest or size:
                yield room[: len(rest) + size]
            if problem is not None:
                self.counters.add(*problem)
                return
            if left is not None:
                left -= size

    def _stream_chunks(
        self, stream: BinaryIO, left: int | None, offset: int, origin: str, with_compressed: bool
    ) -> Iterator[Chunk]:
        scanner = Scanner(self.order, self.counters, offset, origin)
        inner = Scanner(self.order, self.counters, origin=f"{origin} zstd".strip())
        zstd, bytes_before = Decompressor(self.counters), 0
        for piece in self._pieces(stream, left, scanner):
            for chunk in scanner.feed(piece):
                if self.head.is_pipe and len(scanner.tracing_data) > bytes_before:  # it precedes its samples
                    bytes_before = len(scanner.tracing_data)
                    self.features.bodies[Feature.TRACING_DATA] = bytes(scanner.tracing_data)
                for part in self._expanded(chunk, inner, zstd, with_compressed):
                    yield without_leaked_flags(part, self.events)
        scanner.finish()
        inner.finish()

    def _expanded(self, chunk: Chunk, inner: Scanner, zstd: Decompressor, with_compressed: bool) -> Iterator[Chunk]:
        """Yield the chunk with compressed records replaced by their content; note events and features of a pipe."""
        if self._pipe_head:
            self._pipe_head.take(chunk)
            self.events = self._pipe_head.events
        is_compressed = np.isin(chunk.types, COMPRESSED_TYPES)
        if not is_compressed.any():
            yield chunk
            return
        before, after = is_compressed[:-1], is_compressed[1:]
        splits = before | after if with_compressed else before != after
        ends = [*(np.flatnonzero(splits) + 1).tolist(), len(chunk)]
        for begin, end in pairwise([0, *ends]):
            alike = chunk.take(slice(begin, end))
            if with_compressed or not is_compressed[begin]:
                yield alike
            if is_compressed[begin]:
                records = ((int(alike.types[row]), bytes(alike.record(row))) for row in range(len(alike)))
                for piece in zstd.feed(records, self.order):
                    if piece is None:
                        inner.resume()
                    else:
                        yield from inner.feed(piece)


def _parts_of(path: str) -> tuple[str, str]:
    """Return the directory of a recording in several files, "" for others, and its (main) file."""
    # direct: asks for the kind; its files are opened by `files`
    return (path, os.path.join(path, "data")) if os.path.isdir(path) else ("", path)


def _thread_files(directory: str) -> list[str]:
    """Return the per-thread parts of a directory recording, in numeric order."""
    # direct: names are listed; the files are opened by `files`
    numbers = [name.removeprefix("data.") for name in os.listdir(directory) if name.startswith("data.")]
    numbers = sorted((number for number in numbers if number.isascii() and number.isdigit()), key=int)
    return [os.path.join(directory, f"data.{number}") for number in numbers]
