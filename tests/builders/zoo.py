# SPDX-License-Identifier: Apache-2.0
"""Small recordings of every form there is: what corruption tests and fuzzers begin with. `everything()` holds a sample
with each bit of sample_type, and a record of each type; `minimal()` is the smallest file that perf opens;
`deferred_chains()` has deferred callchains in one of their two forms."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zstandard
from builders import recording as build
from builders.foreign import big_endian
from builders.recording import BASE, DUMMY_TIME, KERNEL, USER, S, comm, event, raw_wait, round_end, sample, side

from perf_offcpu.abi.attr import AttrFlag, BranchSampleType, ReadFormat
from perf_offcpu.abi.records import CALLCHAIN_DEFERRED_V12, RECORD_LAYOUTS, Misc, RecordType
from perf_offcpu.abi.sample import TRAILER
from perf_offcpu.inject.header import RewriteOptions
from perf_offcpu.inject.rewrite import rewrite
from perf_offcpu.perfdata.events import EventSpec
from perf_offcpu.perfdata.write.writer import frame_record, pack_record

DATA = Path(__file__).resolve().parent.parent / "data"
_TRACKER = event("cpu-clock", (1, 2), BASE | S.CALLCHAIN)
_WAITS = event("offcpu-time", (11, 12), BASE | S.RAW | S.CGROUP)


def fixture(name: str) -> bytes:
    return (DATA / "perf-7.2" / f"{name}.data").read_bytes()


def minimal() -> bytes:
    """Two events, a thread, its mapping, a sample and a wait of it."""
    return _written([_TRACKER, _WAITS], list(_a_thread(_TRACKER)) + [_chain_sample(), _wait()])


def waits() -> bytes:
    """Upstream's off-cpu samples of both kinds, swapped and not, with and without frames."""
    chain, records = [USER, 0x401010, 0x401020], [*_a_thread(_TRACKER), comm(_TRACKER, 70, 71, "thread")]
    records += [
        sample(_WAITS, 1, time=5000, cpu=1, pid=0, tid=0, raw=raw_wait(71, 70, 900, chain), cgroup=7),
        sample(_WAITS, 1, time=6000, cpu=1, raw=raw_wait(70, 70, 800, [])),
        round_end(),
        sample(_WAITS, time=DUMMY_TIME, raw=raw_wait(70, 71, 700, chain)),
        sample(_WAITS, time=DUMMY_TIME + 1, raw=raw_wait(70, 70, 600, [USER])),
        build.task(_TRACKER, RecordType.EXIT, 70, 70, 9000),
    ]
    return _written([_TRACKER, _WAITS], records)


def everything() -> bytes:
    """A sample with all fields, and a record of each type that the kernel or perf writes."""
    spec = _all_fields()
    return _written([spec], [*_a_thread(spec), _full_sample(spec), *_a_record_each(spec), round_end()])


def deferred_chains(final: bool = True) -> bytes:
    """Samples whose user callchain comes later, in the form of released kernels or that of v12."""
    spec = event("cpu-clock", (1,), BASE | S.CALLCHAIN, flags=_TRACKER.attr.flags | AttrFlag.DEFER_CALLCHAIN)
    cookie = (3 << 32) + 1
    waiting = [build.USER_DEFERRED, cookie] if final else [build.USER_DEFERRED]
    records = [*_a_thread(spec)]
    for time in (5000, 5100):
        records.append(sample(spec, 1, time=time, pid=70, tid=70, callchain=[KERNEL, 0xFFFFFFFF81000010, *waiting]))
    records.append(_deferred(spec, cookie, [0x401010, 0x401020], 5200, final))
    records.append(sample(spec, 1, time=5300, pid=70, tid=70, callchain=[KERNEL, 1 << 63, *waiting]))
    return _written([spec], records)


def recordings() -> dict[str, bytes]:
    """Name → bytes of all of them, and of what is made of them: foreign, piped, compressed, killed, …"""
    data_of = {name: fixture(name) for name in ("direct", "atend", "hybrid", "deferred", "compressed", "pipe", "sched")}
    data_of |= {"own": (DATA / "demo.data").read_bytes(), "minimal": minimal(), "waits": waits()}
    data_of |= {"everything": everything(), "deferred-v12": deferred_chains(False)}
    data_of["deferred-final"] = deferred_chains()
    data_of["killed"] = killed(data_of["direct"])
    for name in ("minimal", "waits", "deferred-final", "everything"):
        data_of[f"{name}-big"] = _derived(data_of[name], big_endian)
        data_of[f"{name}-pipe"] = _derived(data_of[name], lambda path: rewritten(path, pipe=True))
    data_of["waits-zstd"] = _derived(data_of["waits"], lambda path: rewritten(path, compress=True))
    return data_of


def killed(data: bytes) -> bytes:
    """The same as a recorder leaves it that was killed: a data section of size 0."""
    return data[:48] + bytes(8) + data[56:]


def rewritten(path: Path, *, pipe: bool = False, compress: bool = False) -> bytes:
    """The recording at `path` in another form, with everything that it says."""
    with tempfile.TemporaryFile() as out:
        rewrite(str(path), out.fileno(), "out", RewriteOptions(retype=False, merge=False, pipe=pipe, compress=compress))
        out.seek(0)
        return out.read()


@contextmanager
def as_file(data: bytes) -> Iterator[Path]:
    """A file in memory that holds these bytes."""
    with open(os.memfd_create("recording"), "wb", buffering=0) as file:
        file.write(data)
        yield Path(f"/proc/self/fd/{file.fileno()}")


def _derived(data: bytes, make: Any) -> bytes:
    with as_file(data) as path:
        result: bytes = make(path)
        return result


def _written(events: list[EventSpec], records: list[bytes]) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        return build.write(Path(directory) / "perf.data", events, records).read_bytes()


def _a_thread(spec: EventSpec) -> Iterator[bytes]:
    yield comm(spec, 70, 70, "main")
    yield side(
        spec, RecordType.MMAP2, 2, pid=70, tid=70, addr=0x401000, len=0x1000, pgoff=0x1000, maj=8, min=1,
        ino=5, ino_generation=0, prot=5, flags=2, filename=b"/bin/main",
    )  # fmt: skip
    yield frame_record(RecordType.FINISHED_INIT, 0, b"")


def _chain_sample() -> bytes:
    chain = [KERNEL, 0xFFFFFFFF81000010, USER, 0x401010, 0x401020]
    return sample(_TRACKER, 1, ip=chain[1], pid=70, tid=70, time=4000, period=10, callchain=chain)


def _wait() -> bytes:
    return sample(_WAITS, 1, time=5000, raw=raw_wait(70, 70, 900, [USER, 0x401010]), cgroup=7)


_READ = ReadFormat.TOTAL_TIME_ENABLED | ReadFormat.TOTAL_TIME_RUNNING | ReadFormat.ID | ReadFormat.LOST


def _all_fields() -> EventSpec:
    kinds = S(0)
    for one in S:
        kinds |= one
    return event(
        "cpu-clock", (1,), kinds & ~S.WEIGHT_STRUCT, read_format=_READ | ReadFormat.GROUP,
        branch_sample_type=int(BranchSampleType.HW_INDEX | BranchSampleType.COUNTERS),
        sample_regs_user=0b1011, sample_regs_intr=0b11, sample_stack_user=64,
    )  # fmt: skip


def _full_sample(spec: EventSpec) -> bytes:
    branch = {"from": 0x401010, "to": 0x401020, "flags": 1}
    values = [{"value": 5, "id": 1, "lost": 0}, {"value": 6, "id": 2, "lost": 1}]
    return sample(
        spec, ip=0x401010, pid=70, tid=70, time=4000, addr=0x7000, stream_id=9, cpu=1, period=10,
        read_nr=2, read_time_enabled=100, read_time_running=90, read_group=values,
        callchain=[KERNEL, 1 << 63, USER, 0x401010], raw_size=12, raw=b"raw bytes123",
        branch_nr=2, branch_hw_idx=3, branch_stack=[branch, branch], branch_counters=[1, 2],
        regs_user_abi=2, regs_user=[1, 2, 3], regs_intr_abi=2, regs_intr=[4, 5],
        stack_user_size=64, stack_user=bytes(range(64)), stack_user_dyn_size=48,
        weight=77, data_src=88, transaction=99, phys_addr=0x1234, cgroup=7, data_page_size=4096,
        code_page_size=4096, aux_size=8, aux=b"trace!!!",
    )  # fmt: skip


_TIMED = {"pid": 70, "tid": 70, "ppid": 70, "ptid": 70}
_VALUES: dict[int, dict[str, Any]] = {
    RecordType.MMAP: _TIMED | {"addr": 0x5000, "len": 0x1000, "pgoff": 0, "filename": b"/lib/x"},
    RecordType.NAMESPACES: _TIMED | {"link_info": [{"dev": 4, "ino": 5}] * 7},
    RecordType.KSYMBOL: {"addr": 2**63, "len": 64, "ksym_type": 1, "flags": 0, "name": b"bpf_prog_x"},
    RecordType.CGROUP: {"id": 7, "path": b"/user.slice"},
    RecordType.TEXT_POKE: {"addr": 2**63, "old_bytes": b"abc", "new_bytes": b"defgh"},
    RecordType.CALLCHAIN_DEFERRED: {"cookie": (3 << 32) + 1, "ips": [0x401010]},
    RecordType.ID_INDEX: {"entries": [{"id": 1, "idx": 0, "cpu": 0, "tid": 2**64 - 1}]},
    RecordType.THREAD_MAP: {"entries": [{"pid": 70, "comm": b"main"}]},
    RecordType.CPU_MAP: {"type": 0, "data": b"\x01\x00\x00\x00"},
    RecordType.EVENT_UPDATE: {"kind": 2, "id": 1, "data": b"cpu-clock\0"},
    RecordType.READ: _TIMED | {"values": [5, 100, 90, 1, 0]}, RecordType.COMM: _TIMED | {"comm": b"other"},
}  # fmt: skip


def _a_record_each(spec: EventSpec) -> Iterator[bytes]:
    """A record of each type that has a layout, user records with their fields 0; some need company."""
    for kind, layout in RECORD_LAYOUTS.items():
        if kind in (RecordType.HEADER_TRACING_DATA, RecordType.AUXTRACE, RecordType.COMPRESSED, RecordType.COMPRESSED2):
            continue
        values: dict[str, Any] = {}
        for field in layout.active(Misc(0)):
            is_bytes = field.type.__class__.__name__ == "Special"
            values[field.name] = b"" if is_bytes else 0 if field.count is None else []
        given = _VALUES.get(kind, {})
        counts = {field.count for field in layout.fields if isinstance(field.count, str)}
        values = {name: value for name, value in values.items() if name not in counts} | {
            name: value for name, value in given.items() if any(f.name == name for f in layout.fields)
        }
        if kind < RecordType.HEADER_ATTR:
            values.pop("time", None)
            yield side(spec, RecordType(kind), time=5000, **values)
        else:
            yield pack_record(kind, 0, values)


def _deferred(spec: EventSpec, cookie: int, ips: list[int], time: int, final: bool) -> bytes:
    told = {"pid": 70, "tid": 70, "time": time, "cpu": 0, "cpu_res": 0, "identifier": spec.ids[0]}
    trailer = TRAILER.pack(told, shape=spec.attr.sample_type)
    if final:
        return pack_record(RecordType.CALLCHAIN_DEFERRED, 2, {"cookie": cookie, "ips": ips}, trailer)
    return frame_record(RecordType.CALLCHAIN_DEFERRED, 2, CALLCHAIN_DEFERRED_V12.pack({"ips": [USER, *ips]}) + trailer)


_PIECE = bytes(4 << 20)


def zeros_packed(size: int, head: bytes = b"") -> bytes:
    """`head` and at least so many zeros as a zstd frame, 30 bytes a megabyte; never all of them in memory."""
    packer = zstandard.ZstdCompressor().compressobj()
    packed = [packer.compress(head)]
    packed += [packer.compress(_PIECE) for _ in range(-(-size // len(_PIECE)))]
    return b"".join([*packed, packer.flush()])
