# SPDX-License-Identifier: Apache-2.0
"""Check the recordings that a verb reads, and open its output, which appears complete or not at all: by `open_output`
for text and converters, by `write_recording` for recordings, whose writer seeks back."""

import argparse
import contextlib
import errno
import glob
import gzip
import io
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any, TypeVar

from perf_offcpu import losses
from perf_offcpu.commands.shared.parsers import add_options
from perf_offcpu.directories import Directory
from perf_offcpu.errors import PerfOffcpuError, UsageError
from perf_offcpu.losses import LossCause
from perf_offcpu.text import printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

RECORDING = "perf.data"  # the default recording


def add_one_input(parser: argparse.ArgumentParser) -> None:
    """Add `-i` and `-f` of a verb that reads one recording."""
    add_options(parser, "shared.one_input", input={"action": _OneInput, "default": RECORDING})


class _OneInput(argparse.Action):
    """Argparse action that stores the path of the recording; a second -i raises UsageError."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: Any = None) -> None:
        if getattr(namespace, self.dest) is not self.default:
            raise UsageError("-i is given twice: one recording is read (report, script and convert join more)")
        setattr(namespace, self.dest, values)


def check_ownership(path: str, force: bool) -> None:
    """Raise PerfOffcpuError for a recording (file or directory) of another user than root and the caller, who could
    have prepared it, unless `force` is set. Standard input, FIFOs and missing files are accepted, as in perf
    (tools/perf/util/data.c, open_file_read())."""
    if force or path == "-":
        return
    # direct: names are listed; every file is opened by `files` later, and read as a hostile one
    for name in (path, *glob.glob(f"{glob.escape(path)}/data*")):
        try:
            status = os.stat(name)  # direct: asks whose it is
        except OSError:
            continue
        if not stat.S_ISFIFO(status.st_mode) and status.st_uid not in (0, os.geteuid()):
            raise PerfOffcpuError(f"{name}: not owned by the current user or root (use -f to read it anyway)")


def note_cut(args: argparse.Namespace, path: str, counts: Mapping[LossCause, int]) -> bool:
    """Print to stderr that a recording is cut or has no end, if its losses `counts` say so; return True then. The path
    of a cut recording is added to `args.cut`, a list that all copies of `args` share, for the exit status."""
    causes = [cause for cause in losses.CUT if counts.get(cause)]
    if causes:
        reasons = "; ".join(f"{counts[cause]} {cause}" for cause in causes)
        print(f"perf-offcpu: {printable(path)}: {reasons}", file=sys.stderr, flush=True)
    if causes and losses.NO_END not in causes:
        args.cut.append(path)
    return bool(causes)


STDOUT = "-"
_GZIP_LEVEL = 6

_Result = TypeVar("_Result")


def check_distinct(inputs: Iterable[str], output: str) -> None:
    """Raise UsageError if the output is the same file as one of the inputs, perhaps under another name."""
    if output == STDOUT or not os.path.exists(output):  # direct: compares what the user named
        return
    # direct: compares what the user named
    if any(os.path.exists(path) and os.path.samefile(path, output) for path in inputs):
        raise UsageError(f"{output}: input and output are the same file: name another output")


@contextlib.contextmanager
def open_output(path: str, *, binary: bool, inputs: Iterable[str] = ()) -> Iterator[IO[Any]]:
    """Yield a stream for bytes (`binary`) or text (UTF-8, lines end with LF) to a file; `-` is standard output.

    Text for names in `.gz` is compressed, always to the same bytes. A file gets its name, or replaces the old one, when
    the `with` block ends without an exception; until then it is a temporary file. A FIFO or device is written directly.

    `inputs`: recordings that the output shows; its mode lets others read it only if the modes of all inputs do. Raise
    UsageError for bytes to a terminal and for the name of a directory, OSError if the file cannot be written."""
    if path.endswith("/"):  # abspath() would drop it
        raise UsageError(f"{path}: is the name of a directory: give that of a file")
    if path.endswith(".gz") and not binary:
        with (
            open_output(path, binary=True, inputs=inputs) as raw,
            gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0) as packed,
            io.TextIOWrapper(packed, "utf-8", newline="\n") as out,
        ):
            yield out
    elif path == STDOUT:
        with _stdout(binary) as out:
            yield out
    else:
        with _errors_name(path):
            directory, name = Directory.of_output(path)
        with directory, _in_directory(directory, name, path, binary, _mode(inputs)) as out:
            yield out


def _mode(inputs: Iterable[str]) -> int:
    """Return the mode of an output file, before the umask: readable by others only if all `inputs` are."""
    mode = 0o666
    for path in inputs:
        with contextlib.suppress(OSError):  # as the standard input has none
            mode &= os.stat(path).st_mode | 0o600  # direct: asks for the mode
    return mode


def write_recording(output: str, write: Callable[[int, str], _Result]) -> _Result:
    """Call `write(fd, name)` to write a recording to the file `output`, which appears complete or not at all, or to
    standard output ("-"); return its result. Raise UsageError for a terminal, RecordingError if no file can be made."""
    from perf_offcpu.perfdata.write.output import AtomicFile

    if output == STDOUT:
        if os.isatty(1):
            raise UsageError("a recording is not text: write it to a file with -o FILE, or into a pipe")
        return write(1, "standard output")
    with AtomicFile(output) as file:
        result = write(file.fd, output)
        file.commit()
    return result


class NamedFile(io.FileIO):
    """FileIO for writing whose errors, such as a full disk, have the file name `shown`."""

    def __init__(self, fd: int, shown: str) -> None:
        super().__init__(fd, "wb")
        self.shown = shown

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write as FileIO does; an OSError has the name `shown`."""
        with _errors_name(self.shown):
            return super().write(data)


@contextlib.contextmanager
def _errors_name(shown: str) -> Iterator[None]:
    """Set the file name of OSErrors in the `with` block to `shown`."""
    try:
        yield
    except OSError as problem:
        problem.filename = shown
        raise


def _open(fd: int, shown: str, binary: bool) -> IO[Any]:
    raw = io.BufferedWriter(NamedFile(fd, shown))
    return raw if binary else io.TextIOWrapper(raw, "utf-8", newline="\n")


@contextlib.contextmanager
def _in_directory(directory: Directory, name: str, shown: str, binary: bool, mode: int) -> Iterator[IO[Any]]:
    """Yield a stream to the existing device or FIFO `name` of a directory, else to a new file that appears whole.
    `shown`: its name in errors; `mode`: of the new file."""
    status = directory.status(name)
    if status is not None and stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), shown)
    if status is not None and not stat.S_ISREG(status.st_mode):
        # direct: a link that is left is one of /proc/self/fd, where /dev/stdout leads
        fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory.fd)
        with _open(fd, shown, binary) as out:
            yield out
        return
    with (
        _errors_name(shown),
        directory.replacing(name, mode) as file,
        _open(os.dup(file.fileno()), shown, binary) as out,
    ):
        yield out


@contextlib.contextmanager
def _stdout(binary: bool) -> Iterator[IO[Any]]:
    """Yield standard output for bytes, or for text in UTF-8 in any locale; raise UsageError for bytes to a terminal."""
    out = sys.stdout
    if binary:
        if out.isatty():
            raise UsageError("this format is not text: write it to a file with -o FILE")
        out.flush()
        yield out.buffer
        out.buffer.flush()
        return
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(encoding="utf-8", errors="strict", newline="\n")
    yield out
    out.flush()
