# SPDX-License-Identifier: Apache-2.0
"""Exceptions of perf-offcpu. Libraries raise them; only `commands/` and `cli.py` print them and choose the exit status.
The text of each is one sentence that a user can act on: what is wrong, where, and what to do. Damage inside a file is
no error of the whole: readers count it (see `losses`) and continue with the sound parts."""


class PerfOffcpuError(Exception):
    """Base of all errors that perf-offcpu raises on purpose."""

    exit_status = 1


class FormatError(PerfOffcpuError):
    """The part `what` of a file cannot be read. `path`: the file as the user named it; `problem`: the reason; `offset`:
    of the part in the file, None if not known."""

    def __init__(self, path: str, what: str, problem: str, offset: int | None = None) -> None:
        self.path, self.what, self.problem, self.offset = path, what, problem, offset
        where = "" if offset is None else f" at offset {offset:#x}"
        super().__init__(f"{path}: {what}{where}: {problem}")


class LayoutError(PerfOffcpuError):
    """Bytes or values do not fit a `binary.layout.Layout`."""


class CapabilityError(PerfOffcpuError):
    """The machine or the user lacks something: `what`, in words; `remedy`: what to do."""

    def __init__(self, what: str, remedy: str) -> None:
        self.what, self.remedy = what, remedy
        super().__init__(f"{what}: {remedy}")


class UsageError(PerfOffcpuError):
    """The command line asks for something impossible."""

    exit_status = 129  # as perf's own parse-options exits


class TargetError(PerfOffcpuError):
    """The process, thread or command to record does not exist any more."""


class RecordingError(PerfOffcpuError):
    """Recording cannot start or continue: a full disk, a refused event, a ring that cannot be mapped."""


class FileFullError(RecordingError):
    """Only a part of the records to append could be written: `taken` bytes, with `records` whole records."""

    def __init__(self, text: str, taken: int, records: int) -> None:
        self.taken, self.records = taken, records
        super().__init__(text)
