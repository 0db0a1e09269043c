# SPDX-License-Identifier: Apache-2.0
"""Waits for several descriptors at once: their object is the one that ended them, or the whole set."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from builders.program import PATIENCE
from builders.program import run as perf_offcpu
from kernel.napping import recording, usual, waits_of
from kernel.recorder import Run, report, run

from perf_offcpu import losses
from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.collect.bpf.config import OffCpuConfig, Targets
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

pytestmark = pytest.mark.beside

LOOP = Path(__file__).parents[1] / "workload" / "objects" / "loop.py"
ROUNDS = 8
EPOLL_WAIT, POLLS = 232, [7, 23, 270]  # poll, select, pselect6
KINDS = {
    "upstream": ObjectKind.SOCKET, "client": ObjectKind.SOCKET, "pipe": ObjectKind.PIPE,
    "eventfd": ObjectKind.ANONYMOUS, "timeout": ObjectKind.ANONYMOUS, "signal": ObjectKind.ANONYMOUS,
}  # fmt: skip


@usual
def test_the_object_is_the_descriptor_that_ended_the_wait(in_switch: bool) -> None:
    config = OffCpuConfig(targets=Targets.PIDS, threshold_ns=1_000_000, in_switch=in_switch)
    command = [sys.executable, str(LOOP), str(ROUNDS)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as loop,
        recording(config) as (program, rings),
    ):
        assert loop.stdin and loop.stdout
        lines = iter(loop.stdout.readline, "done\n")
        next(lines), next(lines)
        program.maps.add_target(loop.pid)
        program.enable()
        loop.stdin.write("\n")
        loop.stdin.flush()
        log = [line.split() for line in lines]
        program.disable()
        objects = {int(row["id"]): row for row in program.maps.take_objects()}
        waits = [wait for wait in waits_of(rings) if wait.syscall == EPOLL_WAIT and wait.tid == loop.pid]
        counters = program.counters()
    found: Counter[str] = Counter()
    interrupted = 0
    for kind, begin, end, *numbers in log:
        for wait in waits:
            if not int(begin) <= wait.switch_out_ns < int(end) or wait.ns < 4_000_000:
                continue  # of another round, or ended by what this kernel woke for nothing
            row = objects[wait.object_id]
            assert row["kind"] == KINDS[kind], kind
            assert [row["local_port"], row["remote_port"], row["inode"]] == list(map(int, numbers)), kind
            found[kind] += 1
            # A thread that gets a CPU only after the timeout does not know that a signal came first.
            interrupted += kind == "signal" and wait.ns < wait.asked_ns - 2_000_000
    assert all(found[kind] >= ROUNDS - 2 for kind in KINDS if kind != "signal"), found
    assert found["signal"] in (1, 2), "Python waits again for the rest"
    # Where a switch takes a millisecond, a timeout does not look like one.
    assert interrupted <= counters["events_taken"] <= (1 if PATIENCE == 1 else 1 + ROUNDS)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    directory = tmp_path_factory.mktemp("loop")
    log = directory / "log"
    command = f"exec {sys.executable} {LOOP} {ROUNDS} >{log} <<x\n\nx\n"
    return run("-e", "none", "--", "sh", "-c", command, cwd=directory).profile


def test_events_of_others_are_answers_and_those_of_clients_are_work(profile: Profile) -> None:
    """What a client sends, or the process itself, is work that comes in; an answer is waited for."""
    waits, samples = classify(profile), profile.samples
    rows = np.flatnonzero((samples.syscall == EPOLL_WAIT) & (samples.object >= 0))
    found: dict[str, Counter[tuple[str, bool]]] = {}
    for row in rows.tolist():
        name = profile.strings[profile.objects.name[samples.object[row]]]
        name = name.partition(" of ")[0]
        who = next((one for one in ("upstream", "to_pipe", "tcp") if f"{one} " in name), name)
        fact = WaitClass(waits.wait_class[row]).label, bool(waits.for_work[row])
        found.setdefault(who, Counter())[fact] += 1
    assert {who: set(facts) for who, facts in found.items()} == {
        "upstream": {("network", False)}, "tcp": {("network", True)}, "to_pipe": {("pipe", False)},
        "[eventfd]": {("poll", True)}, "[eventpoll]": {("poll", True)},
    }  # fmt: skip


def test_a_set_is_named_by_the_connections_made_from_here(profile: Profile) -> None:
    names = {profile.strings[name] for name in profile.objects.name.tolist()}
    (whole,) = [name for name in names if name.startswith("[eventpoll]")]
    upstream = next(name for name in names if "(upstream " in name).partition(" (")[0]
    listening, _, more = whole.removeprefix(f"[eventpoll] of {upstream}, tcp listen ").partition(" and ")
    assert listening.startswith("127.0.0.1:") and more == "3 more", whole
    # A thread that gets a CPU only after its timeout does not know that the signal came first.
    assert profile.losses.get(losses.EVENTS_TAKEN, 0) <= 1, "the signal"


GROWING = """
import select, socket
epoll, server, front = select.epoll(), *(socket.create_server(("127.0.0.1", 0)) for _ in range(2))
epoll.register(front, select.EPOLLIN)
epoll.poll(0.03)
connection = socket.create_connection(server.getsockname())
epoll.register(connection, select.EPOLLIN)
print("%s:%d" % server.getsockname(), flush=True)
epoll.poll(60)
"""


def record_left(directory: Path, program: str, *options: str) -> Run:
    """Record a shell that leaves a program of Python running; its output goes to `said`, the shell's is its pid."""
    (directory / "left.py").write_text(program)
    command = f"{sys.executable} left.py >said & echo $!; while ! [ -s said ]; do sleep 0.05; done"
    return run(*options, "-e", "none", "--", "sh", "-c", f"{command}; sleep {0.2 * min(PATIENCE, 10)}", cwd=directory)


def test_a_set_that_is_still_waited_for_has_the_name_of_the_end(tmp_path: Path) -> None:
    done = record_left(tmp_path, GROWING)
    os.kill(int(done.stdout), signal.SIGKILL)
    address = (tmp_path / "said").read_text().strip()
    profile = done.profile
    names = [profile.strings[name] for name in profile.objects.name.tolist()]
    (whole,) = [name for name in names if name.startswith("[eventpoll]")]
    assert whole.startswith(f"[eventpoll] of tcp {address}, tcp listen 127.0.0.1:"), whole


STILL = """
import os, select
there, to = os.pipe()
print("ready", flush=True)
if HOW == "poll":
    poll = select.poll()
    poll.register(there)
    poll.poll(60000)
else:
    select.select([there], [], [there] + [to] * (HOW == "several"), 60)
"""


@pytest.mark.parametrize("how", ["poll", "select", "several"])
def test_the_descriptor_of_poll_and_select_is_known_before_the_wait_is_over(how: str, tmp_path: Path) -> None:
    done = record_left(tmp_path, f"HOW = {how!r}\n{STILL}", "--off-cpu-thresh", "100")
    pid = int(done.stdout)
    inode = os.stat(f"/proc/{pid}/fd/3").st_ino
    os.kill(pid, signal.SIGKILL)
    recording = done.recording
    samples, objects = recording.samples, recording.objects
    (row,) = np.flatnonzero((samples.pid == pid) & samples.has(SampleFlag.STILL_BLOCKED))
    assert objects.inode[objects.id == samples.object_id[row]].tolist() == ([] if how == "several" else [inode])


POLLED = """
import os, random, select, socket, threading, time
server = socket.create_server(("127.0.0.1", 0))
ends = [os.pipe() for _ in range(30)]
for _ in range(30):
    client = socket.create_connection(server.getsockname())
    ends += [(client.fileno(), server.accept()[0].detach()), tuple(end.detach() for end in socket.socketpair())]
    client.detach()
os.mkfifo("fifo")
fifo = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)  # without writers: nothing to be read, and not at its end
full = [os.pipe()[1] for _ in range(2)]
for end in full:
    os.set_blocking(end, False)
    while select.select([], [end], [], 0)[1]:
        os.write(end, bytes(4096))
select.select([], full, [], 0.02)
select.select([], [], [], 0.02)
random.seed(5)
for round in range(60):
    chosen = random.sample(ends, random.choice([1, 2, 4, 15]))
    there, to = random.choice(chosen)
    others = [end for _, end in random.sample(ends, 2)] if round % 4 > 1 else []  # never ready to be read from here
    first = [fifo] * bool(others)
    writer = threading.Timer(0.008, os.write, (to, b"x"))
    writer.start()
    begin = time.monotonic_ns()
    if round % 2:
        poll = select.poll()
        for end in [*first, *(end for end, _ in chosen)]:
            poll.register(end, select.POLLIN)
        for end in others:
            poll.register(end, select.POLLPRI)
        poll.poll()
    else:
        select.select(first + [end for end, _ in chosen], [], others)
    print(begin, time.monotonic_ns(), os.fstat(there).st_ino, len(chosen) + len(others))
    os.read(there, 1)
    writer.join()
"""


def test_of_several_descriptors_the_wait_is_for_that_which_was_ready(tmp_path: Path) -> None:
    (tmp_path / "polled.py").write_text(POLLED)
    done = run("-e", "none", "--", sys.executable, "polled.py", cwd=tmp_path)
    samples, objects = done.recording.samples, done.recording.objects
    calls = np.isin(samples.syscall, POLLS) & (samples.period > 2_000_000)
    begin = samples.time_ns - samples.period
    inode_of = dict(zip(objects.id.tolist(), objects.inode.tolist(), strict=True))
    rounds, known = [list(map(int, line.split())) for line in done.stdout.splitlines()], 0
    for since, until_ns, inode, number in rounds:
        for row in np.flatnonzero(calls & (begin >= since) & (samples.time_ns <= until_ns)).tolist():
            assert inode_of[int(samples.object_id[row])] == inode
            assert bool(samples.has(SampleFlag.OF_SEVERAL)[row]) == (number > 1)
            known += 1
    assert known >= len(rounds) // 2  # where the timer is late, the wait is short
    sleeps = objects.id[(objects.kind == ObjectKind.DESCRIPTORS) & (objects.number == 0)]
    of_none = samples.has(SampleFlag.OF_SEVERAL)[np.isin(samples.object_id, sleeps)]
    assert of_none.tolist() == [False], "a select() to write is no sleep"


UPSTREAM = """
import http.server, sys, time

class Slow(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        time.sleep(0.03)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *_):
        pass

with open("/proc/self/comm", "w") as file:
    file.write("upstream")
server = http.server.ThreadingHTTPServer(("127.0.0.2", 0), Slow)
print(server.server_port, flush=True)
server.serve_forever()
"""
CLIENTS = """
import http.client, sys, threading

def client():
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
    for _ in range(20):
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"ok"

threads = [threading.Thread(target=client) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
NGINX = """
daemon off; master_process off; pid {directory}/pid; error_log {directory}/log;
events {{ worker_connections 64; }}
http {{
    access_log off; client_body_temp_path {directory}/a; proxy_temp_path {directory}/b;
    fastcgi_temp_path {directory}/c; uwsgi_temp_path {directory}/d; scgi_temp_path {directory}/e;
    upstream slow {{ server 127.0.0.2:{slow}; keepalive 4; }}
    server {{
        listen 127.0.0.1:{front};
        location / {{ proxy_pass http://slow; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}
}}
"""


def listens(port: int) -> bool:
    with socket.socket() as one:
        return not one.connect_ex(("127.0.0.1", port))


@contextmanager
def proxy(directory: Path) -> Iterator[tuple[int, int, str]]:
    """Run nginx before a slow upstream; yield the ports of both, and their pids."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        front = free.getsockname()[1]
    upstream = subprocess.Popen([sys.executable, "-c", UPSTREAM], stdout=subprocess.PIPE, text=True)
    assert upstream.stdout
    slow = int(upstream.stdout.readline())
    configuration = directory / "nginx.conf"
    configuration.write_text(NGINX.format(directory=directory, front=front, slow=slow))
    nginx = subprocess.Popen(["nginx", "-p", directory, "-c", configuration, "-e", directory / "log"])
    try:
        until = time.monotonic() + 10 * PATIENCE
        while not listens(front):
            assert time.monotonic() < until and nginx.poll() is None, (directory / "log").read_text()
            time.sleep(0.02)
        yield front, slow, f"{nginx.pid},{upstream.pid}"
    finally:
        for process in (nginx, upstream):
            process.terminate()
            process.communicate(timeout=10)


def test_the_upstream_of_nginx_comes_first(tmp_path: Path) -> None:
    with proxy(tmp_path) as (front, slow, pids):
        run("-q", "-p", pids, "-e", "none", "--", sys.executable, "-c", CLIENTS, str(front), cwd=tmp_path)
    of_nginx = report("--comm", "nginx", cwd=tmp_path)
    first = of_nginx["objects"]["rows"][0]
    assert (first["kind"], first["wait_class"]) == ("socket", "network")
    assert first["name"].startswith(f"tcp 127.0.0.2:{slow} (upstream "), first
    (cause,) = [cause for cause in of_nginx["verdict"]["causes"] if cause["wait_class"] == "network"]
    (place,) = cause["places"]
    assert first["name"] in (place["object"], place["mostly"]), "the verdict names it"
    done = perf_offcpu("report", "--comm", "nginx", "--sort", "object", cwd=tmp_path)
    rows = [line for line in done.stdout.splitlines() if line[:1] == " " and "%  " in line and "tcp 127." in line]
    assert f"tcp 127.0.0.2:{slow} (upstream" in rows[0], rows
