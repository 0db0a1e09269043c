# SPDX-License-Identifier: Apache-2.0
"""Objects and holders in every format that has details of waits, and in the text of samples."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

from builders.converted import converted, converted_bytes
from builders.profile import ProfileBuilder

from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Comms, Tasks
from perf_offcpu.script.fields import choose_fields
from perf_offcpu.script.samples import TextOptions, write

LOCK, FILE = "ledger_lock in bank", "/tmp/\x1b[31m <b>"


def bank() -> Profile:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    lock, file = builder.thing(LOCK), builder.thing(FILE)
    columns: dict[str, Any] = {"state": 1, "syscall": 202, "pid": 10, "switch_out_ns": 5000, "time_ns": 9000}
    builder.sample("a", ["main", "f"], 4000, tid=11, object=lock, holder_tid=12, asked_ns=70, **columns)
    builder.sample("b", ["main", "g"], 4000, tid=12, object=lock, holder_tid=99, **columns)  # not believed
    builder.sample("b", ["main", "g"], 4000, tid=12, object=file, **columns | {"time_ns": 20_000})
    builder.sample("b", ["main"], 4000, tid=12, **columns | {"time_ns": 30_000})
    profile = builder.build()
    profile.tasks = Tasks.from_rows([(11, 10, 0, -1), (12, 10, 0, -1)])
    profile.comms = Comms.from_rows([(12, 10, 0, profile.strings.intern("b"))])
    return profile


HOLDER = "b (pid 10, tid 12)"


def test_chrome_trace() -> None:
    events = json.loads(converted("chrome-trace", bank()))["traceEvents"]
    waits = [one["args"] for one in events if one.get("cat") == "offcpu"]
    known = [(one.get("object"), one.get("held by")) for one in waits]
    assert known == [(LOCK, HOLDER), (LOCK, None), ("/tmp/\\x1b[31m <b>", None), (None, None)]


def test_firefox() -> None:
    profile = json.loads(converted("firefox", bank()))
    strings = profile["shared"]["stringArray"]
    found = [
        tuple(strings[one[key]] if key in one else None for key in ("object", "holder"))
        for thread in profile["threads"]
        for one in thread["markers"]["data"]
        if one and one.get("type") == "Wait"
    ]
    assert sorted(found, key=str) == sorted(
        [(LOCK, HOLDER), (LOCK, None), ("/tmp/\\x1b[31m <b>", None), (None, None)], key=str
    )
    keys = {field["key"] for one in profile["meta"]["markerSchema"] for field in one["fields"]}
    assert {"object", "holder"} <= keys


def test_perfetto_and_pprof() -> None:
    for data in (converted_bytes("perfetto", bank()), gzip.decompress(converted_bytes("pprof", bank()))):
        for text in (LOCK, HOLDER, "object", "held by", "/tmp/\\x1b[31m <b>"):
            assert text.encode() in data, text
        assert b"\x1b[31m" not in data


def test_script() -> None:
    out = io.StringIO()
    write(bank(), out, TextOptions(choose_fields(["tid,object,holder,asked"])))
    assert [line.split() for line in out.getvalue().splitlines()] == [
        ["11", "object=ledger_lock_in_bank", "holder=12", "asked=70"],
        ["12", "object=ledger_lock_in_bank", "holder=-", "asked=-"],
        ["12", "object=/tmp/\\x1b[31m_<b>", "holder=-", "asked=-"],
        ["12", "object=-", "holder=-", "asked=-"],
    ]
