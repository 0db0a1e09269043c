# SPDX-License-Identifier: Apache-2.0
"""Large perf.data files that look like real ones, written in bounded memory. A machine under load for some minutes:
off-CPU waits as raw samples (half of all), cpu-clock samples, some of whose user callchains are deferred, and processes
that start, map their libraries and end all the time. Callchains are random walks in a call graph: few hot ones, many
rare ones. CPUs take turns in filling the file, as `perf record` drains rings."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from builders.recording import BASE, event, write

from perf_offcpu.abi.attr import AttrFlag, SampleType
from perf_offcpu.abi.offcpu import BLANK_EXTENSION, EVENT_NAME, EXTENSION, EXTENSION_WORDS, Kind
from perf_offcpu.abi.records import Misc, RecordType
from perf_offcpu.abi.sample import TRAILER, CallchainContext, SampleShape
from perf_offcpu.binary.columnar import offsets_of
from perf_offcpu.model.callchains import Ragged, spread
from perf_offcpu.model.columns import I64, U64
from perf_offcpu.perfdata.write.columns import pack_samples
from perf_offcpu.perfdata.write.writer import pack_record

CPUS = 16
DEPTH = 20
KERNEL_FRAMES = 8
ROUND = 20_000
"""Samples between two visits to the same ring."""

EVENTS = [
    event("cpu-clock", tuple(range(1, 1 + CPUS)), BASE | SampleType.CALLCHAIN, sample_period=1_000_000),
    event(EVENT_NAME, tuple(range(101, 101 + CPUS)), BASE | SampleType.RAW, flags=AttrFlag.SAMPLE_ID_ALL),
]


def write_large_recording(
    path: Path, samples: int, *, processes: int = 200, deferred: float = 0.1, storm: float = 0.006,
    stacks: int = 40_000, depth: int = DEPTH, seed: int = 1,
) -> None:  # fmt: skip
    """Write a recording of `samples` samples, half of them off-cpu waits, of `processes` that live all the time, with 8
    threads each. `deferred` is the share of the cpu-clock samples whose user callchain comes later; `storm` the number
    of short-lived processes per sample, each with 13 side-band records; `stacks` the number of callchains, of `depth`
    frames."""
    rng = np.random.default_rng(seed)
    maker = _Maker(rng, _chains(rng, stacks, depth), processes, deferred, storm)
    pieces = (
        piece
        for number, begin in enumerate(range(0, samples, ROUND))
        for piece in maker.round(number, min(ROUND, samples - begin))
    )
    write(path, EVENTS, chain(maker.existing(), pieces))


class _Maker:
    def __init__(self, rng: np.random.Generator, chains: Ragged, processes: int, deferred: float, storm: float) -> None:
        self.rng, self.processes, self.deferred, self.storm = rng, processes, deferred, storm
        self.chains = chains
        self.next_pid = 100_000
        self.cookies = 0

    def existing(self) -> list[bytes]:
        """What was there before: the long-lived processes."""
        return [record for pid in range(1000, 1000 + self.processes) for record in _process(pid, 0, 0)]

    def round(self, number: int, count: int) -> Iterator[bytes]:
        """All records of one CPU's ring, in time order within it."""
        cpu, begin = number % CPUS, 10**12 + number // CPUS * 100_000_000
        times, half = begin + np.sort(self.rng.integers(0, 100_000_000, count)), count // 2
        yield self._cpu_clock(cpu, times[:half])
        yield self._waits(cpu, times[half:])
        for time in times[: int(count * self.storm)].tolist():
            self.next_pid += 1
            yield b"".join(_process(self.next_pid % 2**22, time, cpu))

    def _tasks(self, count: int) -> tuple[I64, I64]:
        pid = 1000 + np.minimum(self.rng.zipf(1.5, count) - 1, self.processes - 1)
        return pid, pid * 8 + self.rng.integers(0, 8, count)

    def _some_chains(self, count: int) -> Ragged:
        return self.chains.take(np.minimum(self.rng.zipf(1.2, count) - 1, len(self.chains) - 1))

    def _cpu_clock(self, cpu: int, times: I64) -> bytes:
        count = len(times)
        late = int(count * self.deferred)
        pid, tid = self._tasks(count)
        chains = self._some_chains(count)
        cookies = (
            np.uint64(self.cookies) + np.arange(late, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        ) << np.uint64(32)
        self.cookies += 2 * late
        cut = _with_cookies(chains, cookies | np.uint64(cpu + 1))
        columns: dict[str, Any] = {
            "identifier": 1 + cpu, "ip": 0, "pid": pid, "tid": tid, "time": times, "cpu": cpu, "cpu_res": 0,
            "period": 1_000_000, "callchain": (cut.offsets, cut.values),
        }  # fmt: skip
        records = pack_samples(SampleShape(EVENTS[0].attr.sample_type), int(Misc(1)), columns, count)
        return records + b"".join(self._deferred(chains, cookies | np.uint64(cpu + 1), pid, tid, times, cpu))

    def _deferred(self, chains: Ragged, cookies: U64, pid: I64, tid: I64, times: I64, cpu: int) -> Iterator[bytes]:
        for row, cookie in enumerate(cookies.tolist()):
            user = chains.row(row)[2 + KERNEL_FRAMES :].tolist()
            values = {"cookie": cookie, "nr": len(user), "ips": user}
            trailer = _trailer(int(pid[row]), int(tid[row]), int(times[row]) + 100, cpu)
            yield pack_record(RecordType.CALLCHAIN_DEFERRED, 2, values, trailer)

    def _waits(self, cpu: int, times: I64) -> bytes:
        count = len(times)
        pid, tid = self._tasks(count)
        raw = self._payloads(pid, tid, times, self._some_chains(count))
        columns: dict[str, Any] = {
            "identifier": 101 + cpu, "ip": 0, "pid": pid, "tid": tid, "time": times, "cpu": cpu, "cpu_res": 0,
            "period": 0, "raw": raw,
        }  # fmt: skip
        return pack_samples(SampleShape(EVENTS[1].attr.sample_type), 1, columns, count)

    def _payloads(self, pid: I64, tid: I64, times: I64, chains: Ragged) -> tuple[I64, np.ndarray]:
        """Raw payloads with this project's extension, each padded to 4 mod 8 bytes."""
        ns, lengths = (self.rng.pareto(1.5, len(times)) * 50_000).astype(np.int64) + 1000, chains.lengths
        words = 3 + lengths + 1 + EXTENSION_WORDS
        offsets = offsets_of(words)
        values, at = np.zeros(int(offsets[-1]), np.uint64), offsets[:-1]
        values[at] = (pid | tid << 32).astype(np.uint64)
        values[at + 1], values[at + 2] = ns.astype(np.uint64), lengths.astype(np.uint64)
        values[spread(at + 3, lengths, offsets_of(lengths))] = chains.values
        extension = np.zeros(len(times), EXTENSION.dtype())
        for name, column in {
            **BLANK_EXTENSION, "kind": int(Kind.WAIT), "state": 1, "syscall": 0, "wakeup_ns": times - 10,
            "switch_out_ns": times - ns, "longest_ns": ns, "runq_ns": 10,
        }.items():  # fmt: skip
            extension[name] = column
        tail = np.frombuffer(extension.tobytes(), np.uint64).reshape(len(times), -1)
        values[(at + 4 + lengths)[:, None] + np.arange(EXTENSION_WORDS)] = tail
        return _padded(offsets, values)


def _padded(offsets: I64, words: U64) -> tuple[I64, np.ndarray]:
    """Rows of words as rows of bytes, 4 zero bytes behind each."""
    halves, lengths = np.zeros(len(words) * 2 + len(offsets) - 1, np.uint32), np.diff(offsets) * 2
    padded = offsets_of(lengths + 1)
    halves[spread(padded[:-1], lengths, offsets_of(lengths))] = words.view(np.uint32)
    return padded * 4, halves.view(np.uint8)


def _chains(rng: np.random.Generator, count: int, depth: int) -> Ragged:
    """Random walks, leaf first: KERNEL marker, kernel frames, USER marker, user frames."""
    user, words = depth - KERNEL_FRAMES, np.empty((count, depth + 2), np.uint64)
    words[:, 0] = CallchainContext.KERNEL
    sites = rng.integers(0, 5000, (count, KERNEL_FRAMES), np.uint64)
    words[:, 1 : 1 + KERNEL_FRAMES] = np.uint64(0xFFFFFFFF81000000) + np.uint64(64) * sites
    words[:, 1 + KERNEL_FRAMES] = CallchainContext.USER
    words[:, 2 + KERNEL_FRAMES :] = 0x7F0000000000 + 16 * rng.integers(0, 60_000, (count, user))
    return Ragged(np.arange(count + 1) * (depth + 2), words.reshape(-1))


def _with_cookies(chains: Ragged, cookies: U64) -> Ragged:
    """The first chains end in a deferred marker and a cookie instead of their user part."""
    kept, lengths = 3 + KERNEL_FRAMES, chains.lengths.copy()
    lengths[: len(cookies)] = kept
    offsets = offsets_of(lengths)
    values = chains.values[spread(chains.offsets[:-1], lengths, offsets)]
    values[offsets[: len(cookies)] + kept - 2] = CallchainContext.USER_DEFERRED
    values[offsets[: len(cookies)] + kept - 1] = cookies
    return Ragged(offsets, values)


def _trailer(pid: int, tid: int, time: int, cpu: int) -> bytes:
    values = {"pid": pid, "tid": tid, "time": time, "cpu": cpu, "cpu_res": 0, "identifier": 1 + cpu if time else 0}
    return TRAILER.pack(values, shape=EVENTS[0].attr.sample_type)


def _process(pid: int, time: int, cpu: int) -> list[bytes]:
    """Birth, exec, eight mappings and, if it was born while recording, death of one process."""
    task = {"pid": pid, "ppid": 1, "tid": pid, "ptid": 1, "time": time}
    records = [
        pack_record(RecordType.FORK, 0, task, _trailer(pid, pid, time, cpu)),
        pack_record(
            RecordType.COMM, Misc.COMM_EXEC, {"pid": pid, "tid": pid, "comm": b"sh"}, _trailer(pid, pid, time, cpu)
        ),
    ]
    for index in range(8):
        values = {
            "pid": pid, "tid": pid, "addr": 0x7F0000000000 + index * 0x200000, "len": 0x180000,
            "pgoff": 0x1000, "maj": 8, "min": 1, "ino": 100 + index, "ino_generation": 1, "prot": 5,
            "flags": 2, "filename": b"/usr/lib/x86_64-linux-gnu/lib%d.so.6" % index,
        }  # fmt: skip
        records.append(pack_record(RecordType.MMAP2, 2, values, _trailer(pid, pid, time, cpu)))
    for thread in range(1, 8) if not time else ():
        tid = pid * 8 + thread
        records.append(
            pack_record(RecordType.COMM, 0, {"pid": pid, "tid": tid, "comm": b"pool"}, _trailer(pid, tid, 0, 0))
        )
    if time:
        task = {"pid": pid, "ppid": 1, "tid": pid, "ptid": 1, "time": time + 50_000_000}
        records.append(pack_record(RecordType.EXIT, 0, task, _trailer(pid, pid, time + 50_000_000, cpu)))
    return records
