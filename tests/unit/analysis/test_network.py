# SPDX-License-Identifier: Apache-2.0
"""Causes of waits for connections, by facts about them."""

from typing import Any

import pytest
from builders.examples import examples
from builders.profile import ProfileBuilder
from builders.recording import BASE, S, comm, event, raw_wait, sample, write

from perf_offcpu.abi.offcpu import BLANK_EXTENSION, EXTENSION, EXTENSION_SIZE, TCP
from perf_offcpu.abi.syscalls import syscall_number
from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.network import network_of, texts_of
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import SampleFlag

MS = 1_000_000
POLL, RECVFROM, SENDTO = 7, 45, 44
OPEN = SampleFlag.STILL_BLOCKED
QUIET = {"state": 1, "tick_us": 4000, "srtt_us": 900, "min_rtt_us": 100, "rtt_us": 200, "segments_in": 5}
UNKNOWN = ""


def texts(*waits: dict[str, Any], inward: bool = False, name: str = "tcp 10.0.0.7:5432") -> list[str]:
    """Return the texts of waits for one connection. `tcp`: facts besides QUIET, in a wait of 160 ms from sending to
    receiving; none for None."""
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    thing = builder.thing(name, ObjectKind.SOCKET, protocol=name[:3], connected=True, inward=inward)
    for number, wait in enumerate(waits):
        columns = {"syscall": RECVFROM, "state": 1, "object": thing, "runq_ns": 0, "time_ns": 1000 * MS * (number + 1)}
        facts = wait.pop("tcp", {})
        if facts is not None:
            facts = QUIET | {"sent_ticks": 40} | facts
            columns |= {f"tcp_{name}": value for name, value in facts.items()}
        builder.sample("a", ["main"], wait.pop("ms", 160) * MS, **columns | wait)
    profile = builder.build()
    found, code = texts_of(network_of(profile, classify(profile)))
    return [found[index] for index in code.tolist()]


def wait_of(facts: str) -> dict[str, Any]:
    """Return the argument of `texts` of words such as `syscall=poll`, `tcp.state=10`, `no-tcp`."""
    words = dict(word.split("=") for word in facts.split() if word != "no-tcp")
    wait = {name: _number(value) for name, value in words.items() if not name.startswith("tcp.")}
    tcp = {name[4:]: int(value) for name, value in words.items() if name.startswith("tcp.")}
    return wait | {"tcp": None if "no-tcp" in facts else tcp}


def _number(word: str) -> int:
    if word.isdigit():
        return int(word)
    return SampleFlag[word] if word.isupper() else syscall_number(word, "x86_64")


@pytest.mark.parametrize(("facts", "text"), examples("unit/analysis/examples.txt", "network"))
def test_the_rules(facts: str, text: str) -> None:
    assert texts(wait_of(facts)) == [text]
    if text.startswith(("peer slow", "no answer yet")) and "syscall=connect" not in facts:
        assert texts(wait_of(facts), inward=True) == [UNKNOWN], "a client owes nothing"


def test_totals_are_those_since_the_previous_sample() -> None:
    first = {"tcp": {"total_retrans": 5, "window_ticks": 400, "sent_ticks": 1}}
    again = {"syscall": SENDTO, "tcp": {"total_retrans": 5, "window_ticks": 415}, "time_ns": 1170 * MS}
    late = {"syscall": SENDTO, "tcp": {"total_retrans": 5, "window_ticks": 455}, "time_ns": 5000 * MS}
    other = {"tcp": {"total_retrans": 1, "sent_ticks": 1}, "time_ns": 6000 * MS}  # of the same name
    assert texts(first, again, late, other) == [
        "5 retransmissions, 156 ms lost", "peer's window full for 60 ms", UNKNOWN,
        "1 retransmission, 156 ms lost",
    ]  # fmt: skip


def test_udp() -> None:
    nothing: dict[str, Any] = {"tcp": None}
    timed_out = nothing | {"syscall": POLL, "asked_ns": 160 * MS}
    waits = [nothing | {"flags": OPEN}, timed_out, nothing | {"flags": SampleFlag(0)}]
    silent = "no answer yet", "no answer in 160 ms"
    assert texts(*map(dict, waits), name="udp 10.0.0.2:53") == [*silent, "name server: answered after 160 ms"]
    assert texts(*map(dict, waits), name="udp 10.0.0.2:99") == [*silent, UNKNOWN]


def test_payloads(tmp_path: Any) -> None:
    """Older payloads have no facts, later ones more; facts outside of their sample are not believed."""
    waits = event("offcpu-time", (3,), BASE | S.RAW)
    facts = TCP.pack({field.name: number + 1 for number, field in enumerate(TCP.fields)})
    words = len(facts) // 4

    def raw(number: int, size: int = EXTENSION_SIZE, more: bytes = b"") -> bytes:
        named = {"tcp_offset": size, "tcp_nr": number, "size": size}
        return raw_wait(70, 71, 900, [])[:-4] + EXTENSION.pack(BLANK_EXTENSION | named)[:size] + more + bytes(4)

    payloads = [
        raw(0), raw(words, 112), raw(words, more=facts), raw(words + 2, more=facts + bytes(8)),
        raw(words - 2, more=facts), raw(words + 9, more=facts),
    ]  # fmt: skip
    records = [sample(waits, time=5 + number, raw=payload) for number, payload in enumerate(payloads)]
    write(tmp_path / "a.data", [waits], [comm(waits, 70, 71, "thread"), *records])
    samples = load_recording(tmp_path / "a.data").samples
    assert samples.tcp_state.tolist() == [0, 0, 1, 1, 0, 0]
    assert samples.tcp_window_ticks.tolist() == [0, 0, words, words, 0, 0]
