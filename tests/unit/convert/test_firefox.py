# SPDX-License-Identifier: Apache-2.0
"""Firefox profiles: what they say, read by the rules of their types; tests/browser opens them for real. The columns are
those of src/types/profile.ts of https://github.com/firefox-devtools/profiler at version 70."""

import json
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from builders.converted import converted
from builders.large import large_profile
from builders.profile import Code, ProfileBuilder, kernel

from perf_offcpu.convert.firefox.shared import breakpad_id
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

Table = dict[str, Any]
MS = 10**6

COLUMNS = {
    "stackTable": "frame prefixOffset",
    "frameTable": "address lib inlineDepth category subcategory func nativeSymbol innerWindowID line column "
    "originalLocation",
    "funcTable": "name isJS relevantForJS resource source lineNumber columnNumber originalLocation",
    "resourceTable": "name host type", "nativeSymbols": "libIndex address name functionSize",
    "sources": "id filename startLine startColumn sourceMapURL content", "sourceLocationTable": "source line column",
    "samples": "time stack weight", "markers": "data name startTime endTime phase category",
}  # fmt: skip
REFERS = {
    ("frameTable", "func"): "funcTable", ("frameTable", "nativeSymbol"): "nativeSymbols",
    ("funcTable", "resource"): "resourceTable", ("funcTable", "source"): "sources",
    ("stackTable", "frame"): "frameTable",
}  # fmt: skip


def document(profile: Profile, **options: Any) -> Table:
    parsed: Table = json.loads(converted("firefox", profile, **options), parse_float=Decimal)
    shared = parsed["shared"]
    for name, table in shared.items():
        if name != "stringArray":
            check(name, table)
    for (name, column), target in REFERS.items():
        for value in shared[name][column]:
            assert value in (None, -1) or 0 <= value < shared[target]["length"]
    assert all(lib == -1 or 0 <= lib < len(parsed["libs"]) for lib in shared["frameTable"]["lib"])
    assert all(0 <= offset <= at for at, offset in enumerate(shared["stackTable"]["prefixOffset"]))
    for thread in parsed["threads"]:
        check("samples", thread["samples"])
        check("markers", thread["markers"])
        assert thread["samples"]["time"] == sorted(thread["samples"]["time"])
    assert len({str(thread["tid"]) for thread in parsed["threads"]}) == len(parsed["threads"])
    return parsed


def check(name: str, table: Table) -> None:
    columns = {key: value for key, value in table.items() if isinstance(value, list)}
    assert set(columns) == set(COLUMNS[name].split())
    assert {len(values) for values in columns.values()} == {table["length"]}


def ns(milliseconds: Decimal) -> int:
    exact = milliseconds * MS
    assert exact == int(exact)
    return int(exact)


def path(parsed: Table, stack: int) -> str:
    shared = parsed["shared"]
    func = shared["frameTable"]["func"][shared["stackTable"]["frame"][stack]]
    name: str = shared["stringArray"][shared["funcTable"]["name"][func]]
    offset = shared["stackTable"]["prefixOffset"][stack]
    return f"{path(parsed, stack - offset)};{name}" if offset else name


def samples(parsed: Table, thread: Table) -> list[tuple[int, str, int]]:
    """(when, path, ns)."""
    table = thread["samples"]
    rows = zip(table["time"], table["stack"], table["weight"], strict=True)
    return [(ns(time), "" if stack is None else path(parsed, stack), ns(weight)) for time, stack, weight in rows]


def markers(parsed: Table, thread: Table) -> list[tuple[str, int, int, Table]]:
    """(name, begin, end, details as text)."""
    table, strings = thread["markers"], parsed["shared"]["stringArray"]
    schema = {one["name"]: {f["key"]: f["format"] for f in one["fields"]} for one in parsed["meta"]["markerSchema"]}

    def text(kind: str, key: str, value: Any) -> Any:
        if key == "cause":
            return path(parsed, value["stack"])
        return strings[value] if schema[kind][key] == "unique-string" else value

    texts = [{key: text(data["type"], key, data[key]) for key in data if key != "type"} for data in table["data"]]
    times = (list(map(ns, table[name])) for name in ("startTime", "endTime"))
    return list(zip(map(strings.__getitem__, table["name"]), *times, texts, strict=True))


def by_thread(profile: Profile) -> tuple[Table, dict[str, Table]]:
    parsed = document(profile)
    return parsed, {thread["name"]: thread for thread in parsed["threads"]}


@pytest.fixture
def profile() -> Profile:
    builder = ProfileBuilder(meta={"arch": "x86_64", "wall_clock_ns": 10**18, "wall_clock_at_ns": 4_000_000})
    futex = ["main", Code("lock", "/bin/a", 0x1234, file="a.c", line=7), kernel("futex_wait")]
    builder.sample("a", futex, 1_000_001, time_ns=5_000_001, state=1, syscall=202)
    builder.sample(
        "b", ["main", kernel("schedule")], 2_500, time_ns=5_010_000, tid=101, state=2, syscall=0,
        waker_tid=100, waker_pid=100, wakeup_ns=5_009_300, runq_ns=700, waker_path=["main", "unlock"],
    )  # fmt: skip
    builder.sample("b", ["main", kernel("schedule")], 400, time_ns=5_010_400, tid=101, state=1, syscall=35)
    builder.sample("b", ["main"], 77, time_ns=5_031_000, tid=101, flags=SampleFlag.AGGREGATED, count=9)
    builder.sample("b", ["main", "run"], 11, time_ns=5_012_000, tid=101, event="cpu-clock")
    builder.build_ids["/bin/a"] = "f1c3bcc0279865fe3058404b2831d9e64135386c"
    return builder.build()


def test_waits_in_time_with_gaps(profile: Profile) -> None:
    parsed, found = by_thread(profile)
    assert samples(parsed, found["a"]) == [(0, "main;lock;futex_wait", 1_000_001), (1_000_001, "", 0)]
    assert samples(parsed, found["b"]) == [
        (1_007_500, "main;schedule", 2_500), (1_010_000, "main;schedule", 400), (1_010_400, "", 0),
    ]  # fmt: skip
    assert samples(parsed, found["b (CPU samples)"]) == [(1_012_000, "main;run", 11)]
    assert samples(parsed, found["b (no time: sums of short waits)"]) == [(0, "main", 77)]
    assert [(thread["pid"], thread["tid"], thread["isMainThread"]) for thread in parsed["threads"]] == [
        ("100", 100, True), ("100", 101, False), ("100", "101-cpu", False), ("100", "101-sums", False),
    ]  # fmt: skip
    assert parsed["meta"]["startTime"] == 10**12  # 4 ms after the clock was read, ms since 1970
    assert parsed["meta"]["startTimeAsClockMonotonicNanosecondsSinceBoot"] == 4_000_000


def test_each_wait_is_a_marker(profile: Profile) -> None:
    parsed, found = by_thread(profile)
    lock = {"function": "futex_wait", "state": "interruptible sleep", "syscall": "futex"}
    assert markers(parsed, found["a"]) == [
        ("lock", 0, 1_000_001, lock | {"cause": "main;lock;futex_wait"}),
        ("wakes", 1_009_300, 1_009_300, {"sleeper": "b (pid 100, tid 101)", "cause": "main;unlock"}),
    ]
    disk, sleep = markers(parsed, found["b"])
    details = {
        "function": "schedule", "state": "uninterruptible sleep", "syscall": "read", "waker": "a (pid 100, tid 100)",
        "runq": Decimal("0.000700"), "wakerstack": "main;unlock", "cause": "main;schedule",
    }  # fmt: skip
    assert disk == ("disk", 1_007_500, 1_010_000, details)
    assert sleep[0] == "sleep" and "waker" not in sleep[3]
    assert found["b (CPU samples)"]["markers"]["length"] == 0


def test_what_was_waited_for_is_the_category_of_the_leaf(profile: Profile) -> None:
    parsed = document(profile)
    frames = parsed["shared"]["frameTable"]
    names = [one["name"] for one in parsed["meta"]["categories"]]
    own = Counter[str]()
    for thread in parsed["threads"]:
        for stack, weight in zip(thread["samples"]["stack"], thread["samples"]["weight"], strict=True):
            if stack is not None:
                frame = parsed["shared"]["stackTable"]["frame"][stack]
                own[names[frames["category"][frame]]] += ns(weight)
    assert own == {"lock": 1_000_001, "disk": 2_500, "sleep": 400, "other": 77, "user": 11}
    assert all(one["subcategories"][0] == "Other" for one in parsed["meta"]["categories"])
    assert parsed["meta"]["categories"][0]["color"] == "grey"


def test_code_is_named_by_library_address_and_line(profile: Profile) -> None:
    parsed = document(profile)
    shared = parsed["shared"]
    strings, frames = shared["stringArray"], shared["frameTable"]
    at = frames["address"].index(0x1234)
    library = parsed["libs"][frames["lib"][at]]
    assert (library["path"], library["name"], library["arch"]) == ("/bin/a", "a", "x86_64")
    assert library["codeId"] == "f1c3bcc0279865fe3058404b2831d9e64135386c"
    assert library["breakpadId"] == "C0BCC3F19827FE653058404B2831D9E60" and frames["line"][at] == 7
    function = frames["func"][at]
    assert strings[shared["sources"]["filename"][shared["funcTable"]["source"][function]]] == "a.c"
    assert strings[shared["resourceTable"]["name"][shared["funcTable"]["resource"][function]]] == "/bin/a"
    assert strings[shared["nativeSymbols"]["name"][frames["nativeSymbol"][at]]] == "lock"
    assert breakpad_id("") == "" and breakpad_id("0102") == "00000201" + "0" * 24 + "0"


def test_sums_are_exact() -> None:
    for whole in (large_profile(3_000, 200), ProfileBuilder().build()):
        parsed = document(whole)
        weights = [ns(weight) for thread in parsed["threads"] for weight in thread["samples"]["weight"]]
        assert sum(weights) == whole.samples.period.sum()
        waits = [part for thread in parsed["threads"] for part in markers(parsed, thread) if part[0] != "wakes"]
        assert sum(end - begin for _, begin, end, _ in waits) == whole.samples.period.sum()
    woken = [part for thread in document(large_profile(3_000, 200))["threads"] for part in thread["markers"]["phase"]]
    assert woken.count(1) == 3_000 and woken.count(0) > 1_000


def test_what_is_not_counted_in_time_weighs_its_number() -> None:
    builder = ProfileBuilder(events={"cycles": ""})
    builder.sample("a", ["main"], 5, event="cycles", time_ns=1).sample("a", [], 7, event="cycles", time_ns=-1)
    parsed = document(builder.build())
    assert [one["samples"]["weightType"] for one in parsed["threads"]] == ["samples"] * 3
    assert [one["samples"]["weight"] for one in parsed["threads"]] == [[], [5], [7]]


def test_marks_addresses_and_hostile_names() -> None:
    hostile = "<img onerror=x>\x1b[2J\udcff\u202e"
    builder = ProfileBuilder().sample(hostile, [hostile], 5, flags=SampleFlag.NO_USER_STACK)
    parsed = document(builder.build())
    assert [thread["name"] for thread in parsed["threads"]] == ["<img onerror=x>\\x1b[2J\\xff\\u202e"]
    ((_, shown, _), _) = samples(parsed, parsed["threads"][0])
    assert shown == "[missed user stack];<img onerror=x>\\x1b[2J\\xff\\u202e"
    builder = ProfileBuilder().sample("a", [Code("", "/lib/x.so", 0x42), kernel("f")], 5)
    parsed = document(builder.build(), addrs=True, kernel=True)
    assert samples(parsed, parsed["threads"][0])[0][1] == "[x.so <42>];f_[k]"
