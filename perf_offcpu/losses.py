# SPDX-License-Identifier: Apache-2.0
"""The table of losses: each cause with its counter, its sentence and its remedy, one row a cause.

The recorder, the readers of files, decode, unwind, symbolize, inject and the views count by a row of this
table what they lose; the last line of `record`, the report and Documentation/losses.md print the row. Each
enumerator of `enum offcpu_counter` (bpf/off_cpu.h) has a row of `Stage.BPF` under its name.

Reading never fails for a damaged record: it is counted, and the rest of the file is read.
"""

import enum
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, Self


class Stage(enum.Enum):
    """The stages at which losses are counted; the value heads the rows in Documentation/losses.md."""

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
    """Describes a cause of losses: stage, sentence and remedy."""

    stage: Stage  # where it is counted
    name: str  # its identifier; counters of the BPF program and the recorder stand in files under it
    text: str  # what was lost, to follow a number: "records of unknown type"
    remedy: str = ""  # advice that prevents it; "" if nothing helps
    is_loss: bool = True  # False if nothing is missing and the number is only a note
    in_last_line: bool = False  # the last line of `record` names it

    def __str__(self) -> str:
        """Return the sentence: what was lost, and the remedy."""
        text = _PREFIXES.get(self.stage, "") + self.text
        return f"{text}; {self.remedy}" if self.remedy else text

    def about(self, subject: str, detail: str = "") -> Self:
        """Return the cause for one subject, such as a file: `SUBJECT: text`, with a detail after it."""
        return self._replace(text=f"{subject}: {self.text}" + (f": {detail}" if detail else ""))


_PREFIXES = {Stage.NAMES: "no name: ", Stage.LINES: "no source lines: "}


class Losses(Counter[LossCause]):
    """Counts losses: LossCause → number."""

    def add(self, cause: LossCause, count: int = 1) -> None:
        """Count losses; 0 adds nothing."""
        if count:
            self[cause] += int(count)

    def take_back(self, cause: LossCause, count: int) -> None:
        """Subtract counted losses that turned out not to be losses; the count stays at least 0."""
        self[cause] -= count
        if self[cause] <= 0:
            del self[cause]


def by_text(counts: Mapping[LossCause, int]) -> dict[LossCause, int]:
    """Return the counts sorted by the sentences of their causes."""
    return dict(sorted(counts.items(), key=lambda item: str(item[0])))


LARGER_RINGS = "larger rings (-m 64M)"
FEWER_SAMPLES = "a higher --off-cpu-thresh, or --max-rate"
_RING_REMEDY = f"record with {LARGER_RINGS}, {FEWER_SAMPLES}"
_bpf = partial(LossCause, Stage.BPF)
_missing = partial(LossCause, Stage.BPF, in_last_line=True)
SAMPLES = _bpf("samples", "waits sampled", is_loss=False)
ONCPU_SAMPLES = _bpf("oncpu-samples", "on-CPU samples of recorded tasks", is_loss=False)
RING_FULL = _missing("ring-full", "waits summed instead of sampled because the ring was full", _RING_REMEDY)
OUTPUT_FAILED = _missing("output-failed", "waits summed instead of sampled because their CPU had no event")
SUM_MAP_FULL = _bpf(
    "sum-map-full", "short waits sampled instead of summed because the map of sums was full (nothing is missing)"
)
STACK_MAP_FULL = _missing("stack-map-full", "waits summed without stack because the map of stacks was full")
STACK_COLLISION = _missing("stack-collision", "waits summed without stack because of a hash collision")
WAITS_LOST = _missing("waits-lost", "waits neither sampled nor summed")
USER_STACK_FAILED = _missing("user-stack-failed", "user stacks that could not be walked")
KERNEL_STACK_FAILED = _missing("kernel-stack-failed", "kernel stacks that could not be walked")
STORAGE_FAILED = _missing("storage-failed", "switches not traced because the kernel had no memory for the task")
ENDS_MISSED = _bpf("ends-missed", "waits whose end was not traced")
BEGINS_MISSED = _bpf("begins-missed", "times off the CPU whose start was not traced")
WAKEUPS_MISSED = _bpf("wakeups-missed", "waits whose wake-up was not traced (their run-queue delay is not known)")
TOO_SHORT = _bpf("too-short", "waits left out because they were shorter than asked for (--min-block)")
DROPPED = _bpf("dropped", "waits under the threshold left out as asked for (--short-waits drop)")
RATE_LIMITED = _bpf("rate-limited", "waits over the threshold summed to limit the rate of samples (--max-rate)")
BUDGETS_LOST = _bpf("budgets-lost", "threads that ended and whose budget found no room in its map")
SNAPSHOTS = _bpf("snapshots", "short waits sampled with a copy of their stack", is_loss=False)
SNAPSHOTS_LOST = _missing(
    "snapshots-lost", "short waits summed without a copy of their stack because the ring was full", _RING_REMEDY
)
COPIES_LIMITED = _bpf(
    "copies-limited",
    "user stacks copied short, or followed by frame pointers only, because copies had taken their bytes of the second",
    FEWER_SAMPLES,
)
OBJECTS_CLOSED = _bpf("objects-closed", "waits for descriptors that were not open: their object is not known")
OBJECTS_UNREADABLE = _bpf("objects-unreadable", "waits whose object could not be read from memory")
OBJECTS_COMPAT = _bpf("objects-compat", "waits of 32-bit programs, whose objects are not looked up")
OBJECTS_FULL = _bpf("objects-full", "objects of waits not described because too many were new at once")
EVENTS_TAKEN = _bpf(
    "events-taken",
    "waits in epoll after which nothing was ready: another thread had taken the event, or a signal ended the "
    "wait, so that all watched descriptors are its object",
)
UNSAMPLED = _bpf("unsampled", "waits that samples of others stand for (--off-cpu-period)", is_loss=False)
PYTHON_UNREADABLE = _bpf("python-unreadable", "waits with Python functions that could not be read from memory")
_recorder = partial(LossCause, Stage.RECORDER)
MISSED_RUNS = _recorder(
    "missed-runs", "switches not traced because the BPF program was already running on that CPU", in_last_line=True
)
STACK_PERIOD = _recorder("stack-period", "period of user stacks of short waits, ns", is_loss=False)
SAMPLING_PERIOD = _recorder("sampling-period", "period of off-cpu samples, ns", is_loss=False)
THRESHOLD_RAISED = _recorder(
    "threshold-raised", "times that the threshold rose to limit the rate of samples (--max-rate)"
)
ODD_KERNEL_TEXT = _recorder("kernel-text", "lines of /proc skipped because they have another form")
PROCESSES_DENIED = _recorder(
    "processes-denied",
    "processes that may not be read: their mappings or names are missing",
    "record as root, or with CAP_SYS_PTRACE",
)
THREADS_HIDDEN = _recorder(
    "threads-hidden",
    "threads that /proc does not show (mount option hidepid): their names and mappings are missing",
    "record as root, or with CAP_SYS_PTRACE",
)
PROCESSES_STUCK = _recorder(
    "processes-stuck", "processes whose mappings are missing because the kernel did not answer in time"
)
PROCESSES_ODD = _recorder("processes-odd", "processes left out because /proc has another form than expected")
MAPS_LEFT_OUT = _recorder("maps-left-out", "mappings left out, or more: those of a process, or of all, have a bound")
THREADS_LEFT_OUT = _recorder("threads-left-out", "threads without a name or a parent: those of a process have a bound")
LONG_NAMES = _recorder("long-names", "names of mapped files longer than 4087 bytes, written as //toolong")
FILES_UNREAD = _recorder(
    "files-unread", "mapped files without a build-id because reading them took too long, or never ended"
)
GROUPS_LEFT_OUT = _recorder(
    "groups-left-out", "control groups left out, with those in them: there are too many, or they are too deep"
)
OBJECTS_UNNAMED = _recorder(
    "objects-unnamed", "objects of waits without a name because the kernel did not answer in time"
)
WAITERS_UNREAD = _recorder(
    "waiters-unread", "threads still blocked whose memory was not read, because there was no time or they are too many"
)
PYTHON_UNKNOWN = _recorder(
    "python-unknown", "processes with a Python whose functions are not read: 3.10 to 3.14 with a GIL are"
)
PYTHON_UNREAD = _recorder("python-unread", "threads, blocked at the end, whose Python functions could not be read")
JVM_UNASKED = _recorder("jvm-unasked", "JVMs that gave no names of the code that they have compiled")
EVENT_LOOP_UNREAD = _recorder(
    "event-loop-unread", "event loops, blocked at the end, whose tasks could not be read, or not all of them"
)
UNPRIVILEGED = _recorder(
    "unprivileged",
    "recording by an ordinary user: no wakers, no run-queue delay of single waits, no user stacks of short waits; "
    "kernel stacks only at kernel.perf_event_paranoid 1 or lower",
    is_loss=False,
)
WAITS_UNSEEN = _recorder(
    "waits-unseen",
    "waits without stack and object because they ended before the recorder looked at the thread",
    "record as root, or with CAP_BPF and CAP_PERFMON",
)
LOOKS_DISTURBED = _recorder("looks-disturbed", "stacks thrown away because the thread ran while they were read")
_FULL = "not written because the file took no more (disk full)"
RECORDS_UNWRITTEN = _recorder("records-unwritten", f"records {_FULL}")
SUMS_UNWRITTEN = _recorder("sums-unwritten", f"sums of short waits {_FULL}")
STILL_BLOCKED_UNWRITTEN = _recorder("still-blocked-unwritten", f"threads still blocked {_FULL}")
PYTHON_UNWRITTEN = _recorder("python-unwritten", f"Python functions of threads {_FULL}")
OBJECTS_UNWRITTEN = _recorder("objects-unwritten", f"descriptions of wait objects {_FULL}")
BUDGETS_UNWRITTEN = _recorder("budgets-unwritten", f"budgets of threads {_FULL}")
_file = partial(LossCause, Stage.FILE)
LOST_RECORDS = _file(
    "lost-records", "records lost in full rings (LOST)", f"record with {LARGER_RINGS}", in_last_line=True
)
LOST_SAMPLES = _file("lost-samples", "samples lost in the kernel (LOST_SAMPLES)")
FILE_CUT = _file("file-cut", "bytes missing at the end of the file, which is cut")
NO_END = _file("no-end", "end of the data missing: the recorder was killed")
BAD_SIZE = _file("bad-size", "bytes skipped after a record of impossible size")
BAD_RECORD = _file("bad-record", "records whose content does not fit their type")
BAD_SAMPLE = _file("bad-sample", "samples whose content does not fit their event")
UNKNOWN_RECORD = _file("unknown-record", "records of unknown type")
UNKNOWN_ID = _file("unknown-id", "samples of unknown event id")
UNKNOWN_OWNER = _file("unknown-owner", "records of unknown event id")
BAD_FEATURE = _file("bad-feature", "header features that could not be read")
LARGE_FEATURE = _file("large-feature", "header features left out: too large for the pipe form")
BAD_COMPRESSED = _file("bad-compressed", "compressed records that could not be decompressed")
BAD_ATTRS = _file("bad-attrs", "events whose attr could not be read")
ODD_ATTRS = _file("odd-attrs", "events whose attr has another size than the table of attrs says")
BAD_IDS = _file("bad-ids", "event ids that could not be read")
DUPLICATE_ID = _file("duplicate-id", "event ids that several events claim (the first one has their samples)")
BAD_WRAPPER = _file("bad-wrapper", "packed files that are damaged: read as far as they could be unpacked")
UNREADABLE = _file("unreadable", "parts of the file that could not be read (I/O error)")
CUT = (NO_END, BAD_WRAPPER, FILE_CUT, BAD_SIZE, UNREADABLE)
"""Causes by which a recording lacks its end. With NO_END alone, all records that were written are in the file."""

_decode = partial(LossCause, Stage.DECODE)
MAPS_FORGOTTEN = _decode("maps-forgotten", "mappings left out because there are impossibly many")
FOREIGN_IDS = _decode(
    "foreign-ids",
    "off-cpu samples of threads that the recording does not name: "
    "it was made in a container and mixes the ids of two pid namespaces",
)
OTHER_PAYLOAD = _decode(
    "other-payload", "off-cpu samples not read", "read them with the perf-offcpu that recorded them"
)
PYTHON_UNDESCRIBED = _decode("python-undescribed", "places in Python functions whose description was lost")
UNMERGED = _decode("unmerged", "samples whose deferred user callchain never came")
WRONG_CALLERS = _decode(
    "wrong-callers",
    "user callchains that ended in wrong addresses, which are left out: code without frame pointers "
    "(--call-graph cfi needs none)",
    is_loss=False,
)
CALLERS_NOT_COPIED = _decode(
    "callers-not-copied",
    "waits whose stack should be in another sample, and is not: their stacks end where frame pointers do",
)
NO_ROOM_FOR_STACKS = _decode("no-room-for-stacks", "user stacks not kept for unwinding: no room for them in TMPDIR")
_switches = partial(LossCause, Stage.SWITCHES)
END_NOT_RECORDED = _switches("end-not-recorded", "waits left out because their end was not recorded")
BEGIN_NOT_RECORDED = _switches("begin-not-recorded", "waits left out because their start was not recorded")
BEGIN_UNKNOWN = _switches("begin-unknown", "waits left out because they began before the recording, at an unknown time")
IN_GAP = _switches("in-gap", "waits left out because switches may have been lost while they lasted")
BROKEN_SWITCHES = _switches(
    "broken-switches",
    "places where switches are missing: those of a CPU do not follow each other",
    "record with -a, unfiltered",
)
BAD_TRACEPOINT = _switches("bad-tracepoint", "scheduler tracepoints whose raw data is not as their format says")
_unwind = partial(LossCause, Stage.UNWIND)
COPY_EXHAUSTED = _unwind(
    "copy-exhausted",
    "user stacks cut: the copy ends before the stack",
    "record with --call-graph cfi,BYTES (at most 32K)",
)
STACK_TOO_DEEP = _unwind(
    "stack-too-deep",
    "user stacks cut: their copies are as large as they can be (32K, or up to a page that was never touched)",
)
NO_CFI = _unwind("no-cfi", "user stacks cut: code without call frame information and frame pointer")
OUTSIDE_MAPS = _unwind("outside-maps", "user stacks cut: the caller is outside of every mapping")
UNKNOWN_MACHINE = _unwind(
    "unknown-machine", "user stacks not unwound: recorded on a machine whose frames are not known here"
)

_names = partial(LossCause, Stage.NAMES)
NOT_MAPPED = _names("not-mapped", "user addresses outside every mapping")
NO_SYMBOL = _names("no-symbol", "addresses outside every symbol of their file")
NO_KERNEL_SYMBOL = _names("no-kernel-symbol", "kernel addresses outside every symbol")
OTHER_KERNEL = _names(
    "other-kernel", "kernel addresses: this machine runs another kernel than the recorded one", "give --kallsyms"
)
KALLSYMS_HIDDEN = _names("kallsyms-hidden", "kernel addresses: hidden by kernel.kptr_restrict")
PYTHON_MISSED = _names("python-missed", "waits in Python without its functions: they could not be read, or not in time")
NO_FILE = _names("no-file", "it is memory without a file")
FILE_DELETED = _names("file-deleted", "the file was deleted")
UNSAFE_PATH = _names(
    "unsafe-path", "its path is not followed (relative, .., control characters, or in /dev, /proc, /sys)"
)
FILE_MISSING = _names("file-missing", "there is no such file here")
FILE_DENIED = _names("file-denied", "the file may not be read")
NOT_REGULAR = _names("not-regular", "it is not a regular file")
FILE_DAMAGED = _names("file-damaged", "it is not an ELF executable or shared object, or is damaged")
OTHER_BUILD = _names("other-build", "the file here has another build-id than the recorded one")
FILE_CHANGED = _names("file-changed", "the file was changed after the recording, which holds no build-id of it")
SEVERAL_FILES = _names("several-files", "processes have different files of this name, without build-ids, in containers")
NO_SYMBOLS = _names("no-symbols", "it holds no symbols")
NO_PERF_MAP = _names(
    "no-perf-map",
    "code generated at run time, without a map of it (/tmp/perf-PID.map)",
    "start Node.js with --perf-basic-prof --interpreted-frames-native-stack",
)
PERF_MAP_REFUSED = _names("perf-map-refused", "not read")
PERF_MAP_LACKS = _names("perf-map-lacks", "addresses that it does not list")
_lines = partial(LossCause, Stage.LINES)
NO_LINE_READER = _lines("no-line-reader", "the Python package symbolic is not installed")
DWARF_SPLIT = _lines("dwarf-split", "its DWARF is split off into .dwo files, which are not read")
DWARF_SHARED = _lines("dwarf-shared", "its DWARF is shared with other files by dwz, which is not followed")
DWARF_TOO_LARGE = _lines("dwarf-too-large", "its DWARF is too large")
DWARF_STOPPED = _lines("dwarf-stopped", "reading its DWARF took too long or too much memory")
DWARF_DAMAGED = _lines("dwarf-damaged", "its DWARF cannot be read")
_inject = partial(LossCause, Stage.INJECT)
UNREADABLE_BY_PERF = _inject("unreadable-by-perf", "records left out because perf 6.1 cannot read their type")
NO_TRACES = _inject("no-traces", "records of processor traces (AUX area) left out: only samples are copied")
NO_ID_IN_SAMPLES = _inject(
    "no-id-in-samples", "waits between switches not written: samples carry no id that would tell a second event apart"
)
CALLCHAIN_TOO_LONG = _inject(
    "callchain-too-long", "waits between switches not written: their callchain is longer than a record can be"
)

_select = partial(LossCause, Stage.SELECT, is_loss=False)
UNTIMED = _select("untimed", "samples without a time of their own, left out by --time")
IDLE_THREADS = _select("idle-threads", "idle threads left out by --idle hide, which merely waited for work")
IDLE_MS = _select("idle-ms", "ms of the waits of idle threads, left out with them")
KEPT_SUMS = _select("kept-sums", "sums that --min-dur kept whole, although some of their waits are shorter")
_samples = partial(LossCause, Stage.SAMPLES, is_loss=False)
NO_STACK = _samples("no-stack", "no stack at all")
NO_USER_STACK = _samples("no-user-stack", "user stack not recorded")
NO_KERNEL_STACK = _samples("no-kernel-stack", "kernel stack not recorded")
NO_DEFERRED_STACK = _samples("no-deferred-stack", "deferred user stack never came")
STACK_CUT = _samples("stack-cut", "stack cut before its root")
REPAIRED_IDS = _samples("repaired-ids", "pid and tid were exchanged (perf 6.16 to 7.2), and are put right")
STILL_BLOCKED = _samples("still-blocked", "still blocked when the recording ended or paused")
BEGAN_BEFORE = _samples("began-before", "began before the recording")
CAUSES = {row.name: row for row in list(vars().values()) if isinstance(row, LossCause)}
"""All rows by name, in the order of this table."""
