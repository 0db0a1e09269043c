# SPDX-License-Identifier: Apache-2.0
"""Why a wait for a connection took its time, between two network namespaces: a slow server, lost packets, a full
window, and lost SYN, each known from the programs themselves (tests/workload/objects/network.py)."""

import re
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from builders.program import PATIENCE, started
from kernel.recorder import MS, PROGRAM, run, until
from kernel.two_hosts import CLIENT, SERVER, Link, command, dropping
from kernel.whole_stacks import AS_POSTGRES

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.network import Network, NetworkCause, network_of, texts_of
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

pytestmark = pytest.mark.beside

REQUESTS = f"ip saddr {CLIENT} meta length > 100 numgen inc mod 3 0"  # each third one, its repetitions counted
SYNS = "tcp flags syn numgen inc mod 3 < 2"
SLOW = PATIENCE > 1  # then acknowledgements may be as late as answers, and waits may be for a CPU: no cause is said
TICK_NS = round(1e9 * time.clock_getres(6))  # CLOCK_MONOTONIC_COARSE


class Scene(NamedTuple):
    profile: Profile
    network: Network
    received: list[int]  # when the server received something, ns
    waits: list[list[int]]  # of the client: begin, end, retransmissions so far, round trip
    resent: int  # the most retransmissions that ss saw


def play(directory: Path, link: Link, scene: str, rounds: int) -> Scene:
    seen = [0]
    over = threading.Event()

    def poll() -> None:
        while not over.wait(0.05):
            words = ["ip", "netns", "exec", link.client, "ss", "-tinHO", "dst", SERVER]
            text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            seen.extend(int(number) for number in re.findall(r" retrans:\d+/(\d+)", text))

    file = directory / "perf.data"
    record = [*PROGRAM, "-o", str(file), "--", *command("client", scene, rounds, link.client)]
    poller = threading.Thread(target=poll)
    serve, pipe = command("server", scene, rounds, link.server), subprocess.PIPE
    with subprocess.Popen(serve, stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdin and server.stdout and server.stdout.readline() == "ready\n"
        poller.start()
        with subprocess.Popen(record, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout and client.stdout.readline() == "connecting\n"
            if scene == "handshake":
                time.sleep(1.5)  # a SYN is sent at once, after 1 and after 3 s
            server.stdin.write("\n")
            server.stdin.flush()
            lines = client.stdout.readlines()
        over.set()
        poller.join()
        received = [int(line) for line in server.stdout]
    profile = load_profile([str(file)], SymbolizeOptions(inline=False))
    waits = [[*map(int, line.split())] for line in lines]
    return Scene(profile, network_of(profile, classify(profile)), received, waits, max(seen))


def shares(scene: Scene, rows: I64) -> dict[NetworkCause, float]:
    weight = np.bincount(scene.network.cause[rows], scene.profile.samples.period[rows], len(NetworkCause))
    return {cause: weight[cause] / weight.sum() for cause in NetworkCause if weight[cause]}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "rounds", "dropped"),
    [("slow", 4, ""), ("loss", 6, ""), ("both", 6, ""), ("quick", 6, REQUESTS), ("slow", 6, REQUESTS)],
)
def test_the_slow_peer_and_lost_packets(tmp_path: Path, link: Link, name: str, rounds: int, dropped: str) -> None:
    with dropping(link.server, dropped):
        scene = play(tmp_path, link, name, rounds)
    samples, network, rows = scene.profile.samples, scene.network, np.flatnonzero(scene.profile.samples.tcp_state)
    right = total = 0
    for row in rows.tolist():
        end, begin = int(samples.time_ns[row]), int(samples.switch_out_ns[row])
        index = next(index for index, wait in enumerate(scene.waits) if wait[0] <= begin and end <= wait[1])
        if index == 0:
            continue  # the handshake, where it takes long
        resent, rtt = scene.waits[index][2:]
        assert samples.tcp_total_retrans[row] == resent and samples.tcp_srtt_us[row] == rtt, "as TCP_INFO"
        lost, woken = scene.received[index - 1] - begin, end - max(int(samples.runq_ns[row]), 0)
        number = resent - scene.waits[index - 1][2]
        if number:
            assert network.retransmissions[row] == number
            assert abs(int(network.lost_ns[row]) - min(lost, woken - begin)) < 3 * TICK_NS + 20 * MS * PATIENCE
        if abs(2 * lost - (woken - begin)) < 2 * TICK_NS:
            continue  # as much one as the other
        if SLOW and network.cause[row] in (NetworkCause.EITHER, NetworkCause.UNKNOWN):
            continue
        truth = NetworkCause.RETRANSMISSION if number and 2 * lost > woken - begin else NetworkCause.PEER
        total += end - begin
        right += (end - begin) * int(network.cause[row] == truth)
    assert right >= 0.99 * total > 0, [texts_of(network)[0], shares(scene, rows)]
    assert 0 <= scene.resent <= scene.waits[-1][2] and (name == "slow" and not dropped) == (scene.waits[-1][2] == 0)


def test_the_full_window(tmp_path: Path, link: Link) -> None:
    scene = play(tmp_path, link, "full", 6)
    causes = shares(scene, np.flatnonzero(scene.profile.samples.tcp_state))
    # The first wait may be for the own send buffer: it begins before the window is full.
    assert causes[NetworkCause.WINDOW] >= (0.8 if SLOW else 0.98), causes


@pytest.mark.long
@pytest.mark.parametrize(("name", "dropped"), [("handshake", ""), ("quick", SYNS)])
def test_lost_syn(tmp_path: Path, link: Link, name: str, dropped: str) -> None:
    with dropping(link.server, dropped):
        scene = play(tmp_path, link, name, 0)
    (row,) = np.flatnonzero(scene.profile.samples.tcp_state)
    resent = scene.waits[0][2]
    assert resent >= 1 and scene.network.cause[row] == NetworkCause.HANDSHAKE
    texts, code = texts_of(scene.network)
    assert texts[code[row]] == f"handshake: {resent} SYN retransmission{'s' * (resent > 1)}"


def test_a_connection_that_is_not_made(tmp_path: Path, link: Link) -> None:
    server = command("server", "handshake", 0, link.server)
    client = command("client", "handshake", 0, link.client)
    file = tmp_path / "perf.data"
    with started(*server) as (_, ready), started(*client) as (process, connecting):
        assert (ready, connecting) == ("ready\n", "connecting\n")
        subprocess.run([*PROGRAM, "-o", file, "-p", str(process.pid), "--duration", "1.2"], check=True)
    profile = load_profile([str(file)], SymbolizeOptions(inline=False))
    texts, code = texts_of(network_of(profile, classify(profile)))
    (row,) = np.flatnonzero(profile.is_still_blocked())
    assert re.fullmatch(r"no answer yet: [1-9] SYN retransmissions?", texts[code[row]])


@pytest.mark.long
def test_postgres_behind_lost_packets(tmp_path: Path, link: Link, database: Path) -> None:
    """psql's times say which statements were sent again: these took 200 ms and more longer than asked for."""
    with (database / "data/pg_hba.conf").open("a") as rules:
        rules.write(f"host all all {CLIENT}/32 trust\n")
    postgres = max(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    words = f"{postgres} -D {database}/data -k {database} -h {SERVER}".split()
    serve = ["ip", "netns", "exec", link.server, *AS_POSTGRES, *words]
    asked_s = [0.15, 0, 0, 0.3, 0, 0, 0] * 3
    statements = "".join(f"SELECT pg_sleep({seconds});\n" for seconds in asked_s)
    (tmp_path / "statements").write_text("\\timing on\n" + statements)
    psql = ["psql", "-XqAt", "-h", SERVER, "-f", "statements", "postgres", "postgres"]
    with subprocess.Popen(serve, stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: subprocess.run(["pg_isready", "-q", "-h", database], check=False).returncode == 0)
            with dropping(link.server, f"ip saddr {CLIENT} meta length > 60 numgen inc mod 4 3"):
                done = run("--", "ip", "netns", "exec", link.client, *psql, cwd=tmp_path)
        finally:
            server.terminate()
    truth = np.zeros(len(NetworkCause))
    for took_ms, asked in zip(re.findall(r"Time: (\S+) ms", done.stdout), asked_s, strict=True):
        lost_ms = float(took_ms) - 1e3 * asked
        cause = NetworkCause.RETRANSMISSION if lost_ms > max(190, 1e3 * asked) else NetworkCause.PEER
        truth[cause] += MS * float(took_ms)
    profile = done.profile
    network, rows = network_of(profile, classify(profile)), np.flatnonzero(profile.samples.tcp_state)
    weight = np.bincount(network.cause[rows], profile.samples.period[rows], len(NetworkCause))
    right = np.minimum(weight, truth).sum() + SLOW * weight[NetworkCause.EITHER]
    assert np.count_nonzero(truth) == 2 and right > 0.9 * truth.sum(), (weight, truth)
