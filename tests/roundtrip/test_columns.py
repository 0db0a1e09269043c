# SPDX-License-Identifier: Apache-2.0
"""Properties: single records and columns, reading and writing, agree on random layouts and samples."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perf_offcpu.abi.attr import BranchSampleType, ReadFormat, SampleType
from perf_offcpu.abi.sample import SAMPLE, SampleShape
from perf_offcpu.binary.columnar import read_columns
from perf_offcpu.binary.fields import BYTE, STRING, U8, U16, U32, U64, Field, Int
from perf_offcpu.binary.gather import gather_bytes, gather_rows
from perf_offcpu.binary.layout import Layout
from perf_offcpu.perfdata.write.columns import pack_columns

ORDERS = st.sampled_from(["<", ">"])
INTS = st.sampled_from([U8, U16, U32, U64])


@st.composite
def layouts_with_values(draw: st.DrawFn) -> tuple[Layout, dict[str, Any]]:
    fields: list[Field] = []
    values: dict[str, Any] = {}
    for index in range(draw(st.integers(1, 6))):
        name = f"f{index}"
        kind = draw(st.sampled_from(["int", "array", "bytes", "string", "fixed"]))
        type_ = draw(INTS)
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
            if not _is_count(field, shape):
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


def _is_count(field: Field, shape: SampleShape) -> bool:
    return any(other.count == field.name for other in SAMPLE.active(shape))


@st.composite
def samples(draw: st.DrawFn) -> tuple[SampleShape, list[dict[str, Any]]]:
    shape = draw(shapes())
    return shape, draw(st.lists(sample_values(shape), min_size=1, max_size=4))


@settings(max_examples=200, deadline=None)
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
                assert words[offsets[index] : offsets[index + 1]].tolist() == _flat(single.get(name, []))


def _flat(items: list[Any]) -> list[int]:
    return [word for item in items for word in (item.values() if isinstance(item, dict) else [item])]


@settings(max_examples=100, deadline=None)
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
