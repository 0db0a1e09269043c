# SPDX-License-Identifier: Apache-2.0
"""Layout of the raw payloads of `offcpu-counters` samples: losses of the recording, and budgets of threads.

Losses in full rings have records of their own (LOST, LOST_SAMPLES), losses in the BPF program have not. perf 6.1
stops at records of unknown type, and its `perf inject` crashes on unknown header features. So losses in the BPF program
are a sample of period 0 of a separate bpf-output event, the last record of the data, which perf shows and keeps.

More payloads, distinguished by their magic, share the event. Budgets state how threads spent their time. A sample holds
the budgets of some threads, of ended threads as the collector drains them from the kernel, else at the end of the
recording. Others hold Python functions of a thread blocked at the end, its event loop's tasks, `wait_objects`."""

from perf_offcpu.abi import wait_objects
from perf_offcpu.binary.layout import BYTE, TEXT, U16, U32, U64, Field, Layout, Order, to_int

EVENT_NAME = "offcpu-counters"
"""Name of the evsel of losses and budgets. Its only id is chosen by the recorder: the kernel has no such event."""

EVENT_ID = int.from_bytes(b"offcpu-c", "big")  # its id. The kernel counts from 1 and will not reach it
TASK_EVENT = "offcpu-task"  # evsel of samples of tasks (TASKS), whose time is not that of threads
TASK_EVENT_ID = int.from_bytes(b"offcpu-t", "big")
MAGIC = int.from_bytes(b"OFCC", "little")
BUDGET_MAGIC = int.from_bytes(b"OFCB", "little")
CODES_MAGIC = int.from_bytes(b"OFCY", "little")
JIT_MAP_MAGIC = int.from_bytes(b"OFCJ", "little")
PYTHON_MAGIC = int.from_bytes(b"OFCP", "little")
TASKS_MAGIC = int.from_bytes(b"OFCT", "little")
VERSION = 1
BUDGET_VERSION = 3
NAME_SIZE = 48

COUNTER = Layout(
    "offcpu-counters counter",
    Field("events", U64, doc="how often"),
    Field("ns", U64, doc="off-cpu time concerned, 0 where it is not known"),
    Field("name", BYTE, count=NAME_SIZE, doc="what was counted, NUL-padded; lower case, with dashes"),
)

COUNTERS = Layout(
    "offcpu-counters raw payload",
    Field("magic", U32, doc='"OFCC"'),
    ("version nr", U16),
    Field("begin_ns", U64, doc="CLOCK_MONOTONIC: waits that end from here on are recorded"),
    Field("end_ns", U64, doc="CLOCK_MONOTONIC: waits that end before are recorded"),
    Field("threshold_ns", U64, doc="waits from here on are samples of their own, shorter ones summed"),
    Field("counters", COUNTER, count="nr"),
)

BUDGET = Layout(
    "offcpu-counters budget of a thread",
    Field("pid", U32, doc="tgid"),
    ("tid", U32),
    Field("begin_ns", U64, doc="CLOCK_MONOTONIC: birth, or begin of the recording"),
    Field("end_ns", U64, doc="CLOCK_MONOTONIC: death, or end of the recording"),
    Field("switches", U64, doc="times that it left a CPU"),
    Field("unknown_ns", U64, doc="ns not accounted for"),
    Field("running_ns", U64, doc="ns on a CPU"),
    Field("runnable_ns", U64, doc="ns waiting for a CPU after wake-up or birth"),
    Field("preempted_ns", U64, doc="ns waiting for a CPU after preemption or yielding"),
    Field("interruptible_ns", U64, doc="ns blocked, S"),
    Field("uninterruptible_ns", U64, doc="ns blocked, D"),
    Field("idle_ns", U64, doc="ns blocked, I"),
    Field("stopped_ns", U64, doc="ns stopped, T"),
    Field("traced_ns", U64, doc="ns stopped by a tracer, t"),
    Field("other_ns", U64, doc="ns off the CPU in any other state"),
    Field(
        "throttled_ns", U64, doc="ns waiting for the control group's quota of CPU time, and then for a CPU (version 2)"
    ),
    Field("own_pid", U32, doc="tgid in the thread's own pid namespace, 0 unknown (version 3)"),
    Field("own_tid", U32, doc="thread id there, likewise"),
)
"""The ns fields from `unknown_ns` on add up to end_ns - begin_ns."""
_BUDGET_ENDS = {1: "throttled_ns", 2: "own_pid"}  # version → first field that it lacks
_HEAD = (Field("magic", U32, doc='"OFCB"'), ("version nr", U16))
BUDGETS = Layout("offcpu-counters budgets", *_HEAD, Field("budgets", BUDGET, count="nr"))


def budget_layout(payload: bytes, order: Order) -> Layout:
    """Return the layout of one budget in a BUDGETS payload, by the version that the payload states."""
    end = _BUDGET_ENDS.get(to_int(payload[4:6], order))
    return BUDGET.prefix(BUDGET.offset(end)) if end else BUDGET


PYTHON = Layout(
    "offcpu-counters Python functions of a thread",
    Field("magic", U32, doc='"OFCP"'),
    Field("version", U16),
    Field("nr", U16, doc="functions in the text"),
    Field("pid", U32, doc="tgid"),
    Field("tid", U32),
    Field("switch_out_ns", U64, doc="CLOCK_MONOTONIC: begin of the wait that they belong to"),
    Field(
        "text",
        TEXT,
        doc="a line each, leaf first: name, file, line and, counted from 1 at the root, the call of the "
        "interpreter's C function, separated by tabs",
    ),
)
"""Payload with the Python functions of one wait: of a thread that is still blocked at the end, or without BPF."""

TASKS = Layout(
    "offcpu-counters tasks of an event loop",
    Field("magic", U32, doc='"OFCT"'),
    Field("version", U16),
    Field("nr", U16, doc="tasks in the text"),
    Field("pid", U32, doc="tgid"),
    Field("tid", U32, doc="of the thread that runs the loop"),
    Field("switch_out_ns", U64, doc="CLOCK_MONOTONIC: begin of the thread's wait; 0 if it has run since, or not known"),
    Field("read_ns", U64, doc="CLOCK_MONOTONIC: time of the reading"),
    Field("weight_ns", U64, doc="time for which the reading stands: since the one before; 0 at the end"),
    Field(
        "text",
        TEXT,
        doc="JSON, a line for each task: [address, name, type of what it awaits, address of the lock, queue, task or "
        "future that it waits for, [addresses of tasks that await it], [objects whose `async with` it is in], "
        "[[function, file, line] of its coroutines, leaf first]]; the type is running of the running task. A task "
        "named goroutines stands for those of one stack, and has what they wait for as type; then tid is the process, "
        "switch_out_ns the begin of the readings, weight_ns the sum of the times of all",
    ),
)
"""Payload with the asyncio tasks of one reading of an event loop; none if the thread ran, or they could not be read."""

GOROUTINES = "goroutines"  # name of a task that stands for all goroutines of one stack

CODE = Layout(
    "offcpu-counters Python function",
    Field("id", U64, doc="as in the frames of samples, 44 bits"),
    Field("pid", U32, doc="tgid of the process that it was found in"),
    Field("first_line", U32, doc="of its source"),
    Field("reserved", U32, doc="0"),
    Field("minor", U16, doc="3.minor is the version of Python, and so of the table of lines"),
    Field("name_size", U16, doc="bytes of its qualified name (before 3.11, its name)"),
    Field("file_size", U16, doc="bytes of the name of its source file"),
    Field("lines_size", U16, doc="bytes of the begin of its table of lines (co_linetable)"),
)
CODES = Layout(
    "offcpu-counters Python functions",
    Field("magic", U32, doc='"OFCY"'),
    ("version nr", U16),
    Field("size", U32, doc="bytes of the texts"),
    Field("reserved", U32, doc="0"),
    Field("codes", CODE, count="nr"),
    Field("text", BYTE, count="size", doc="name, file and table of lines of each function; names are UTF-8"),
)
"""Payload with Python functions that frames of samples (`offcpu.CODE_SHIFT`) name by their id."""

JIT_MAP = Layout(
    "offcpu-counters map of generated code",
    Field("magic", U32, doc='"OFCJ"'),
    Field("version", U16),
    Field("reserved", U16, doc="0"),
    Field("pid", U32, doc="tgid of the process whose code it is"),
    Field("text", TEXT, doc="whole lines of a perf map; texts of a pid are one map, but `:apart` begins a newer one"),
)
"""Payload with functions that a JVM has compiled. A line `:frame`, of hexadecimal numbers, tells the size of a frame:
bytes from the stack pointer to above the return address, below which the caller's frame pointer is. It holds from BEGIN
on, in bytes after START: `:frame START SIZE BEGIN`. A line `:method ADDRESS SIZE NAME` tells an interpreted method, by
the place of its object, whose address the frames of the interpreter have. `:apart TIME`: of waits that end from then on
(ns of CLOCK_MONOTONIC; 0: of none), equal numbers of copies mean equal methods in these frames. `:split`: see
`jit_map`."""


def payload_layout(payload: bytes, order: Order) -> Layout:
    """Return the layout of a payload of `offcpu-counters` or `offcpu-task`, by its magic; COUNTERS if it is unknown."""
    magic = to_int(payload[:4], order)
    if magic == BUDGET_MAGIC:
        return Layout(BUDGETS.name, *_HEAD, Field("budgets", budget_layout(payload, order), count="nr"))
    layouts = {PYTHON_MAGIC: PYTHON, TASKS_MAGIC: TASKS, CODES_MAGIC: CODES, JIT_MAP_MAGIC: JIT_MAP}
    return layouts.get(magic, wait_objects.OBJECTS if magic == wait_objects.MAGIC else COUNTERS)
