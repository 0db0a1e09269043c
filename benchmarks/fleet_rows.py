# SPDX-License-Identifier: Apache-2.0
"""Write a day of a made-up fleet into a dataset:  python benchmarks/fleet_rows.py DIR [RECORDING …]

The waits are those of real recordings (default: tests/data/demo.data and arm64/own.data); hosts, times,
lengths, ids and containers are varied, with a seed. Each host runs one of 40 services, which is a part of
the recorded threads; stacks of a service begin with a function of its own, so that services differ.
Files are those after compaction: one for each table and hour, sorted by host. With
--segment-minutes M they are those that M-minute segments of each host leave, before compaction.

Known causes to look for: from 14:00 on, waits for locks of `checkout` hosts with version 2.0 are three times
as long; all waits for disks of host-0042 are ten times as long.

Prints rows and bytes by table, and bytes per host and day.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from perf_offcpu.binary.columnar import offsets_of  # noqa: E402
from perf_offcpu.cache import DiskCache  # noqa: E402
from perf_offcpu.callpaths.keys import Texts  # noqa: E402
from perf_offcpu.dataset.content import content_id, content_of, taken  # noqa: E402
from perf_offcpu.dataset.dataset import HOUR_NS, compacted_name, folder_of, open_dataset, segment_name  # noqa: E402
from perf_offcpu.dataset.parquet import ROW_GROUP, arrow_table, writer  # noqa: E402
from perf_offcpu.dataset.rows import Host, budget_columns, sample_columns, span_of  # noqa: E402
from perf_offcpu.dataset.schema import TABLES  # noqa: E402
from perf_offcpu.symbolize.load import load_profile  # noqa: E402
from perf_offcpu.symbolize.options import SymbolizeOptions  # noqa: E402

DAY = "2026-11-01"
SERVICES = ["checkout", "search", "cart", "login", "mail", *(f"service-{number:02}" for number in range(5, 40))]
REGIONS = ("eu-west", "eu-north", "us-east", "ap-south")
GROUP = 1 << 20
MOST_OF_ONE_RECORDING = 60_000
SLOW_HOST, SLOW_SERVICE, SLOW_FROM = 42, 0, 14
Columns = dict[str, Any]


class Pool:
    """Samples and budgets of all recordings, with the texts of all in one list a column."""

    def __init__(self, recordings: list[str]) -> None:
        parts, budgets, self.chains = [], [], dict[int, NDArray[np.int64]]()
        frames: dict[int, tuple[Any, ...]] = {}
        for path in recordings:
            options = SymbolizeOptions(cache=DiskCache.usual(), inline=True)
            profile = load_profile([path], options)
            content, span, host = content_of(profile), span_of(profile), Host("")
            columns = sample_columns(profile, content, host, span)
            parts.append({name: taken(one, slice(MOST_OF_ONE_RECORDING)) for name, one in columns.items()})
            budgets.append(budget_columns(profile, host, span))
            begins = content.offsets.tolist()
            for row, stack in enumerate(content.stack_ids.tolist()):
                self.chains[stack] = content.frame_ids[begins[row] : begins[row + 1]]
            named = {name: text_list(one) for name, one in content.frames.items()}
            frames |= {row[0]: row for row in zip(*named.values(), strict=True)}
        self.samples = {name: joined([part[name] for part in parts]) for name in parts[0]}
        self.budgets = {name: joined([part[name] for part in budgets]) for name in budgets[0]}
        self.frames = frames
        both = (self.samples["stack_id"], self.samples["waker_stack_id"])
        self.stacks, codes = np.unique(np.concatenate([[0], *both]), return_inverse=True)
        self.none = int(codes[0])
        self.stack, self.waker_stack = np.split(codes[1:], 2)
        gaps = np.diff(self.samples["time_ns"], prepend=0)
        self.gaps = np.clip(gaps, 0, 10**8).astype(np.float64) + 1
        classes = self.samples["class"]
        self.is_lock, self.is_disk = (
            classes.codes == (classes.texts.index(label) if label in classes.texts else -2)
            for label in ("lock", "disk")
        )


def text_list(column: Any) -> list[Any]:
    """Return a column as a list of Python values."""
    return [column.texts[code] for code in column.codes] if isinstance(column, Texts) else column.tolist()


def joined(columns: list[Any]) -> Any:
    """Return columns of several recordings, one after the other."""
    if isinstance(columns[0], tuple):
        return tuple(np.concatenate(parts) for parts in zip(*columns, strict=True))
    if not isinstance(columns[0], Texts):
        return np.concatenate(columns)
    place: dict[str, int] = {}
    codes = []
    for column in columns:
        of = np.array([*(place.setdefault(text, len(place)) for text in column.texts), -1])
        codes.append(of[column.codes])
    return Texts(list(place), np.concatenate(codes))


class Service:
    """The rows of the pool that a service has, and its stacks."""

    def __init__(self, pool: Pool, number: int, rng: np.random.Generator) -> None:
        tids = np.unique(pool.samples["tid"])
        mine = rng.choice(tids, max(len(tids) // 3, 1), replace=False)
        self.rows = np.flatnonzero(np.isin(pool.samples["tid"], mine))
        self.budgets = np.flatnonzero(np.isin(pool.budgets["tid"], mine))
        name = SERVICES[number]
        values: list[Any] = [f"{name}::main", 0, f"/usr/bin/{name}", "", f"{name}.cc", 17, False, False]
        texts = [one if isinstance(one, str) else str(int(one)) for one in values]
        self.root = (content_id("\0".join(texts).encode()), *values)
        used = np.unique(np.concatenate([pool.stack[self.rows], pool.waker_stack[self.rows]]))
        self.stack_of = np.zeros(len(pool.stacks), np.int64)
        self.chains: dict[int, NDArray[np.int64]] = {}
        for index in used[used != pool.none].tolist():
            chain = np.append(pool.chains[int(pool.stacks[index])], self.root[0]).astype("<i8")
            stack = content_id(chain.tobytes())
            self.stack_of[index], self.chains[stack] = stack, chain


@dataclasses.dataclass
class Machine:
    """A host of the fleet."""

    number: int
    service: int
    version: str
    share: float
    host: Host
    containers: list[str]


def machines(count: int, rng: np.random.Generator) -> list[Machine]:
    """Return the hosts: services, regions and versions in turn, some hosts with more waits than others."""
    shares = rng.lognormal(0, 0.5, count)
    found = []
    for number in range(count):
        service, version = number % len(SERVICES), "2.0" if number % 3 == 0 else "1.9"
        name = SERVICES[service]
        labels = {"service": name, "region": REGIONS[number // 7 % 4], "version": version}
        boot = hashlib.blake2b(f"boot {number}".encode(), digest_size=16).hexdigest()
        host = Host(f"host-{number:04}", boot, f"host-{number:04}", "6.12.41", 16, "x86_64", labels)
        ids = [hashlib.sha256(f"{number} {part}".encode()).hexdigest() for part in range(3)]
        paths = [f"/kubepods.slice/{name}/cri-containerd-{one}.scope" for one in ids]
        found.append(Machine(number, service, version, shares[number] / shares.sum(), host, paths))
    return found


class Fleet:
    """Makes the rows of hosts in an hour."""

    def __init__(self, pool: Pool, hosts: list[Machine], seed: int) -> None:
        self.pool, self.hosts = pool, hosts
        self.rng = np.random.default_rng(seed)
        self.services = [Service(pool, number, self.rng) for number in range(len(SERVICES))]

    def batch(self, hosts: list[Machine], hour: int, of_day: int, rows: int) -> Columns:
        """Return the samples of some hosts in an hour, sorted by (host, time).

        Args:
            rows: of an average host.
        """
        pool, rng = self.pool, self.rng
        parts, times, factors, owner = [], [], [], []
        for place, one in enumerate(hosts):
            mine = self.services[one.service].rows
            count = max(int(rows * one.share * len(self.hosts) * rng.uniform(0.8, 1.2)), 1)
            at = mine[(int(rng.integers(len(mine))) + np.arange(count)) % len(mine)]
            gap = np.cumsum(pool.gaps[at] * rng.lognormal(0, 0.3, count))
            factor = rng.lognormal(0, 0.3, count)
            if one.service == SLOW_SERVICE and one.version == "2.0" and of_day >= SLOW_FROM:
                factor[pool.is_lock[at]] *= 3
            if one.number == SLOW_HOST:
                factor[pool.is_disk[at]] *= 10
            parts.append(at)
            times.append(hour * HOUR_NS + (gap * ((HOUR_NS - 2) / gap[-1])).astype(np.int64))
            factors.append(factor)
            owner.append(np.full(count, place))
        return self._columns(hosts, np.concatenate(parts), *map(np.concatenate, (times, factors, owner)))

    def _columns(self, hosts: list[Machine], at: Any, time_ns: Any, factor: Any, owner: Any) -> Columns:
        pool = self.pool
        columns = {name: taken(column, at) for name, column in pool.samples.items()}
        for name in ("off_ns", "weight_ns"):
            columns[name] = np.rint(columns[name] * factor).astype(np.int64)
        runq, unknown = columns["runq_ns"]
        columns["runq_ns"] = (np.minimum(np.rint(runq * factor).astype(np.int64), columns["weight_ns"]), unknown)
        shift = np.array([one.number * 37 for one in hosts], np.int32)[owner]
        for name in ("pid", "tid"):
            columns[name] = np.where(columns[name] > 0, columns[name] + shift, columns[name])
        for name in ("waker_pid", "waker_tid"):
            values, missing = columns[name]
            columns[name] = np.where(values > 0, values + shift, values), missing
        of_service = np.stack([self.services[one.service].stack_of for one in hosts])
        for name, index in (("stack_id", pool.stack), ("waker_stack_id", pool.waker_stack)):
            columns[name] = of_service[owner, index[at]]
        paths = [path for one in hosts for path in one.containers]
        place = owner * 3 + columns["comm"].codes % 3
        columns["cgroup"] = Texts(paths, place)
        columns["container"] = Texts([path[-70:-6] for path in paths], place)
        return columns | {"time_ns": time_ns} | of_hosts(hosts, owner)

    def beside(self, hosts: list[Machine], hour: int) -> dict[str, Columns]:
        """Return the other tables of some hosts in an hour."""
        numbers = {one.service for one in hosts}
        chains = {key: chain for number in numbers for key, chain in self.services[number].chains.items()}
        keys = np.array(sorted(chains), np.int64)
        values = np.concatenate([chains[key] for key in keys.tolist()])
        needed = {int(one) for one in np.unique(values)}
        roots = {service.root[0]: service.root for service in self.services}
        frames = [row for key, row in sorted((self.pool.frames | roots).items()) if key in needed]
        return {
            "frames": frame_rows(frames),
            "stacks": {"stack_id": keys, "frame_ids": lists([chains[key] for key in keys.tolist()], values)},
            "hosts": host_rows(hosts, hour),
            "budgets": self._budgets(hosts, hour),
            "losses": losses(hosts, hour),
        }

    def _budgets(self, hosts: list[Machine], hour: int) -> Columns:
        rows = [self.services[one.service].budgets for one in hosts]
        owner = np.repeat(np.arange(len(hosts)), [len(one) for one in rows])
        columns = {name: taken(column, np.concatenate(rows)) for name, column in self.pool.budgets.items()}
        wall = np.maximum(columns["end_ns"] - columns["begin_ns"], 1)
        begin = np.full(len(owner), hour * HOUR_NS)
        for name, column in columns.items():
            if name.endswith("_ns") and name not in {"begin_ns", "end_ns"}:
                columns[name] = (column * (HOUR_NS / wall)).astype(np.int64)
        columns |= {"begin_ns": begin, "end_ns": begin + HOUR_NS}
        return columns | of_hosts(hosts, owner)


def of_hosts(hosts: list[Machine], owner: Any) -> Columns:
    """Return the columns that name the host."""
    return {name: Texts([getattr(one.host, name) for one in hosts], owner) for name in ("host_id", "boot_id")}


def lists(chains: list[Any], values: Any) -> Any:
    """Return an array of lists."""
    import pyarrow as pa

    offsets = offsets_of(np.array([len(one) for one in chains], np.int64)).astype(np.int32)
    element = pa.field("element", pa.int64(), nullable=False)
    return pa.ListArray.from_arrays(offsets, values, pa.list_(element))


def frame_rows(rows: list[tuple[Any, ...]]) -> Columns:
    """Return the columns of the table of frames."""
    columns = map(list, zip(*rows, strict=True))
    return dict(zip((column.name for column in TABLES["frames"]), columns, strict=True))


def host_rows(hosts: list[Machine], hour: int) -> Columns:
    """Return the rows of the table of hosts."""
    import pyarrow as pa

    every = np.arange(len(hosts))
    columns: Columns = {
        name: Texts([getattr(one.host, name) for one in hosts], every) for name in ("hostname", "kernel", "arch")
    }
    labels = [sorted((one.host.labels or {}).items()) for one in hosts]
    numbers = {"begin_ns": hour * HOUR_NS, "end_ns": (hour + 1) * HOUR_NS, "clock_offset_ns": 0, "period_ns": 0}
    columns |= {name: np.full(len(hosts), value) for name, value in numbers.items()}
    columns["labels"] = pa.array(labels, pa.map_(pa.string(), pa.string()))
    columns["cpus"] = np.full(len(hosts), 16)
    return columns | of_hosts(hosts, every)


def losses(hosts: list[Machine], hour: int) -> Columns:
    """Return a loss of every tenth host."""
    few = np.flatnonzero([one.number % 10 == 3 for one in hosts])
    return {
        "begin_ns": np.full(len(few), hour * HOUR_NS),
        "end_ns": np.full(len(few), (hour + 1) * HOUR_NS),
        "cause": Texts(["full rings"], np.zeros(len(few), np.int64)),
        "count": np.full(len(few), 17),
        "is_loss": np.ones(len(few), np.bool_),
        **of_hosts(hosts, few),
    }


class Output:
    """Writes files and counts rows and bytes."""

    def __init__(self, place: str) -> None:
        self.dataset = open_dataset(place, make=True)
        self.rows, self.bytes = dict.fromkeys(TABLES, 0), dict.fromkeys(TABLES, 0)

    def write(self, table: str, hour: int, name: str, batches: Any) -> None:
        """Write one file of some batches of columns."""
        with self.dataset.store.replacing(f"{table}/{folder_of(hour)}/{name}") as file:
            out = None
            for columns in batches:
                rows = arrow_table(table, columns)
                out = out or writer(table, file, rows.schema)
                out.write_table(rows, ROW_GROUP)
                self.rows[table] += len(rows)
            if out is not None:
                out.close()
            self.bytes[table] += file.tell()


def main() -> None:
    """Write the dataset and print its size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory")
    usual = [str(ROOT / "tests" / "data" / name) for name in ("demo.data", "arm64/own.data")]
    parser.add_argument("recordings", nargs="*", default=usual)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--segment-minutes", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    fleet = Fleet(Pool(args.recordings), machines(args.hosts, rng), args.seed)
    output, began = Output(args.directory), time.monotonic()
    first = int(np.datetime64(DAY, "h").astype(np.int64))
    each = -(-args.rows // (args.hosts * args.hours))
    size = max(GROUP // each, 1)
    groups = [fleet.hosts[at : at + size] for at in range(0, args.hosts, size)]
    for of_day in range(args.hours):
        hour = first + of_day
        batches = (fleet.batch(group, hour, of_day, each) for group in groups)
        if args.segment_minutes:
            segments(output, fleet, hour, batches, groups, args.segment_minutes)
        else:
            name = compacted_name([f"{args.seed} {hour}"])
            for table, columns in fleet.beside(fleet.hosts, hour).items():
                output.write(table, hour, name, [columns])
            output.write("samples", hour, name, batches)
        print(f"hour {of_day}: {output.rows['samples']:,} samples, {time.monotonic() - began:.0f} s", flush=True)
    for table, rows in output.rows.items():
        size = output.bytes[table]
        print(f"{table:8} {rows:12,} rows {size:14,} bytes {size / max(rows, 1):8.2f} a row")
    days = args.hosts * args.hours / 24
    print(f"{sum(output.bytes.values()) / days:,.0f} bytes per host and day")


def segments(output: Output, fleet: Fleet, hour: int, batches: Any, groups: list[Any], minutes: int) -> None:
    """Write the segments of each host: a file for each table, host and span of some minutes."""
    step = minutes * 60 * 10**9
    for group, batch in zip(groups, batches, strict=True):
        owner = batch["host_id"].codes
        for place, one in enumerate(group):
            beside = fleet.beside([one], hour)
            mine = {key: taken(column, owner == place) for key, column in batch.items()}
            for begin in range(hour * HOUR_NS, (hour + 1) * HOUR_NS, step):
                name = segment_name(one.host.host_id, one.host.boot_id, begin, begin + step)
                chosen = (mine["time_ns"] >= begin) & (mine["time_ns"] < begin + step)
                part = {key: compact(taken(column, chosen)) for key, column in mine.items()}
                used = np.unique(np.concatenate([part["stack_id"], part["waker_stack_id"]]))
                tables = {**beside, **only(fleet, one, used), "samples": part}
                for table, columns in tables.items():
                    output.write(table, hour, name, [columns])


def compact(column: Any) -> Any:
    """Return a column without texts that no row has."""
    if not isinstance(column, Texts):
        return column
    used, codes = np.unique(column.codes[column.codes >= 0], return_inverse=True)
    found = column.codes.copy()
    found[found >= 0] = codes
    return Texts([column.texts[code] for code in used.tolist()], found)


def only(fleet: Fleet, one: Machine, used: Any) -> dict[str, Columns]:
    """Return the tables of some stacks and their frames."""
    chains = fleet.services[one.service].chains
    keys = [int(key) for key in used if key]
    if not keys:
        return {}
    values = np.concatenate([chains[key] for key in keys])
    known = fleet.pool.frames | {fleet.services[one.service].root[0]: fleet.services[one.service].root}
    rows = [known[key] for key in np.unique(values).tolist()]
    return {
        "frames": frame_rows(rows),
        "stacks": {"stack_id": np.array(keys), "frame_ids": lists([chains[key] for key in keys], values)},
    }


if __name__ == "__main__":
    main()
