# SPDX-License-Identifier: Apache-2.0
"""Causes of waits for connections, by facts about them."""

from typing import Any

import pytest
from builders.profile import ProfileBuilder
from builders.recording import BASE, S, comm, event, raw_wait, sample, write

from perf_offcpu.abi.offcpu import BLANK_EXTENSION, EXTENSION, EXTENSION_SIZE, TCP
from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.network import network_of, texts_of
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import SampleFlag

MS = 1_000_000
READ, WRITE, POLL, CONNECT, RECVFROM, SENDTO = 0, 1, 7, 42, 45, 44
OPEN = SampleFlag.STILL_BLOCKED
QUIET = {"state": 1, "tick_us": 4000, "srtt_us": 900, "min_rtt_us": 100, "rtt_us": 200, "segments_in": 5}
UNKNOWN = ""


def texts(*waits: dict[str, Any], inward: bool = False, name: str = "tcp 10.0.0.7:5432") -> list[str]:
    """Return the texts of waits for one connection. `tcp`: facts besides QUIET, in a wait of 160 ms whose data was sent
    at its begin and received at its end; none for None."""
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


@pytest.mark.parametrize(("wait", "text"), [
    ({}, "peer slow: answered after 160 ms, round trip 0.1 ms"),
    ({"runq_ns": 60 * MS, "tcp": {"received_ticks": 15}}, "peer slow: answered after 100 ms, round trip 0.1 ms"),
    ({"runq_ns": 159 * MS}, UNKNOWN),  # for a CPU
    # The acknowledgement came with the answer, or the round trip has always been long.
    ({"tcp": {"rtt_us": 159_000}}, "peer or network slow: 160 ms, round trip 0.1 ms"),
    ({"tcp": {"rtt_us": 159_000, "min_rtt_us": 150_000}}, "network slow: answered after 160 ms, round trip 150 ms"),
    ({"tcp": {"rtt_us": 159_000, "min_rtt_us": 2**32 - 1}}, "peer or network slow: 160 ms"),
    # Nothing was sent just before.
    ({"tcp": {"sent_ticks": 400}}, "peer or network slow: 160 ms, round trip 0.1 ms"),
    ({"syscall": POLL}, "peer slow: answered after 160 ms, round trip 0.1 ms"),
    ({"flags": SampleFlag.AGGREGATED}, UNKNOWN),
    ({"tcp": None}, UNKNOWN),
    ({"tcp": {"state": 10}}, UNKNOWN),
    # Sent again after the begin.
    ({"tcp": {"total_retrans": 1, "sent_ticks": 1}}, "1 retransmission, 156 ms lost"),
    ({"tcp": {"total_retrans": 3, "sent_ticks": 30}},
     "peer slow: answered after 120 ms, round trip 0.1 ms, after 3 retransmissions (40 ms lost)"),
    ({"tcp": {"total_retrans": 3}}, "peer slow: answered after 160 ms, round trip 0.1 ms"),  # earlier
    ({"flags": OPEN, "tcp": {"retransmits": 2, "packets_out": 1, "sent_ticks": 1, "received_ticks": 90}},
     "2 retransmissions, not acknowledged yet"),
    # No answer.
    ({"flags": OPEN, "tcp": {"received_ticks": 90}}, "no answer yet"),
    ({"flags": OPEN, "tcp": {"received_ticks": 40, "sent_ticks": 90}}, UNKNOWN),  # nothing was asked
    ({"asked_ns": 160 * MS, "syscall": POLL, "tcp": {"received_ticks": 90}}, "no answer in 160 ms"),
    ({"flags": SampleFlag.WAKER_INTERRUPT, "tcp": {"received_ticks": 90}}, "no answer in 160 ms"),
    ({"tcp": {"received_ticks": 90}}, UNKNOWN),  # a signal
    ({"tcp": {"received_ticks": 90, "state": 8}}, "closed by the peer"),
    # Sending.
    ({"syscall": SENDTO, "tcp": {"window_ticks": 20}}, "peer's window full for 80 ms"),
    ({"syscall": WRITE, "tcp": {"window_ticks": 9}}, "own send buffer full for 160 ms"),
    ({"syscall": WRITE, "tcp": {"window_ticks": 90}}, UNKNOWN),  # when
    ({"syscall": SENDTO, "tcp": {"total_retrans": 1}}, UNKNOWN),
    ({"syscall": POLL, "tcp": {"window_ticks": 20, "received_ticks": 90}}, "peer's window full for 80 ms"),
    # Connecting.
    ({"syscall": CONNECT, "ms": 3000, "tcp": {"total_retrans": 2}}, "handshake: 2 SYN retransmissions"),
    ({"syscall": CONNECT}, "handshake: answered after 160 ms"),
    ({"syscall": CONNECT, "flags": OPEN, "tcp": {"state": 2, "total_retrans": 1}},
     "no answer yet: 1 SYN retransmission"),
    ({"syscall": POLL, "tcp": {"segments_in": 0, "sent_ticks": 0, "total_retrans": 1}},
     "handshake: 1 SYN retransmission"),
])  # fmt: skip
def test_the_rules(wait: dict[str, Any], text: str) -> None:
    assert texts(dict(wait)) == [text]
    if text.startswith(("peer slow", "no answer yet")) and wait.get("syscall") != CONNECT:
        assert texts(dict(wait), inward=True) == [UNKNOWN], "a client owes nothing"


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
