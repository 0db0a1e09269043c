# SPDX-License-Identifier: Apache-2.0
"""Properties: single records and columns, reading and writing agree; every view and dataset takes random waits."""

import json
import uuid
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from builders.converted import converted
from builders.dataset import rows_of
from builders.profile import OFFCPU, Code, ProfileBuilder
from builders.recording import BASE, S, comm, event, write
from builders.wait_objects import COUNTERS, WAITS, described, thing, wait
from hypothesis import given, settings
from hypothesis import strategies as st

from perf_offcpu.abi.attr import BranchSampleType, ReadFormat, SampleType
from perf_offcpu.abi.sample import SAMPLE, SampleShape
from perf_offcpu.abi.wait_objects import TEXTS
from perf_offcpu.binary.columnar import gather_bytes, gather_rows, read_columns
from perf_offcpu.binary.layout import BYTE, STRING, U8, U16, U32, U64, Field, Int, Layout
from perf_offcpu.dataset.compact import compact
from perf_offcpu.dataset.content import content_of
from perf_offcpu.dataset.dataset import HOUR_NS, Dataset, open_dataset
from perf_offcpu.dataset.rows import Host
from perf_offcpu.dataset.segment import write_segment
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.perfdata.write.columns import pack_columns
from perf_offcpu.report import lock_report
from perf_offcpu.report.document import document
from perf_offcpu.report.style import Style
from perf_offcpu.report.summary import summarize
from perf_offcpu.report.terminal import render
from perf_offcpu.symbolize.symbolizer import symbolize
from perf_offcpu.text import printable

ORDERS = st.sampled_from(["<", ">"])


@st.composite
def layouts_with_values(draw: st.DrawFn) -> tuple[Layout, dict[str, Any]]:
    fields: list[Field] = []
    values: dict[str, Any] = {}
    for index in range(draw(st.integers(1, 6))):
        name = f"f{index}"
        kind = draw(st.sampled_from(["int", "array", "bytes", "string", "fixed"]))
        type_ = draw(st.sampled_from([U8, U16, U32, U64]))
        number = st.integers(0, 2 ** (8 * type_.size) - 1)
        if kind == "int":
            fields.append(Field(name, type_))
            values[name] = draw(number)
        elif kind == "array":
            fields += [Field(f"{name}_nr", U16), Field(name, type_, count=f"{name}_nr")]
            values[name] = draw(st.lists(number, max_size=5))
        elif kind == "bytes":
            fields += [Field(f"{name}_size", U8), Field(name, BYTE, count=f"{name}_size")]
            values[name] = draw(st.binary(max_size=9))
        elif kind == "string":
            fields.append(Field(name, STRING))
            values[name] = draw(st.binary(max_size=70)).replace(b"\0", b"")
        else:
            fields.append(Field(name, type_, count=2))
            values[name] = draw(st.lists(number, min_size=2, max_size=2))
    return Layout("random", *fields), values


@given(layouts_with_values(), ORDERS)
def test_pack_unpack_pack(case: tuple[Layout, dict[str, Any]], order: Any) -> None:
    layout, values = case
    data = layout.pack(values, order)
    back = layout.unpack(data, order)
    assert {name: back[name] for name in values} == values
    assert layout.pack(back, order) == data


U64S = st.integers(0, 2**64 - 1)
SAMPLE_TYPES = [kind for kind in SampleType if kind not in (SampleType.AUX, SampleType.WEIGHT_STRUCT)]


@st.composite
def shapes(draw: st.DrawFn) -> SampleShape:
    kinds = draw(st.sets(st.sampled_from(SAMPLE_TYPES)))
    formats = draw(st.sets(st.sampled_from(list(ReadFormat))))
    branch = draw(st.sets(st.sampled_from(list(BranchSampleType))))
    masks = [draw(st.integers(0, 255)) for _ in range(2)]
    return SampleShape(SampleType(sum(kinds)), ReadFormat(sum(formats)), sum(branch), masks[0], masks[1])


@st.composite
def sample_values(draw: st.DrawFn, shape: SampleShape) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in SAMPLE.active(shape):
        if isinstance(field.type, Layout):
            names = [inner.name for inner in field.type.active(shape)]
            count = draw(st.integers(0, 3))
            values[field.name] = [{name: draw(U64S) for name in names} for _ in range(count)]
        elif field.type is BYTE:
            # RAW keeps what follows it aligned: 4 + size is a multiple of 8, as the kernel sees to.
            size = 8 * draw(st.integers(0, 3)) + (4 if field.name == "raw" else 0)
            values[field.name] = draw(st.binary(min_size=size, max_size=size))
        elif isinstance(field.type, Int) and field.count is None:
            if all(other.count != field.name for other in SAMPLE.active(shape)):
                limit = 2 if field.name.endswith("_abi") else 2 ** (8 * field.type.size)
                values[field.name] = draw(st.integers(0, limit - 1))
        else:
            count = field.count(shape) if callable(field.count) else draw(st.integers(0, 4))
            values[field.name] = [draw(U64S) for _ in range(count)]
    if "branch_counters" in values:
        values["branch_counters"] = [draw(U64S) for _ in values["branch_stack"]]
    if values.get("stack_user") == b"":
        values.pop("stack_user")
        values.pop("stack_user_dyn_size")
        values["stack_user_size"] = 0
    return values


@st.composite
def samples(draw: st.DrawFn) -> tuple[SampleShape, list[dict[str, Any]]]:
    shape = draw(shapes())
    return shape, draw(st.lists(sample_values(shape), min_size=1, max_size=4))


@settings(max_examples=100, deadline=None)
@given(samples(), ORDERS)
def test_columns_of_samples_equal_single_samples(case: Any, order: Any) -> None:
    shape, rows = case
    records = [SAMPLE.pack(row, order, shape) for row in rows]
    lengths = np.array([len(record) for record in records], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    data = np.frombuffer(b"".join(records) + bytes(8), np.uint8)
    columns = read_columns(SAMPLE, data, starts, starts + lengths, order, shape)
    assert columns.ok.all()
    assert np.array_equal(columns.ends, starts + lengths)
    for index, record in enumerate(records):
        single = SAMPLE.unpack(record, order, shape)
        for name, values in columns.scalars.items():
            assert int(values[index]) == single.get(name, 0)
        for name, found in columns.arrays.items():
            if found.width == 1:
                offsets, content = gather_bytes(data, found)
                assert content[offsets[index] : offsets[index + 1]].tobytes() == single.get(name, b"")
            else:
                offsets, words = gather_rows(data, found, order)
                items = (item.values() if isinstance(item, dict) else [item] for item in single.get(name, []))
                assert words[offsets[index] : offsets[index + 1]].tolist() == [word for item in items for word in item]


@given(samples(), ORDERS, st.data())
def test_short_samples_are_dropped_alone(case: Any, order: Any, data: st.DataObject) -> None:
    shape, rows = case
    records = [SAMPLE.pack(row, order, shape) for row in rows]
    victim = data.draw(st.integers(0, len(records) - 1))
    if len(records[victim]) < 4:
        return
    lengths = np.array([len(record) for record in records], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    ends = starts + lengths
    ends[victim] -= 4
    buffer = np.frombuffer(b"".join(records) + bytes(8), np.uint8)
    ok = read_columns(SAMPLE, buffer, starts, ends, order, shape).ok
    assert not ok[victim]
    assert np.delete(ok, victim).all()


CHAIN_SHAPE = SampleShape(
    SampleType.IDENTIFIER | SampleType.TID | SampleType.TIME | SampleType.CALLCHAIN | SampleType.RAW
)


ROWS = st.tuples(U64S, st.integers(0, 2**32 - 1), st.lists(U64S, max_size=5), st.integers(0, 3))


@given(st.lists(ROWS, min_size=1, max_size=5), ORDERS)
def test_written_columns_equal_packed_records(rows: list[Any], order: Any) -> None:
    raws = [bytes(range(8 * size + 4)) for *_, size in rows]
    expected = b"".join(
        SAMPLE.pack({"identifier": i, "pid": p, "tid": 1, "time": 2, "callchain": c, "raw": raw}, order, CHAIN_SHAPE)
        for (i, p, c, _), raw in zip(rows, raws, strict=True)
    )
    columns: dict[str, Any] = {
        "identifier": np.array([row[0] for row in rows], np.uint64), "tid": np.full(len(rows), 1),
        "pid": np.array([row[1] for row in rows], np.uint32), "time": np.full(len(rows), 2),
        "callchain": _ragged([row[2] for row in rows], np.uint64),
        "raw": _ragged([list(raw) for raw in raws], np.uint8),
    }  # fmt: skip
    offsets, data = pack_columns(SAMPLE, columns, len(rows), order, CHAIN_SHAPE)
    assert data.tobytes() == expected
    assert offsets[-1] == len(expected)


def _ragged(rows: list[list[int]], dtype: type) -> tuple[Any, Any]:
    offsets = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64)
    return offsets, np.array([item for row in rows for item in row], dtype)


BEGIN = 497_000 * HOUR_NS
NAMES = st.one_of(st.sampled_from(["a", "b", ""]), st.text(max_size=8), st.binary(max_size=8))
CODES = st.builds(
    Code, symbol=st.sampled_from(["", "f", "g", "\x1b[0m", "ü\u202e"]),
    dso=st.sampled_from(["", "/lib/x", "[kernel.kallsyms]"]), address=st.integers(0, 2**64 - 1),
    kernel=st.booleans(), line=st.integers(0, 3), inline_depth=st.integers(0, 2),
)  # fmt: skip
WEIGHTS = st.integers(0, 10**12)
SAMPLES = st.fixed_dictionaries(
    {
        "comm": NAMES, "path": st.lists(CODES, max_size=5), "waker_path": st.lists(CODES, max_size=3),
        "weight": WEIGHTS, "event": st.sampled_from([OFFCPU, "cpu-clock"]),
        "time_ns": st.integers(-1, 3 * HOUR_NS), "tid": st.integers(-1, 5), "cpu": st.integers(-1, 3),
        "runq_ns": st.integers(-1, 100), "count": st.integers(0, 10**9), "waker_tid": st.integers(-1, 3),
        "flags": st.sampled_from([SampleFlag(0), SampleFlag.PREEMPTED, SampleFlag.AGGREGATED]),
    }
)  # fmt: skip


def profile_of(samples: list[dict[str, Any]]) -> Profile:
    meta = {"hostname": "h", "wall_clock_ns": BEGIN, "wall_clock_at_ns": 1, "begin_ns": 1}
    builder = ProfileBuilder(meta=meta | {"end_ns": 3 * HOUR_NS}, build_ids={"/lib/x": "ab" * 20})
    for sample in sorted(samples, key=lambda one: one["time_ns"]):
        builder.sample(**sample)
    return builder.build()


def text(name: str | bytes) -> str:
    return printable(name if isinstance(name, str) else name.decode("utf-8", "surrogateescape"))


@settings(max_examples=12)
@given(st.lists(st.lists(SAMPLES, max_size=12), min_size=1, max_size=3))
def test_rows_are_the_samples(hosts: list[list[dict[str, Any]]]) -> None:
    dataset = open_dataset(f"memory://{uuid.uuid4()}", make=True)
    for number, samples in enumerate(hosts):
        for _ in range(2):  # the second replaces the first
            write_segment(dataset, profile_of(samples), Host(f"host{number}"))
    expected = Counter(
        (
            f"host{number}", text(sample["comm"]), sample["event"], sample["weight"], sample["count"], sample["tid"],
            None if sample["cpu"] < 0 else sample["cpu"],
            BEGIN - 1 + sample["time_ns"] if sample["time_ns"] >= 0 else BEGIN - 1 + 3 * HOUR_NS,
            tuple(text(code.symbol) for code in reversed(sample["path"])),
            tuple(text(code.symbol) for code in reversed(sample["waker_path"])),
        )
        for number, samples in enumerate(hosts)
        for sample in samples
    )  # fmt: skip
    assert found(dataset) == expected
    assert not [done for _, done in compact(dataset, BEGIN + 9 * HOUR_NS) if isinstance(done, Exception)]
    assert found(dataset) == expected


def found(dataset: Dataset) -> Counter[tuple[Any, ...]]:
    stacks = {row["stack_id"]: row["frame_ids"] for row in rows_of(dataset, "stacks")} | {0: []}
    symbol = {row["frame_id"]: row["symbol"] for row in rows_of(dataset, "frames")}
    found = Counter[tuple[Any, ...]]()
    for row in rows_of(dataset, "samples"):
        plain = [row[name] for name in "host_id comm event weight_ns count tid cpu time_ns".split()]
        found[*plain, *(tuple(symbol[one] for one in stacks[row[id_]]) for id_ in ("stack_id", "waker_stack_id"))] += 1
    return found


@settings(max_examples=12)
@given(st.lists(SAMPLES, min_size=1, max_size=10), st.randoms())
def test_ids_do_not_depend_on_the_order_or_on_other_samples(samples: list[dict[str, Any]], rng: Any) -> None:
    mixed = [one | {"time_ns": place} for place, one in enumerate(rng.sample(samples, len(samples)))]
    whole, some = content_of(profile_of(samples)), content_of(profile_of(mixed))
    assert np.array_equal(whole.stack_ids, some.stack_ids)
    assert np.array_equal(whole.frames["frame_id"], some.frames["frame_id"])
    one = content_of(profile_of(samples[:1]))
    assert set(one.stack_ids.tolist()) <= set(whole.stack_ids.tolist())


CLOCK = event("cpu-clock", (1,), BASE | S.CALLCHAIN)
PIDS = st.sampled_from([0, 10, 20, 2**31 - 1, 2**32 - 1])
TEXT = st.sampled_from(
    ["", "/a", "heap", "stack", "read end", "unix", "tcp", "10.0.0.1:80", "10.0.0.7:40000",
     "[::ffff:10.0.0.1]:80", "[eventpoll]", "+0x0", "/q+0x40", "a:b:c", "\x1b[31m", "x" * 300,
     "[::ffff:", "/dev/zero (deleted)+0x1"]
)  # fmt: skip
NUMBER = st.sampled_from([0, 1, 5, 0x1000, 2**63, 2**64 - 1])


@st.composite
def objects(draw: st.DrawFn, id_: int) -> dict[str, Any]:
    fields: dict[str, Any] = {name: draw(TEXT) for name in TEXTS}
    fields |= {name: draw(NUMBER) for name in ("inode", "address", "peer_inode")}
    fields |= {"pid": draw(PIDS), "peer_pid": draw(PIDS), "device": draw(st.sampled_from([0, 1, 2**32 - 1]))}
    fields["number"] = draw(st.sampled_from([-(2**31), -1, 0, 3, 2**31 - 1]))
    kind = draw(st.sampled_from([*range(14), 99, 2**16 - 1]))
    return thing(id_, 0, **fields) | {"kind": kind}  # type: ignore[arg-type]


@st.composite
def waits(draw: st.DrawFn) -> list[dict[str, Any]]:
    return draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "object_id": st.integers(0, 5), "pid": st.sampled_from([10, 20]),
                    "tid": st.sampled_from([10, 11, 20, 21]), "time": st.integers(1000, 2000),
                    "ns": st.integers(0, 900), "kind": st.integers(1, 4),
                    "syscall": st.sampled_from([0, 1, 7, 35, 45, 202, -1]),
                    "asked_ns": st.sampled_from([0, 5, 2**63 - 1, 2**64 - 1]),
                    "holder_tid": st.sampled_from([0, 10, 11, 21, 2**31, 2**32 - 1]),
                    "waker_pid": st.sampled_from([0, 10, 20, 2**32 - 1]),
                    "waker_tid": st.sampled_from([0, 10, 21, 2**32 - 1]),
                    "object_lost": st.integers(0, 2**32 - 1),
                }
            ),
            max_size=12,
        )
    )  # fmt: skip


@settings(max_examples=25)
@given(st.data())
def test_every_view_takes_any_objects(data: st.DataObject) -> None:
    table = [data.draw(objects(id_)) for id_ in range(1, data.draw(st.integers(1, 5)))]
    some = data.draw(waits())
    names = [comm(CLOCK, 10, 10, "a"), comm(CLOCK, 10, 11, "b"), comm(CLOCK, 20, 20, "c")]
    records = [*names, described(*table), *(wait(**one) for one in sorted(some, key=lambda one: one["time"]))]
    with TemporaryDirectory() as directory:
        recording = load_recording(write(Path(directory) / "x.data", [CLOCK, WAITS, COUNTERS], records))
    profile = symbolize(recording)
    profile.check()
    summary = summarize(profile)
    total = sum(row.total.weight for row in summary.objects.rows) + summary.objects.without
    assert total == int(profile.samples.period.sum())
    report = lock_report.report_of(profile, None)
    assert "\x1b" not in "\n".join([*render(summary, Style()), *lock_report.render(report, Style())])
    json.dumps([document(summary), lock_report.document(report)])
    edges = json.loads(converted("callgraph", profile, objects=True, form="json", min_share=0))["edges"]
    waited = sum(edge["weight"] for edge in edges if edge["what"] == "waited")
    assert waited == int(profile.samples.period[(profile.samples.object >= 0) & profile.is_offcpu()].sum())
