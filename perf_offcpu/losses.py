# SPDX-License-Identifier: Apache-2.0
"""Declare the causes of losses as Python names; losses.toml has the sentence and the remedy of each.

The recorder, the readers of files, decode, unwind, symbolize, inject and the views count by them what they lose; the
last line of `record`, the report and Documentation/losses.md print the sentences. Each enumerator of
`enum offcpu_counter` (bpf/off_cpu.h) has a row of `Stage.BPF` under its name.

Reading never fails for a damaged record: it is counted, and the rest of the file is read."""

import enum
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

from perf_offcpu.tables import read_table


class Stage(enum.Enum):
    """Stage at which losses are counted; the value is its heading in Documentation/losses.md."""

    BPF = "Counted by the BPF program"
    RECORDER = "Counted by the recorder"
    FILE = "Counted while a file is read or written"
    DECODE = "Counted while records are decoded"
    SWITCHES = "Counted while waits are made from context switches"
    UNWIND = "Counted while copies of user stacks are unwound"
    NAMES = "Addresses without a name"
    LINES = "Addresses without a source line"
    INJECT = "Counted by inject"
    SELECT = "Counted while samples are selected"
    SAMPLES = "Properties of samples"


class LossCause(NamedTuple):
    """Cause of losses."""

    stage: Stage
    name: str  # identifier, also in recordings with counters of the BPF program and the recorder
    text: str  # what was lost, to follow a number: "records of unknown type"
    remedy: str = ""  # advice that prevents it; "" if nothing helps
    is_loss: bool = True  # False if nothing is missing and the number is only a note
    in_last_line: bool = False  # the last line of `record` names it

    def __str__(self) -> str:
        """Return the sentence: what was lost, and the remedy."""
        text = _PREFIXES.get(self.stage, "") + self.text
        return f"{text}; {self.remedy}" if self.remedy else text

    def about(self, subject: str, detail: str = "") -> Self:
        """Return a copy of the cause with the text `SUBJECT: text: DETAIL`, for one subject such as a file."""
        return self._replace(text=f"{subject}: {self.text}" + (f": {detail}" if detail else ""))


_PREFIXES = {Stage.NAMES: "no name: ", Stage.LINES: "no source lines: "}


class Losses(Counter[LossCause]):
    """Numbers of losses by cause."""

    def add(self, cause: LossCause, count: int = 1) -> None:
        """Count losses of a cause; a count of 0 adds no entry."""
        if count:
            self[cause] += int(count)

    def take_back(self, cause: LossCause, count: int) -> None:
        """Subtract losses that turned out to be none; the entry is removed if nothing is left."""
        self[cause] -= count
        if self[cause] <= 0:
            del self[cause]


def by_text(counts: Mapping[LossCause, int]) -> dict[LossCause, int]:
    """Return the counts sorted by the sentences of their causes."""
    return dict(sorted(counts.items(), key=lambda item: str(item[0])))


def without_notes(counts: Mapping[LossCause, int]) -> dict[LossCause, int]:
    """Return the counts of causes that are losses, without mere notes, sorted as by `by_text`."""
    return {cause: count for cause, count in by_text(counts).items() if cause.is_loss}


LARGER_RINGS = "larger rings (-m 64M)"
FEWER_SAMPLES = "a higher --off-cpu-thresh, or --max-rate"

_SECTIONS = dict(read_table(__file__))
_NOTES, _LAST_LINE = (frozenset(names.split()) for names in _SECTIONS["marks"].values())


def _rows(stage: Stage) -> Iterator[LossCause]:
    """Yield the causes of a stage, in the order of losses.toml."""
    for name, sentence in _SECTIONS[stage.name.lower()].items():
        text, _, remedy = " ".join(sentence.split()).partition(" | ")
        yield LossCause(stage, name, text, remedy, name not in _NOTES, name in _LAST_LINE)


(
    SAMPLES, ONCPU_SAMPLES, RING_FULL, OUTPUT_FAILED, SUM_MAP_FULL, STACK_MAP_FULL, STACK_COLLISION, WAITS_LOST,
    USER_STACK_FAILED, KERNEL_STACK_FAILED, STORAGE_FAILED, ENDS_MISSED, BEGINS_MISSED, WAKEUPS_MISSED, TOO_SHORT,
    DROPPED, RATE_LIMITED, BUDGETS_LOST, SNAPSHOTS, SNAPSHOTS_LOST, COPIES_LIMITED, OBJECTS_CLOSED, OBJECTS_UNREADABLE,
    OBJECTS_COMPAT, OBJECTS_FULL, EVENTS_TAKEN, UNSAMPLED, PYTHON_UNREADABLE,
) = _rows(Stage.BPF)  # fmt: skip
(
    MISSED_RUNS, STACK_PERIOD, SAMPLING_PERIOD, THRESHOLD_RAISED, KERNEL_TEXT, PROCESSES_DENIED, THREADS_HIDDEN,
    PROCESSES_STUCK, PROCESSES_ODD, MAPS_LEFT_OUT, THREADS_LEFT_OUT, LONG_NAMES, FILES_UNREAD, GROUPS_LEFT_OUT,
    OBJECTS_UNNAMED, WAITERS_UNREAD, PYTHON_UNKNOWN, JVM_UNASKED, EVENT_LOOP_UNREAD, GO_UNKNOWN,
    GOROUTINES_UNREAD, GOROUTINES_MOVED, UNPRIVILEGED, WAITS_UNSEEN, LOOKS_DISTURBED, RECORDS_UNWRITTEN, SUMS_UNWRITTEN,
    STILL_BLOCKED_UNWRITTEN, PYTHON_UNWRITTEN, OBJECTS_UNWRITTEN, BUDGETS_UNWRITTEN,
) = _rows(Stage.RECORDER)  # fmt: skip
(
    LOST_RECORDS, LOST_SAMPLES, FILE_CUT, NO_END, BAD_SIZE, BAD_RECORD, BAD_SAMPLE, UNKNOWN_RECORD, UNKNOWN_ID,
    UNKNOWN_OWNER, BAD_FEATURE, LARGE_FEATURE, BAD_COMPRESSED, BAD_ATTRS, ODD_ATTRS, BAD_IDS, DUPLICATE_ID, BAD_WRAPPER,
    UNREADABLE,
) = _rows(Stage.FILE)  # fmt: skip
(
    MAPS_FORGOTTEN, FOREIGN_IDS, OTHER_PAYLOAD, PYTHON_UNDESCRIBED, UNMERGED, WRONG_CALLERS, CALLERS_NOT_COPIED,
    NO_ROOM_FOR_STACKS,
) = _rows(Stage.DECODE)  # fmt: skip
END_NOT_RECORDED, BEGIN_NOT_RECORDED, BEGIN_UNKNOWN, IN_GAP, BROKEN_SWITCHES, BAD_TRACEPOINT = _rows(Stage.SWITCHES)
COPY_EXHAUSTED, STACK_TOO_DEEP, NO_CFI, OUTSIDE_MAPS, UNKNOWN_MACHINE = _rows(Stage.UNWIND)
(
    NOT_MAPPED, NO_SYMBOL, NO_KERNEL_SYMBOL, OTHER_KERNEL, KALLSYMS_HIDDEN, PYTHON_MISSED, NO_FILE, FILE_DELETED,
    UNSAFE_PATH, FILE_MISSING, FILE_DENIED, NOT_REGULAR, FILE_DAMAGED, OTHER_BUILD, FILE_CHANGED, SEVERAL_FILES,
    NO_SYMBOLS, NO_PERF_MAP, PERF_MAP_REFUSED, PERF_MAP_LACKS,
) = _rows(Stage.NAMES)  # fmt: skip
NO_LINE_READER, DWARF_SPLIT, DWARF_SHARED, DWARF_TOO_LARGE, DWARF_STOPPED, DWARF_DAMAGED = _rows(Stage.LINES)
UNREADABLE_BY_PERF, NO_TRACES, NO_ID_IN_SAMPLES, CALLCHAIN_TOO_LONG = _rows(Stage.INJECT)
UNTIMED, IDLE_THREADS, IDLE_MS, KEPT_SUMS = _rows(Stage.SELECT)
(
    NO_STACK, NO_USER_STACK, NO_KERNEL_STACK, NO_DEFERRED_STACK, STACK_CUT, REPAIRED_IDS, STILL_BLOCKED, BEGAN_BEFORE,
    TASKS_UNREAD,
) = _rows(Stage.SAMPLES)  # fmt: skip
CUT = (NO_END, BAD_WRAPPER, FILE_CUT, BAD_SIZE, UNREADABLE)
"""Causes by which a recording lacks its end. With NO_END alone, all records that were written are in the file."""
CAUSES = {row.name: row for row in list(vars().values()) if isinstance(row, LossCause)}
"""All rows by name, in the order of this table."""
