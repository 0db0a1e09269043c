# SPDX-License-Identifier: Apache-2.0
"""Declare the tables of a dataset: names, types and meanings of the columns, the same for all engines.

A dataset is a folder with a folder for each table, and in that hive partitions by hour, UTC:

    DATASET/samples/date=2026-11-22/hour=14/web1-….parquet

A row is in the hour of its `time_ns` (budgets, hosts, losses: of their `begin_ns`; gaps: `end_ns`), and the
stacks and frames of these rows are in the same hour. A file holds one host until compaction merges the files
of an hour, sorted by (host_id, time_ns, stack_id). Hosts have no folders of their own: see column `host_id`.

Ids of stacks and frames are hashes of their content, so files of several hosts and times are merged by
concatenation. Equal stacks and frames may occur several times: a query takes one row of each id. All types
used here exist in DuckDB, Spark, ClickHouse and Trino: no unsigned integers.

Documentation/dataset.md describes the tables to users; a test compares both.
"""

from perf_offcpu.structs import frozen

VERSION = 4  # version of the tables, in the metadata of each Parquet file (key `perf_offcpu.schema`)


@frozen
class Column:
    """Column of a table. `type` is an alias of pyarrow's types, or list<int64>, or map<string,string>."""

    name: str
    type: str
    doc: str
    nullable: bool = False


SAMPLES = (
    Column("time_ns", "int64", "end of the wait, or time of the sample: ns since 1970, UTC"),
    Column("off_ns", "int64", "length of the wait; of a sum, of all its waits; 0 for other events"),
    Column("weight_ns", "int64", "the sample's period: off-CPU time that it stands for, or what its event counts"),
    Column("runq_ns", "int64", "part of weight_ns that is waiting for a CPU; the rest is blocked", nullable=True),
    Column("count", "int64", "number of waits in a sum; an estimate where waits were sampled by length"),
    Column("event", "string", "name of the event: offcpu-time, cpu-clock, …"),
    Column("pid", "int32", "process (tgid)"),
    Column("tid", "int32", "thread"),
    Column("comm", "string", "name of the thread"),
    Column("cpu", "int32", "CPU on which the thread went on", nullable=True),
    Column("state", "string", "task state while waiting, a letter as in ps", nullable=True),
    Column("class", "string", "what was waited for (wait-classes.md)", nullable=True),
    Column("idle", "bool", "of a thread that in this segment did no more than wait for work"),
    Column("syscall", "string", "system call waited in", nullable=True),
    Column("object_kind", "string", "file, socket, pipe, futex, …", nullable=True),
    Column("object", "string", "what exactly was waited for (wait-objects.md)", nullable=True),
    Column("local_address", "string", "of a connection: address and port of this end", nullable=True),
    Column("remote_address", "string", "of a connection: address and port of the other end", nullable=True),
    Column("network", "string", "of a connection: why the wait took so long (wait-objects.md)", nullable=True),
    Column("waker_pid", "int32", "process of the thread that woke it", nullable=True),
    Column("waker_tid", "int32", "thread that woke it", nullable=True),
    Column("waker_comm", "string", "its name", nullable=True),
    Column("cgroup", "string", "path of the control group", nullable=True),
    Column("container", "string", "id of the container, from the path of the control group", nullable=True),
    Column("pod", "string", "its pod, where a CRI socket was asked", nullable=True),
    Column("namespace", "string", "namespace of the pod", nullable=True),
    Column("container_name", "string", "name of the container in the pod", nullable=True),
    Column("image", "string", "image of the container", nullable=True),
    Column("stack_id", "int64", "the stack; 0 none"),
    Column("waker_stack_id", "int64", "stack of the waker; 0 none"),
    Column("flags", "int64", "model.recording.SampleFlag, or-ed"),
    Column("host_id", "string", "the host"),
    Column("boot_id", "string", "the boot of the host, /proc/sys/kernel/random/boot_id"),
)
_OF_HOST = (Column("host_id", "string", "the host"), Column("boot_id", "string", "the boot of the host"))
STACKS = (
    Column("stack_id", "int64", "hash of the frames"),
    Column("frame_ids", "list<int64>", "frames, leaf first; an inlined function before the one it is inlined into"),
)
FRAMES = (
    Column("frame_id", "int64", "hash of the other columns"),
    Column("symbol", "string", "function, demangled; empty: unknown"),
    Column("address", "int64", "in the file, where symbol is unknown and build_id known; else 0"),
    Column("dso", "string", "path of the file with the code, or a name such as [kernel.kallsyms]"),
    Column("build_id", "string", "build-id of that file, in hex; empty: unknown"),
    Column("file", "string", "source file; empty: unknown"),
    Column("line", "int32", "line in it; 0: unknown"),
    Column("inlined", "bool", "inlined into the next frame"),
    Column("kernel", "bool", "code of the kernel"),
)
BUDGETS = (
    Column("begin_ns", "int64", "begin of the time that the row sums: ns since 1970, UTC"),
    Column("end_ns", "int64", "its end"),
    Column("pid", "int32", "process (tgid)"),
    Column("tid", "int32", "thread"),
    Column("comm", "string", "name of the thread"),
    Column("running_ns", "int64", "on a CPU"),
    Column("runnable_ns", "int64", "waiting for a CPU after a wake-up or birth"),
    Column("preempted_ns", "int64", "waiting for a CPU after preemption or yielding"),
    Column("throttled_ns", "int64", "waiting for the control group's quota of CPU time"),
    Column("interruptible_ns", "int64", "blocked, state S"),
    Column("uninterruptible_ns", "int64", "blocked, state D"),
    Column("idle_ns", "int64", "blocked, state I"),
    Column("stopped_ns", "int64", "stopped or traced"),
    Column("other_ns", "int64", "off the CPU in any other state"),
    Column("switches", "int64", "times that the thread left a CPU"),
    *_OF_HOST,
)
HOSTS = (
    Column("host_id", "string", "content of /etc/machine-id; the host name on machines without this file"),
    Column("boot_id", "string", "the boot of the host"),
    Column("hostname", "string", "name of the host"),
    Column("kernel", "string", "release of the kernel"),
    Column("arch", "string", "architecture, as uname -m prints it"),
    Column("cpus", "int32", "number of CPUs"),
    Column("labels", "map<string,string>", "labels: service, region, version, …"),
    Column("begin_ns", "int64", "begin of the recorded time: ns since 1970, UTC"),
    Column("end_ns", "int64", "its end"),
    Column("clock_offset_ns", "int64", "UTC minus CLOCK_MONOTONIC in this segment"),
    Column("period_ns", "int64", "off-CPU time that one sample stands for; 0: a threshold was used"),
)
LOSSES = (
    Column("begin_ns", "int64", "begin of the recorded time: ns since 1970, UTC"),
    Column("end_ns", "int64", "its end"),
    Column("cause", "string", "losses.LossCause (losses.md)"),
    Column("count", "int64", "lost samples, stacks or records"),
    Column("is_loss", "bool", "false: a note on the data, nothing is missing"),
    *_OF_HOST,
)
GAPS = (
    Column("begin_ns", "int64", "end of the last recorded time before it: ns since 1970, UTC"),
    Column("end_ns", "int64", "begin of the next: that of a row of hosts"),
    Column("cause", "string", "why this host recorded nothing: perf-offcpu-agent.txt, WHAT IS LOST"),
    Column("host_id", "string", "the host"),
    Column("boot_id", "string", "the boot of the host at the end"),
)
PARTITIONS = (
    Column("date", "date32", "day, UTC: 2026-11-22"),
    Column("hour", "int32", "hour of the day, UTC: 00 to 23"),
)
"""Folders below the folder of each table, outermost first; they are no columns of the files."""
TABLES = {
    "samples": SAMPLES,
    "stacks": STACKS,
    "frames": FRAMES,
    "budgets": BUDGETS,
    "hosts": HOSTS,
    "losses": LOSSES,
    "gaps": GAPS,
}
"""Name of a table → its columns."""
