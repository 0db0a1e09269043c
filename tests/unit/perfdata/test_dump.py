# SPDX-License-Identifier: Apache-2.0
"""Output of `dump` of sound and damaged files; formats of tracepoints out of TRACING_DATA."""

import struct
from collections import Counter
from pathlib import Path

import pytest
from builders.dump_text import Dumped, parse
from builders.foreign import big_endian
from builders.switching import tracing_data

from perf_offcpu import losses
from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.records import RecordType
from perf_offcpu.binary.layout import S64, U16, Order
from perf_offcpu.collect.events.parser import events_directory
from perf_offcpu.errors import FormatError
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.dump import dump
from perf_offcpu.perfdata.reader import PerfDataReader
from perf_offcpu.perfdata.tracing_data import TracepointField, parse_format, tracepoint_formats

DATA = Path(__file__).resolve().parents[2] / "data" / "perf-7.2"
NAMES = ["direct", "atend", "hybrid", "deferred", "compressed", "pipe", "sched"]


def lines_of(path: Path) -> list[str]:
    with PerfDataReader.open(path) as reader:
        return list(dump(reader))


def records_of(path: Path) -> list[Dumped]:
    return parse(lines_of(path))


@pytest.mark.parametrize("name", NAMES)
def test_every_byte_of_the_data_is_in_a_record(name: str) -> None:
    with PerfDataReader.open(DATA / f"{name}.data") as reader:
        begin, end = reader.head.data_offset, reader.head.data_end
        records = parse(dump(reader))
        assert reader.counters == {}
    streams: dict[str, list[Dumped]] = {}
    for record in records:
        streams.setdefault(record.origin, []).append(record)
    for origin, stream in streams.items():
        offset = 0 if origin else begin
        for record in stream:
            assert record.offset == offset
            offset += record.size
        assert origin or offset == (end or (DATA / f"{name}.data").stat().st_size)
    assert not [record for record in records if record.problems]
    assert set(streams) == ({"", "zstd"} if name == "compressed" else {""})


def test_records_in_full() -> None:
    """A raw sample's pair is shown as written, tid first: dump repairs nothing."""
    text = "\n".join(lines_of(DATA / "direct.data"))
    records = (DATA.parents[1] / "golden" / "texts" / "dump.txt").read_text().split("\n\n")
    assert len(records) == 2 and all(f"{record.strip()}\n0x" in text for record in records)


def test_what_the_header_says() -> None:
    lines = lines_of(DATA / "deferred.data")
    assert lines[0].endswith("deferred.data': file form, little-endian")
    assert "  magic: 0x32454c4946524550" in lines
    event = lines[lines.index("event 0") :]
    assert event[1].startswith("  name: b'cpu-clock'")
    assert "DEFER_CALLCHAIN" in next(line for line in event if line.startswith("  flags: "))
    (arch,) = (row for row, line in enumerate(lines) if line.startswith("feature 6 ARCH at "))
    assert lines[arch + 1] == "  text: b'x86_64'"
    assert "  levels[0]: {level: 1, line_size: 64, " in "\n".join(lines)


def test_a_deferred_callchain_and_the_sample_that_waits_for_it() -> None:
    records = records_of(DATA / "deferred.data")
    chains = [one for one in records if one.name == "PERF_RECORD_CALLCHAIN_DEFERRED"]
    assert len(chains) == 506
    assert all(one.number("nr") == len(one.words("ips")) for one in chains)
    waiting = [one.fields["callchain"] for one in records if one.name == "PERF_RECORD_SAMPLE"]
    assert sum(chain[-2].endswith(" PERF_CONTEXT_USER_DEFERRED") for chain in waiting if len(chain) > 1) == 543


def test_the_counts_at_the_end_are_those_of_the_records() -> None:
    lines = lines_of(DATA / "hybrid.data")
    counts = Counter(one.name for one in parse(lines))
    shown = [f"  {name}: {count}" for name, count in sorted(counts.items())]
    assert lines[-len(counts) - 1 :] == [f"{counts.total()} records", *shown]


@pytest.mark.parametrize("name", ["atend", "deferred"])
def test_a_foreign_byte_order_says_the_same(name: str, perf_data: Path) -> None:
    perf_data.write_bytes(big_endian(DATA / f"{name}.data"))
    native, foreign = (records_of(one) for one in (DATA / f"{name}.data", perf_data))
    for ours, theirs in zip(native, foreign, strict=True):
        ours.fields.pop("raw", None), theirs.fields.pop("raw", None)
        assert theirs == ours
    assert any(line.endswith("big-endian") for line in lines_of(perf_data)[:1])


def patched(tmp_path: Path, changes: dict[int, bytes], name: str = "direct") -> Path:
    """Write a copy of a recording with other bytes at some offsets."""
    data = bytearray((DATA / f"{name}.data").read_bytes())
    for offset, value in changes.items():
        data[offset : offset + len(value)] = value
    path = tmp_path / "patched.data"
    path.write_bytes(data)
    return path


def one_of(name: str) -> Dumped:
    return next(one for one in records_of(DATA / "direct.data") if one.name == f"PERF_RECORD_{name}")


def test_unknown_types_in_hex_and_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    comm = one_of("COMM")
    lines = lines_of(patched(tmp_path, {comm.offset + 16: b"\x1b[2J\n\xff;\x00"}))
    assert "  comm: b'\\x1b[2J\\n\\xff;'" in lines
    assert all(line.isascii() and line.isprintable() for line in lines)
    path = patched(tmp_path, {comm.offset: struct.pack("<I", 200)})
    records = records_of(path)
    assert [one.name for one in records if one.offset == comm.offset] == ["record of unknown type 200"]
    assert len(records) == len(records_of(DATA / "direct.data"))
    assert any(line.startswith("    0000:  7e 00 00 00 7e 00 00 00 70 65 72 66") for line in lines_of(path))


def test_what_fits_of_a_damaged_sample_is_shown(tmp_path: Path) -> None:
    sample = one_of("SAMPLE")
    records = records_of(patched(tmp_path, {sample.offset + 8 + 8 * 6: struct.pack("<I", 100_000)}))
    broken = next(one for one in records if one.offset == sample.offset)
    assert (broken.number("raw_size"), broken.number("time")) == (100_000, sample.number("time"))
    assert broken.problems == ["PERF_RECORD_SAMPLE: field raw needs 100000 bytes at 60, 108 are left"]
    assert [one.offset for one in records] == [one.offset for one in records_of(DATA / "direct.data")]


def test_payloads_that_lie_are_shown_as_far_as_they_fit_and_samples_of_no_event_in_hex(tmp_path: Path) -> None:
    sample = one_of("SAMPLE")
    lines = lines_of(patched(tmp_path, {sample.offset + 8 + 8 * 6 + 4 + 16: struct.pack("<Q", 2**61)}))
    assert f"    nr: {2**61}" in lines
    assert any(line.startswith("    ! offcpu-time raw payload: field callchain needs") for line in lines)
    records = records_of(patched(tmp_path, {sample.offset + 8: struct.pack("<Q", 12345)}))
    assert [one.problems for one in records if one.offset == sample.offset] == [["its id belongs to no event"]]


def test_an_impossible_size_ends_the_data_and_is_said(tmp_path: Path) -> None:
    fork = one_of("FORK")
    lines = lines_of(patched(tmp_path, {fork.offset + 6: struct.pack("<H", 3)}))
    assert parse(lines)[-1].offset < fork.offset
    assert any(line.startswith("! ") and "impossible size" in line for line in lines)


def test_the_v12_form_of_a_deferred_callchain(tmp_path: Path) -> None:
    """nr, then the addresses, the first a marker: there is no cookie."""
    chain = next(one for one in records_of(DATA / "deferred.data") if len(one.words("ips")) >= 2)
    nr = len(chain.words("ips")) + 1
    path = patched(tmp_path, {chain.offset + 8: struct.pack("<QQ", nr, 2**64 - 512)}, "deferred")
    shown = next(one for one in records_of(path) if one.offset == chain.offset)
    assert "cookie" not in shown.fields and shown.number("nr") == nr
    assert shown.fields["ips"][0] == "0xfffffffffffffe00 PERF_CONTEXT_USER"


@pytest.mark.parametrize("name", ["atend", "compressed", "pipe"])
def test_every_cut_file_is_dumped_up_to_the_cut(name: str, tmp_path: Path) -> None:
    whole, path = (DATA / f"{name}.data").read_bytes(), tmp_path / "cut.data"
    before = -1
    for size in range(0, len(whole), len(whole) // 12):  # tests/corrupt and tests/fuzz/prefixes.py do more
        path.write_bytes(whole[:size])
        try:
            count = len(records_of(path))
        except FormatError:
            assert size < 2000  # the header itself
            continue
        assert count >= before
        before = count
    assert before > 10


def test_types_have_the_names_that_perf_prints() -> None:
    """Each type of our enum that occurs in a recording is printed by its name, none as unknown."""
    names = {one.name for name in NAMES for one in records_of(DATA / f"{name}.data")}
    assert names <= {f"PERF_RECORD_{kind.name}" for kind in RecordType}
    assert len(names) > 18


OLD_FORMAT = (Path(__file__).parents[2] / "data" / "formats" / "sched_wakeup.txt").read_text()


@pytest.fixture(scope="module")
def body() -> bytes:
    with PerfDataReader.open(Path(__file__).parents[2] / "data" / "perf-7.2" / "sched.data") as reader:
        return reader.features.bodies[Feature.TRACING_DATA]


def test_what_perf_recorded(body: bytes) -> None:
    counters = Losses()
    found = tracepoint_formats(body, counters)
    assert not counters
    names = {(one.system, one.name, one.id) for one in found.values()}
    assert names == {("sched", "sched_switch", 310), ("sched", "sched_wakeup", 312)}
    switch = found[310]
    assert switch.fields["prev_pid"] == TracepointField(24, 4, signed=True)
    assert (switch.fields["prev_state"].type, switch.fields["common_type"].type) == (S64, U16)
    assert switch.fields["prev_comm"].type is None
    assert list(switch.fields)[-1] == "next_prio"
    assert switch.print_fmt.startswith('"prev_comm=%s') and switch.print_fmt.endswith("REC->next_prio")


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders(order: Order) -> None:
    found = tracepoint_formats(tracing_data(order, ("sched", [OLD_FORMAT]), ("irq", [])), Losses())
    assert {number: (one.system, one.name) for number, one in found.items()} == {60: ("sched", "sched_wakeup")}


def test_formats_of_old_kernels() -> None:
    one = parse_format("sched", OLD_FORMAT)
    assert one is not None and one.print_fmt == '"comm=%s pid=%d", REC->comm, REC->pid'
    unsigned = {"common_type": (0, 2), "comm": (8, 16), "note": (24, 4)}
    fields = {name: TracepointField(*place) for name, place in unsigned.items()}
    assert one.fields == fields | {"pid": TracepointField(28, 4, signed=True)}


@pytest.mark.kernel
def test_every_tracepoint_of_this_kernel() -> None:
    files = list(events_directory("all").glob("*/*/format"))
    assert len(files) > 100, "needs root"
    for path in files:
        text = path.read_text()
        one = parse_format(path.parts[-3], text)
        assert one is not None and one.name == path.parts[-2]
        assert len(one.fields) == text.count("\tfield:"), path


def test_what_comes_before_the_damage_is_sound(body: bytes) -> None:
    whole = tracepoint_formats(body, Losses())
    seen = set()
    for size in range(1, len(body)):
        counters = Losses()
        found = tracepoint_formats(body[:size], counters)
        assert all(found[number] == whole[number] for number in found)
        assert bool(counters) == (len(found) < len(whole)), "damage is counted, if it matters"
        seen.add(len(found))
    assert seen == {0, 1, 2}
    counters = Losses()
    assert tracepoint_formats(b"", counters) == {} and not counters


@pytest.mark.parametrize("place", range(0, 600, 7))
def test_lies_are_no_danger(body: bytes, place: int) -> None:
    for value in (b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f"):
        damaged, counters = body[:place] + value + body[place + len(value) :], Losses()
        tracepoint_formats(damaged, counters)
        assert set(counters) <= {losses.BAD_FEATURE}


@pytest.mark.parametrize("text", ["", "name: x\n", "ID: 3\n", "ID: 99999999999999999999\nname: x\n"])
def test_texts_that_are_no_format(text: str) -> None:
    assert parse_format("sched", text) is None
