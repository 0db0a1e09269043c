# SPDX-License-Identifier: Apache-2.0
"""The exceptions of perf-offcpu.

Libraries raise these; only `commands/` and `cli.py` print them and choose the exit status. The text of
each is one sentence that a user can act on: what is wrong, where, and what to do. Damage inside a file is
not an error of the whole: readers count it (see `losses`) and go on with what is sound.
"""

from __future__ import annotations


class PerfOffcpuError(Exception):
    """Base of everything that perf-offcpu raises on purpose."""

    exit_status = 1


class FormatError(PerfOffcpuError):
    """A file is not what it says: nothing can be read from it (or from the part named).

    Args:
        path: the file, as the user named it.
        what: which part of it.
        problem: what is wrong, with both numbers where two disagree.
        offset: where, in bytes from the start of the file; None if the part has no place.
    """

    def __init__(self, path: str, what: str, problem: str, offset: int | None = None) -> None:
        self.path, self.what, self.problem, self.offset = path, what, problem, offset
        where = "" if offset is None else f" at offset {offset:#x}"
        super().__init__(f"{path}: {what}{where}: {problem}")


class LayoutError(PerfOffcpuError):
    """Bytes do not hold what a layout asks for, or values do not fit it."""


class CapabilityError(PerfOffcpuError):
    """This machine or user lacks something that recording needs.

    Args:
        what: what is missing.
        remedy: the package, setting or privilege that gives it.
    """

    def __init__(self, what: str, remedy: str) -> None:
        self.what, self.remedy = what, remedy
        super().__init__(f"{what}: {remedy}")


class UsageError(PerfOffcpuError):
    """The command line asks for something impossible."""

    exit_status = 129  # as perf's own parse-options exits


class TargetError(PerfOffcpuError):
    """The process, thread or command to record is not there, or is gone."""


class RecordingError(PerfOffcpuError):
    """Recording could not start or go on: a full disk, a refused event, a ring that cannot be mapped."""


class FileFullError(RecordingError):
    """A file took only a part of what was appended.

    Args:
        text: the sentence.
        taken: bytes of what was appended, whole records, that are in the file.
        records: how many records these are.
    """

    def __init__(self, text: str, taken: int, records: int) -> None:
        self.taken, self.records = taken, records
        super().__init__(text)
