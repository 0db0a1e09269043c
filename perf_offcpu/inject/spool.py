# SPDX-License-Identifier: Apache-2.0
"""Reading a recording more than once, a pipe too.

A pipe can be read only once. What needs two passes over it first copies it into a temporary file (in TMPDIR,
/tmp by default), which has no name there and is gone with the process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from perf_offcpu.errors import FormatError, RecordingError
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.source import STDIN, open_file
from perf_offcpu.structs import frozen

STDIN_NAME = "standard input"


@frozen
class Repeatable:
    """A recording that can be opened any number of times.

    Args:
        path: what to open.
        name: as the user knows it.
    """

    path: str
    name: str

    def open(self) -> PerfDataReader:
        """Open it from its beginning.

        Raises:
            FormatError: it cannot be opened, or is no perf.data.
        """
        try:
            reader = PerfDataReader.open(self.path)
        except FormatError as problem:
            raise FormatError(self.name, problem.what, problem.problem, problem.offset) from None
        reader.path = self.name
        return reader


@contextlib.contextmanager
def repeatable(path: str) -> Iterator[Repeatable]:
    """A recording by its path: a file or directory as it is, a FIFO or "-" (standard input) as a copy.

    Raises:
        FormatError: it cannot be opened.
        RecordingError: there is no room for the copy.
    """
    if path == STDIN:
        stream, name = os.fdopen(os.dup(0), "rb"), STDIN_NAME
    elif _is_fifo(path):
        stream, name = os.fdopen(open_file(path, (stat.S_ISFIFO,)), "rb"), path
    else:
        yield Repeatable(path, path)
        return
    with stream:
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            yield Repeatable(f"/proc/self/fd/{stream.fileno()}", name)
            return
        with tempfile.TemporaryFile() as copy:
            _fill(copy, stream)
            yield Repeatable(f"/proc/self/fd/{copy.fileno()}", name)


def _is_fifo(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False  # opening it will say why


def _fill(copy: BinaryIO, stream: BinaryIO) -> None:
    try:
        shutil.copyfileobj(stream, copy, 1 << 20)
        copy.flush()
    except OSError as problem:
        raise RecordingError(
            f"{tempfile.gettempdir()}: cannot keep a copy of the input: {problem.strerror} (set TMPDIR)"
        ) from None
