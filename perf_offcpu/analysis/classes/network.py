# SPDX-License-Identifier: Apache-2.0
"""Find out why a wait for a connection took its time: the network, a full window, or the peer.

The recorder reads facts about a TCP connection when a wait for it has become a sample (`abi.offcpu.TCP`). Times in them
are counted back from the end of the wait, in ticks of the kernel (1 to 10 ms), and compared with its begin:

    data was sent after the begin      the thread slept, so that it was a retransmission, if their total has grown
    data was received at the wake-up   an answer
    the last segment was acknowledged  the way was free: the peer took the rest of the time to answer. An
    much faster than answered          acknowledgement that came with the answer says nothing
    the window's total has grown       the peer did not read

Totals are compared with those of the connection's last sample. Facts that fit no rule, or two, are `UNKNOWN`: nothing
is guessed. So are waits of a server for a request, and sums. Of UDP only timeouts and name servers are known."""

import enum
from dataclasses import fields
from typing import Final, NamedTuple

import numpy as np

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.classes.classify import Waits
from perf_offcpu.model.columns import I32, I64, U8, Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SUM_FLAGS, SampleColumns, SampleFlag
from perf_offcpu.structs import mutable

_NS_PER_US, _NS_PER_MS = 1000, 10**6
_SYN_SENT, _CLOSED, _LISTEN = 2, (7, 8, 9, 11), 10  # states in net/tcp_states.h; the peer has closed, or reset
_NO_MIN_RTT = 2**32 - 1


class NetworkCause(enum.IntEnum):
    """Causes of waits for connections."""

    UNKNOWN = 0
    PEER = 1  # it answered late
    PATH = 2  # the round trip is long
    EITHER = 3  # PEER or PATH
    RETRANSMISSION = 4  # packets were lost
    WINDOW = 5  # the peer did not read
    BUFFER = 6  # the network did not take data as fast as it was sent
    HANDSHAKE = 7
    NO_ANSWER = 8  # in the time asked for, or not yet
    CLOSED = 9  # the peer ended the connection
    NAME_SERVER = 10  # it answered late


LABELS: Final = (
    *("", "peer slow", "network slow", "peer or network slow", "retransmissions", "peer's window full"),
    *("own send buffer full", "handshake", "no answer", "closed by the peer", "name server"),
)
"""Label of each NetworkCause."""


class Operation(enum.IntEnum):
    """Kinds of operations on a socket, by the system call of the wait."""

    OTHER = 0
    RECEIVE = 1
    SEND = 2
    CONNECT = 3
    POLL = 4


_OPERATIONS: Final = {
    Operation.RECEIVE: "recvfrom recvmsg recvmmsg read readv recv",
    Operation.SEND: "sendto sendmsg sendmmsg write writev send sendfile",
    Operation.CONNECT: "connect",
    Operation.POLL: "poll ppoll select pselect6 _newselect epoll_wait epoll_pwait epoll_pwait2",
}


@mutable
class Network:
    """Causes of n waits for connections, with figures, as columns."""

    cause: U8  # NetworkCause
    lost_ns: I64  # of RETRANSMISSION and PEER, up to the last retransmission; of WINDOW, while the window was full
    answer_ns: I64  # the rest of the wait, up to the wake-up
    retransmissions: I64  # in the wait; of HANDSHAKE and an open connect(), of SYN
    rtt_us: I64  # shortest round trip; -1 not known
    is_open: Bool  # the wait was not over at the end of the recording

    @classmethod
    def unknown(cls, rows: int) -> "Network":
        """Return `rows` waits of unknown cause, in read-only columns of one value."""
        zero, none = np.broadcast_to(np.int64(0), rows), np.broadcast_to(np.int64(-1), rows)
        cause, is_open = np.broadcast_to(np.uint8(0), rows), np.broadcast_to(np.bool_(False), rows)
        return cls(cause, zero, zero, zero, none, is_open)

    def with_rows(self, rows: I64, network: "Network") -> "Network":
        """Return a copy in which row `rows[i]` is row i of `network`."""
        columns = {field.name: getattr(self, field.name).copy() for field in fields(self)}
        for name, column in columns.items():
            column[rows] = getattr(network, name)
        return Network(**columns)


class Before(NamedTuple):
    """Growth of TCP totals since the previous sample of each sample's connection, as columns."""

    retransmissions: I64  # since then; since the begin of the connection if there is no previous sample
    window_ns: I64  # growth of the time in which the peer's window was full, since the same moment
    gap_ns: I64  # from the end of that sample to the begin of this one; -1 without such a sample


def network_of(profile: Profile, waits: Waits) -> Network:
    """Return the causes of TCP and UDP waits, a row for each sample; UNKNOWN for other samples."""
    samples, network = profile.samples, Network.unknown(len(profile.samples))
    tcp, udp = np.flatnonzero(samples.tcp_state), _of_udp(profile)
    for of_protocol, causes in ((tcp, _tcp), (udp, _udp)):
        rows = of_protocol[(samples.flags[of_protocol] & np.uint32(SampleFlag.OFFCPU | SUM_FLAGS)) == SampleFlag.OFFCPU]
        if len(rows):
            network = network.with_rows(rows, causes(profile, rows, _operations(waits)[rows]))
    return network


def _tcp(profile: Profile, rows: I64, operation: U8) -> Network:
    samples = profile.samples.take(rows)
    inward = np.append(profile.objects.inward, True)[samples.object]
    return tcp_causes(samples, operation, inward, before(samples, samples.object))


def _operations(waits: Waits) -> U8:
    operation_of = {name: operation for operation, names in _OPERATIONS.items() for name in names.split()}
    codes = [operation_of.get(name, Operation.OTHER) for name in waits.syscall_names]
    return np.array(codes, np.uint8)[waits.syscall]


def before(samples: SampleColumns, connection: I32) -> Before:
    """Return the growth of TCP totals since the previous sample of each connection. `samples`: by time. `connection`:
    int32[n], equal for samples of one connection; -1 not known."""
    order = np.argsort(connection, kind="stable")
    again = (connection[order][1:] == connection[order][:-1]) & (connection[order][1:] >= 0)
    place = np.concatenate([[False], again])
    previous = np.full(len(order), -1, np.int64)
    previous[order[place]] = order[:-1][again]
    has_previous = previous >= 0
    totals = samples.tcp_total_retrans.astype(np.int64), samples.tcp_window_ticks.astype(np.int64)
    grown = [total - np.where(has_previous, total[previous], 0) for total in totals]
    is_other = (grown[0] < 0) | (grown[1] < 0)  # a connection with the name of an earlier one
    begin = samples.time_ns - samples.length_ns()
    gap = np.where(has_previous & ~is_other, np.maximum(begin - samples.time_ns[previous], 0), -1)
    changed = [np.where(is_other, total, growth) for total, growth in zip(totals, grown, strict=True)]
    return Before(changed[0], changed[1] * samples.tcp_tick_us.astype(np.int64) * _NS_PER_US, gap)


def tcp_causes(samples: SampleColumns, operation: U8, inward: Bool, since: Before) -> Network:
    """Return the causes of n waits for TCP connections; of several rules that fit, the first counts. `samples`: single
    waits with facts (`tcp_state` is not 0). `operation`: uint8[n], Operation. `inward`: bool[n], True where the peer is
    a client, or not known: it owes no answer. `since`: growth since the previous sample."""
    is_open = samples.has(SampleFlag.STILL_BLOCKED)
    length, tick = samples.length_ns(), samples.tcp_tick_us.astype(np.int64) * _NS_PER_US
    delay = np.where(is_open, 0, np.clip(samples.delay_ns(), 0, length))
    woken = length - delay  # from the begin to the wake-up
    ticks = samples.tcp_sent_ticks, samples.tcp_received_ticks
    sent_ago, received_ago = (column.astype(np.int64) * tick for column in ticks)
    timed_out = (samples.asked_ns >= 0) & (woken >= samples.asked_ns - _NS_PER_MS)
    is_answered = ~is_open & ~timed_out & (received_ago <= delay + 2 * tick)
    is_poll = operation == Operation.POLL
    connects = (operation == Operation.CONNECT) | (is_poll & _is_new(samples, received_ago, length))
    receives = ((operation == Operation.RECEIVE) | (is_poll & is_answered)) & ~connects
    sends = ((operation == Operation.SEND) | (is_poll & ~is_answered & ~is_open & ~timed_out)) & ~connects
    min_rtt = samples.tcp_min_rtt_us.astype(np.int64)

    sent = length - sent_ago  # after the begin; before it if negative
    is_lossy = receives & (since.retransmissions > 0) & (2 * sent > 3 * tick)
    unacknowledged = (samples.tcp_retransmits > 0) & (samples.tcp_packets_out > 0)
    lost = np.where(is_lossy, np.clip(sent, 0, woken), 0)
    answer = woken - lost
    full = np.clip(since.window_ns, 0, woken)
    in_wait = np.where(since.gap_ns < 0, since.window_ns <= length + 2 * tick, since.gap_ns <= length)
    much = full >= np.maximum(length // 4, tick)
    is_full = ~receives & ~connects & in_wait & much
    owes = ~inward & (samples.tcp_sent_ticks <= samples.tcp_received_ticks)
    is_asked, acknowledged = sent >= -2 * tick, samples.tcp_rtt_us.astype(np.int64) * _NS_PER_US
    silent = (operation == Operation.RECEIVE) | is_poll
    by_timer = timed_out | (samples.has(SampleFlag.WAKER_INTERRUPT) & (operation == Operation.RECEIVE))
    answered = receives & is_answered & ~inward
    closed = np.isin(samples.tcp_state, _CLOSED)

    rules: list[tuple[Bool, NetworkCause]] = [
        ((samples.tcp_state == _LISTEN) | (2 * woken < length), NetworkCause.UNKNOWN),  # it waited for a CPU
        (connects & is_open, NetworkCause.NO_ANSWER),
        (connects, NetworkCause.HANDSHAKE),
        (is_full, NetworkCause.WINDOW),
        (receives & unacknowledged & is_open, NetworkCause.RETRANSMISSION),
        (is_lossy & is_answered & (lost >= answer), NetworkCause.RETRANSMISSION),
        (answered & is_asked & (2 * acknowledged < answer), NetworkCause.PEER),
        (answered & is_asked & (min_rtt < _NO_MIN_RTT) & (2 * min_rtt * _NS_PER_US >= answer), NetworkCause.PATH),
        (answered, NetworkCause.EITHER),
        (silent & closed & ~is_open & ~timed_out & ~is_answered, NetworkCause.CLOSED),
        (silent & owes & ~is_answered & (is_open | by_timer), NetworkCause.NO_ANSWER),
        (sends & unacknowledged, NetworkCause.RETRANSMISSION),
        (sends & ~is_poll & ~much & (since.retransmissions == 0), NetworkCause.BUFFER),
    ]
    cause = np.select([rule for rule, _ in rules], [code for _, code in rules], NetworkCause.UNKNOWN)
    in_progress = samples.tcp_retransmits.astype(np.int64)
    number = np.where(is_lossy, since.retransmissions, np.where(unacknowledged, in_progress, 0))
    number = np.where(connects, samples.tcp_total_retrans.astype(np.int64), number)
    lost = np.where(cause == NetworkCause.WINDOW, full, lost)
    rtt = np.where(min_rtt == _NO_MIN_RTT, -1, min_rtt)
    return Network(cause.astype(np.uint8), lost, woken - lost, number, rtt, is_open)


def _is_new(samples: SampleColumns, received_ago: I64, length: I64) -> Bool:
    """Return bool[n]: True where the handshake ended during the wait, or has not ended. At its end the kernel sets the
    time at which data was last received, though none was. `received_ago`: ns from then to the sample. `length`: ns of
    the wait."""
    made = (samples.tcp_segments_in == 0) & (received_ago <= length) & (samples.tcp_state == 1)
    same = samples.tcp_sent_ticks == samples.tcp_received_ticks  # nor was data sent
    is_new: Bool = (samples.tcp_state == _SYN_SENT) | (made & same)
    return is_new


def _of_udp(profile: Profile) -> I64:
    """Return the rows of samples that waited for a connected UDP socket whose other end is no client."""
    objects, strings = profile.objects, profile.strings
    is_udp = (objects.kind == ObjectKind.SOCKET) & objects.connected & ~objects.inward
    is_udp[is_udp] = [strings[name].startswith("udp ") for name in objects.name[is_udp].tolist()]
    if not is_udp.any():
        return np.empty(0, np.int64)
    return np.flatnonzero(np.append(is_udp, False)[profile.samples.object])


def _udp(profile: Profile, rows: I64, operation: U8) -> Network:
    """Return causes of UDP receives: NO_ANSWER if timed out or still blocked, NAME_SERVER for port 53, else UNKNOWN."""
    udp, objects, network = profile.samples.take(rows), profile.objects, Network.unknown(len(rows))
    is_server = np.array([profile.strings[name].endswith(":53") for name in objects.name.tolist()], np.bool_)
    is_open, length = udp.has(SampleFlag.STILL_BLOCKED), udp.length_ns()
    woken = length - np.where(is_open, 0, np.clip(udp.delay_ns(), 0, length))
    silent = is_open | ((udp.asked_ns >= 0) & (woken >= udp.asked_ns - _NS_PER_MS))
    answered = np.where(is_server[udp.object], NetworkCause.NAME_SERVER, NetworkCause.UNKNOWN)
    receives = np.isin(operation, (Operation.RECEIVE, Operation.POLL))
    cause = np.where(silent, NetworkCause.NO_ANSWER, answered)
    network.cause = np.where(receives, cause, NetworkCause.UNKNOWN).astype(np.uint8)
    network.answer_ns, network.is_open = woken, is_open
    return network


def texts_of(network: Network) -> tuple[list[str], I64]:
    """Return (texts, codes): distinct texts of cause and figures ("" unknown); int64[n], index of each wait's text."""
    if not network.cause.any():
        return [""], np.zeros(len(network.cause), np.int64)
    columns = (network.cause, network.lost_ns, network.answer_ns, network.retransmissions, network.rtt_us)
    rows = np.stack([column.astype(np.int64) for column in (*columns, network.is_open)], axis=1)
    rows[network.cause == NetworkCause.UNKNOWN] = 0
    distinct, codes = np.unique(rows, axis=0, return_inverse=True)
    return [_text(*row) for row in distinct.tolist()], codes.reshape(-1).astype(np.int64)


def _text(code: int, lost: int, answer: int, number: int, rtt_us: int, is_open: int) -> str:
    cause = NetworkCause(code)
    resent = f"{number} retransmission{'s' * (number != 1)}"
    trip = f", round trip {_ms(rtt_us * _NS_PER_US)}" if rtt_us >= 0 else ""
    after = f", after {resent} ({_ms(lost)} lost)" if number and lost else ""
    if cause == NetworkCause.RETRANSMISSION:
        return f"{resent}, {'not acknowledged yet' if is_open or not lost else f'{_ms(lost)} lost'}"
    if cause in (NetworkCause.HANDSHAKE, NetworkCause.NO_ANSWER):
        syn = f"{number} SYN retransmission{'s' * (number != 1)}" if number else ""
        if cause == NetworkCause.HANDSHAKE:
            return f"handshake: {syn or f'answered after {_ms(answer)}'}"
        return ("no answer yet" if is_open else f"no answer in {_ms(answer)}") + (f": {syn}" if syn else "")
    details = {
        NetworkCause.PEER: f": answered after {_ms(answer)}{trip}{after}",
        NetworkCause.PATH: f": answered after {_ms(answer)}{trip}",
        NetworkCause.EITHER: f": {_ms(answer)}{trip}{after}",
        NetworkCause.WINDOW: f" for {_ms(lost)}",
        NetworkCause.BUFFER: f" for {_ms(answer)}",
        NetworkCause.NAME_SERVER: f": answered after {_ms(answer)}",
    }
    return LABELS[cause] + details.get(cause, "")


def _ms(ns: int) -> str:
    digits = 0 if ns >= 10 * _NS_PER_MS else 1 if ns >= _NS_PER_MS // 20 else 3
    return f"{ns / _NS_PER_MS:.{digits}f} ms"
