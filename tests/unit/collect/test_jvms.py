# SPDX-License-Identifier: Apache-2.0
"""Answers of JVMs: how much of them is kept, and how they are written."""

import os
import struct

import pytest

from perf_offcpu.abi.counters import JIT_MAP
from perf_offcpu.abi.records import RecordType
from perf_offcpu.collect import jvms
from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.collect.jvms import Jvms
from perf_offcpu.collect.output.object_table import jit_payloads
from perf_offcpu.losses import JVM_UNASKED, Losses


def asked(monkeypatch: pytest.MonkeyPatch, answers: dict[int, bytes], said: list[str], lost: Losses) -> Jvms:
    """Return what asking processes with these answers gives; all of them exist."""
    monkeypatch.setattr(jvms, "_ask_one", answers.__getitem__)
    monkeypatch.setattr(jvms, "by_turns", list)
    follower = Jvms(said.append, lost, lambda: set(answers), asks=True)
    for pid in answers:
        name = b"/usr/lib/jvm/lib/server/libjvm.so\0".ljust(40, b"\0")
        fields = struct.pack("=IIQQQIIQQII", pid, pid, 1 << 40, 4096, 0, 8, 1, 2, 3, 5, 2)
        head = struct.pack("=IHH", int(RecordType.MMAP2), 0, 8 + len(fields) + len(name))
        follower.see(head + fields + name)
    follower.ask_all()
    return follower


def test_maps_are_written_in_whole_lines() -> None:
    text = b"".join(b"%x 10 void a.B.method%d(int)\n" % (4096 + 16 * number, number) for number in range(5000))
    parts = [bytes(JIT_MAP.unpack(part, NATIVE)["text"]).rstrip(b"\0") for part in jit_payloads(7, text)]
    assert b"".join(parts) == text and all(part.endswith(b"\n") for part in parts) and len(parts) > 2


def test_all_maps_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many processes a user starts that answer like JVMs."""
    monkeypatch.setattr(jvms, "_MOST_KEPT", 1000)
    said, lost = list[str](), Losses()
    pid = os.getpid()
    follower = asked(
        monkeypatch, {pid: b"1000 10 a\n" * 60, pid + 1: b"1000 10 b\n" * 60, pid + 2: b"!why"}, said, lost
    )
    assert follower.maps.keys() == {pid}
    assert lost == {JVM_UNASKED: 2}
    assert [text.rpartition(": ")[2] for text in said] == ["the maps of others take all room", "why"]
