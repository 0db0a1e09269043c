# SPDX-License-Identifier: Apache-2.0
"""Why a wait for a connection took its time, between two network namespaces: a slow server, lost packets, a full
window, and lost SYN, each known from the programs themselves (tests/workload/objects/network.py)."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from builders.program import run as perf_offcpu
from kernel.recorder import PROGRAM

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.network import Network, NetworkCause, network_of, texts_of
from perf_offcpu.model.columns import I64
from perf_offcpu.model.profile import Profile
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

pytestmark = pytest.mark.beside

WORKLOAD = Path(__file__).parents[1] / "workload" / "objects" / "network.py"
CLIENT, SERVER, MS = "10.77.0.1", "10.77.0.2", 1_000_000
TICK_NS = round(1e9 * time.clock_getres(6))  # CLOCK_MONOTONIC_COARSE


class Link(NamedTuple):
    """Names of two network namespaces that a veth pair connects."""

    client: str = f"client{os.getpid()}"
    server: str = f"server{os.getpid()}"


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    link = Link()

    def ip(words: str) -> None:
        subprocess.run(["ip", *words.split()], check=True)

    try:
        ip(f"netns add {link.client}")
        ip(f"netns add {link.server}")
        ip(f"link add veth0 netns {link.client} type veth peer name veth0 netns {link.server}")
        for namespace, address in zip(link, (CLIENT, SERVER), strict=True):
            ip(f"-n {namespace} address add {address}/24 dev veth0")
            ip(f"-n {namespace} link set veth0 up")
        yield link
    finally:
        for namespace in link:
            subprocess.run(["ip", "netns", "delete", namespace], check=False)


class Scene(NamedTuple):
    profile: Profile
    network: Network
    received: list[int]  # when the server received something, ns
    waits: list[list[int]]  # of the client: begin, end, retransmissions so far, round trip
    resent: int  # the most retransmissions that ss saw


def command(role: str, scene: str, rounds: int, namespace: str) -> list[str]:
    program = ["chrt", "--fifo", "1", sys.executable, str(WORKLOAD)]  # so that others do not lengthen its times
    return ["ip", "netns", "exec", namespace, *program, role, SERVER, scene, str(rounds)]


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
    """Return the share of each cause in the time of some samples."""
    weight = np.bincount(scene.network.cause[rows], scene.profile.samples.period[rows], len(NetworkCause))
    return {cause: weight[cause] / weight.sum() for cause in NetworkCause if weight[cause]}


@pytest.mark.parametrize(("name", "rounds"), [("slow", 4), ("loss", 6), ("both", 6)])
def test_the_slow_peer_and_lost_packets(tmp_path: Path, link: Link, name: str, rounds: int) -> None:
    scene = play(tmp_path, link, name, rounds)
    samples, network, rows = scene.profile.samples, scene.network, np.flatnonzero(scene.profile.samples.tcp_state)
    right = total = 0
    for row in rows.tolist():
        end, begin = int(samples.time_ns[row]), int(samples.switch_out_ns[row])
        index = next(index for index, wait in enumerate(scene.waits) if wait[0] <= begin and end <= wait[1])
        resent, rtt = scene.waits[index][2:]
        assert samples.tcp_total_retrans[row] == resent and samples.tcp_srtt_us[row] == rtt, "as TCP_INFO"
        # The first line of the client is about its connection.
        lost, woken = scene.received[index - 1] - begin, end - max(int(samples.runq_ns[row]), 0)
        number = resent - scene.waits[index - 1][2]
        if number:
            assert network.retransmissions[row] == number
            assert abs(int(network.lost_ns[row]) - min(lost, woken - begin)) < 3 * TICK_NS + 20 * MS
        if abs(2 * lost - (woken - begin)) < 2 * TICK_NS:
            continue  # as much one as the other
        truth = NetworkCause.RETRANSMISSION if number and 2 * lost > woken - begin else NetworkCause.PEER
        total += end - begin
        right += (end - begin) * int(network.cause[row] == truth)
    assert right >= 0.99 * total > 0, [texts_of(network)[0], shares(scene, rows)]
    assert 0 <= scene.resent <= scene.waits[-1][2] and (name == "slow") == (scene.waits[-1][2] == 0)


def test_the_full_window(tmp_path: Path, link: Link) -> None:
    scene = play(tmp_path, link, "full", 6)
    assert shares(scene, np.flatnonzero(scene.profile.samples.tcp_state))[NetworkCause.WINDOW] >= 0.99


def test_lost_syn(tmp_path: Path, link: Link) -> None:
    scene = play(tmp_path, link, "handshake", 0)
    (row,) = np.flatnonzero(scene.profile.samples.tcp_state)
    resent = scene.waits[0][2]
    assert resent >= 1 and scene.network.cause[row] == NetworkCause.HANDSHAKE
    texts, code = texts_of(scene.network)
    assert texts[code[row]] == f"handshake: {resent} SYN retransmission{'s' * (resent > 1)}"


def test_a_connection_that_is_not_made(tmp_path: Path, link: Link) -> None:
    server = command("server", "handshake", 0, link.server)
    client = command("client", "handshake", 0, link.client)
    file = tmp_path / "perf.data"
    with subprocess.Popen(server, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout and listener.stdout.readline() == "ready\n"
        with subprocess.Popen(client, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout and process.stdout.readline() == "connecting\n"
            subprocess.run([*PROGRAM, "-o", file, "-p", str(process.pid), "--duration", "1.2"], check=True)
            process.kill()
        listener.kill()
    profile = load_profile([str(file)], SymbolizeOptions(inline=False))
    texts, code = texts_of(network_of(profile, classify(profile)))
    (row,) = np.flatnonzero(profile.is_still_blocked())
    assert re.fullmatch(r"no answer yet: [12] SYN retransmissions?", texts[code[row]])


def test_what_the_server_did_on_its_host(tmp_path: Path, link: Link) -> None:
    """Two recordings, of hosts with names of their own, in one dataset."""
    rounds, processes = 9, []
    for role, namespace in zip(("server", "client"), (link.server, link.client), strict=True):
        words = command(role, "turns", rounds, namespace)
        options = ["-o", f"{role}.data", "--off-cpu-thresh", "0"]
        record = ["sh", "-c", 'hostname "$0" && exec "$@"', role, *PROGRAM, *options, "--", *words]
        process = subprocess.Popen(["unshare", "--uts", *record], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        processes.append(process)
        assert process.stdout and process.stdout.readline() in ("ready\n", "connecting\n")
    server, client = (process.communicate()[0].split() for process in processes)
    took, waited = [*map(int, server)], sum(map(int, client[5::4])) - sum(map(int, client[4::4]))
    inputs = ["-i", "server.data", "-i", "client.data"]
    perf_offcpu("convert", "--parquet", "waits", *inputs, cwd=tmp_path)

    def fleet(*words: str) -> Any:
        return json.loads(perf_offcpu("fleet", *words, "--json", cwd=tmp_path).stdout)

    found = fleet("path", "waits", "--host", "client")
    queued = "SELECT CAST(sum(runnable_ns + preempted_ns) AS BIGINT) AS ns FROM budgets WHERE host_id = 'client'"
    busy: int = fleet("sql", "waits", queued)[0]["ns"]  # other programs may use the CPUs
    assert 0.95 * sum(took) - busy <= found["weight"] <= waited, (sum(took), busy, waited, found["weight"])
    did = Counter[str]()
    for step in found["steps"]:
        assert step["peers"] == [{"host": "server", "comm": step["peers"][0]["comm"]}]
        did[step["doing"]] += step["ns"]
    assert did.total() == pytest.approx(found["weight"], abs=100)
    busy += did["runqueue"] + did["running"]
    for turn, doing in enumerate(("sleep", "lock")):
        assert 0.97 * sum(took[turn::3]) - busy <= did[doing] <= 1.01 * sum(took[turn::3]), (did, took)
    (table,) = fleet("report", "waits", "--host", "server", "--object", tmp_path.name, "--sort", "class")["tables"]
    (disk,) = [row["blocked"] for row in table["rows"] if row["class"] == "disk"]
    assert 0.9 * disk <= did["disk"] <= disk > 0, "the disk is fast, and the server waited for it in these turns only"
