# SPDX-License-Identifier: Apache-2.0
"""Metrics, health, lines of the journal and messages to systemd."""

import contextlib
import http.client
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.program import started

from perf_offcpu.agent.config import make_config
from perf_offcpu.agent.endpoint import Endpoint, Notifier, read_token
from perf_offcpu.agent.metrics import METRICS, PREFIX, Metrics
from perf_offcpu.errors import UsageError

PAGE = Path(__file__).resolve().parents[3] / "Documentation" / "perf-offcpu-agent.txt"
LINE = re.compile(r'[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\["\\n])*"\})? -?[0-9.e+-]+|# (HELP|TYPE) [a-z_]+ .+')


@pytest.fixture
def metrics() -> Metrics:
    found = Metrics()
    found.add("segments_total", 3)
    found.add("gap_seconds_total", 1.5, "budget")
    found.add("losses_total", 2, 'a"b\\c\nd')
    return found


@pytest.fixture
def endpoint(metrics: Metrics) -> Iterator[Endpoint]:
    problems, lacks = (
        iter(["", "", "the recorder does not record"]),
        iter(["", "degraded: recorded 3 s of the last 60"]),
    )
    found = Endpoint("127.0.0.1:0", metrics.text, lambda: next(problems), lambda: next(lacks))
    yield found
    found.close()


def get(endpoint: Endpoint, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_exposition_is_well_formed_and_escaped(metrics: Metrics) -> None:
    lines = metrics.text().splitlines()
    assert all(LINE.fullmatch(line) for line in lines) and f"{PREFIX}segments_total 3" in lines
    assert f'{PREFIX}gap_seconds_total{{cause="budget"}} 1.5' in lines
    assert f'{PREFIX}losses_total{{cause="a\\"b\\\\c\\nd"}} 2' in lines
    assert sum(line.startswith("# TYPE") for line in lines) == len(METRICS)


def test_counters_survive_a_restart_and_gauges_do_not(metrics: Metrics) -> None:
    metrics.set("recording", 1)
    again = Metrics(metrics.counters())
    assert again.counters() == metrics.counters()
    assert (again.value("segments_total"), again.value("recording")) == (3, 0)


def test_page_has_every_metric() -> None:
    text = PAGE.read_text()
    assert [name for name in METRICS if not re.search(rf"\b{name}\b", text)] == []


def test_pages(endpoint: Endpoint, metrics: Metrics) -> None:
    with pytest.raises(UsageError, match=f"^127.0.0.1:{endpoint.port}: Address"):
        Endpoint(f"127.0.0.1:{endpoint.port}", str, str)
    assert get(endpoint, "/metrics?x=1") == (200, metrics.text())
    assert get(endpoint, "/health") == (200, "ok\n")
    assert get(endpoint, "/health") == (200, "degraded: recorded 3 s of the last 60\n")
    assert get(endpoint, "/health") == (503, "the recorder does not record\n")
    assert get(endpoint, "/../etc/passwd")[0] == 404 and get(endpoint, "/metrics", "POST")[0] == 501


FLOOD = """
import collections, socket, sys
held = collections.deque(maxlen=500)
for number in range(10**9):
    try:
        held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
        held[-1].sendall((b"", b"GET / HTTP/1.1\\r\\n", b"GET / HTTP/1.1\\r\\n\\r\\n")[number % 3])
        held[0].sendall(b"x")
    except OSError:
        pass
    if number == 200:
        print("flooding", flush=True)
"""
"""Connections that say nothing, or a part of a request, or read no answer, again and again."""


def test_every_client_is_answered_during_a_flood(endpoint: Endpoint) -> None:
    with started(sys.executable, "-c", FLOOD, str(endpoint.port)) as (_, line):
        assert line == "flooding\n"
        assert [get(endpoint, "/metrics")[0] for _ in range(50)] == [200] * 50


def test_a_slow_client_is_left_after_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not make its time longer, nor does an answer that it does not read."""
    monkeypatch.setattr("perf_offcpu.agent.endpoint._PATIENCE_S", 0.3)
    with contextlib.closing(Endpoint("127.0.0.1:0", lambda: "x" * 50_000_000, str)) as found:
        slow, unread = (socket.create_connection(("127.0.0.1", found.port), timeout=10) for _ in range(2))
        with slow, unread:
            unread.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            with pytest.raises(OSError, match="Broken pipe|reset"):
                while True:
                    slow.sendall(b"G")
                    time.sleep(0.05)
            assert len(b"".join(iter(lambda: unread.recv(1 << 20), b""))) < 50_000_000


def answer_at(path: Path, request: bytes = b"GET /health HTTP/1.1\r\n\r\n") -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(str(path))
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


IDLE = """
import os, socket, sys
os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
held = [socket.socket(socket.AF_UNIX) for _ in range(200)]
for client in held:
    client.connect(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.kernel  # root becomes another user
@pytest.mark.beside
def test_a_user_with_many_connections_displaces_his_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf_offcpu.agent.endpoint._PATIENCE_S", 60.0)
    path = Path(tempfile.mkdtemp(dir="/tmp")) / "agent"
    with contextlib.closing(Endpoint(f"unix:{path}", str, str)), socket.socket(socket.AF_UNIX) as slow:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        slow.connect(str(path))
        slow.sendall(b"GET /health ")
        path.chmod(0o666)
        path.parent.chmod(0o755)
        with started(sys.executable, "-c", IDLE, path) as (_, line):
            assert line == "held\n"
            assert answer_at(path).endswith(b"\r\nok\n")
            slow.sendall(b"HTTP/1.1\r\n\r\n")
            assert slow.recv(1 << 16).endswith(b"\r\nok\n"), "the oldest of all connections, of another user"
        with pytest.raises(UsageError, match="Address already in use"):
            Endpoint(f"unix:{path}", str, str)
    assert not path.exists()
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    Endpoint(f"unix:{path}", str, str).close()
    path.write_text("a file of others")
    with pytest.raises(UsageError, match="Address already in use"):
        Endpoint(f"unix:{path}", str, str)
    path.unlink()
    path.parent.rmdir()


def test_other_machines_need_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path has at most 107 bytes
    config = {"dataset": "d", "spool": "s", "token-file": str(tmp_path / "token")}
    for place in ("0.0.0.0:9811", "[::]:9811", "10.0.0.1:1"):
        assert make_config(config | {"listen": place}).listen == place
        with pytest.raises(UsageError, match=f"--listen {re.escape(place)}: other machines can reach it"):
            make_config(config | {"listen": place, "token-file": ""})
    for place in ("localhost:9811", "127.0.0.1", "127.0.0.1:70000", "9811", "1.2.3:4", "tcp:x"):
        with pytest.raises(UsageError, match=f"--listen {place}: give unix:PATH, or ADDRESS:PORT"):
            make_config(config | {"listen": place})
    for token in ("", "short", "with spaces in it, though long"):
        (tmp_path / "token").write_text(token)
        with pytest.raises(UsageError, match="not a token: 16 characters or more"):
            read_token(str(tmp_path / "token"))
    (tmp_path / "token").write_text("0123456789abcdef\n")
    path = Path("agent")
    with pytest.raises(UsageError, match="path too long"):
        Endpoint(f"unix:{tmp_path}/{'long' * 30}", str, str)
    with contextlib.closing(Endpoint(f"unix:{path}", str, str, token=read_token(str(tmp_path / "token")))):
        for line in (b"", b"Authorization: Bearer 0123456789abcdeX", b"X: Authorization: Bearer 0123456789abcdef"):
            answer = answer_at(path, b"GET /health HTTP/1.1\r\n" + line + b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 401 ") and b"\r\nWWW-Authenticate: Bearer\r\n" in answer
        line = b"authorization:  bearer 0123456789abcdef\r\n\r\n"
        assert answer_at(path, b"GET /health HTTP/1.1\r\nHost: x\r\n" + line).endswith(b"\r\nok\n")


@pytest.mark.parametrize("abstract", [False, True])
def test_service_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path has at most 107 bytes
    name = f"\0agent-test-{tmp_path.name}-{id(tmp_path)}" if abstract else "/proc/self/cwd/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name)
        manager.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", name.replace("\0", "@"))
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        notifier = Notifier()
        notifier.send("READY=1", "STATUS=recording")
        assert manager.recv(4096) == b"READY=1\nSTATUS=recording"
        notifier.alive()
        notifier.alive()
        assert manager.recv(4096) == b"WATCHDOG=1"
        notifier.reloading()
        assert manager.recv(4096).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
    notifier.send("STOPPING=1")  # nobody is there: no error


def test_without_a_service_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "")
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    notifier = Notifier()
    assert notifier.watchdog_s == 0
    notifier.send("READY=1")
    notifier.alive()


LINES_CODE = """
from perf_offcpu.agent.journal import Problem, write_line
write_line("as \\x1b usual"), write_line(Problem("a segment is lost"))
"""


@pytest.mark.parametrize("is_journal", [True, False])
def test_problems_are_warnings_in_the_journal(is_journal: bool) -> None:
    reading, writing = os.pipe()
    status = os.fstat(writing)
    environment = os.environ | {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + (not is_journal)}"}
    subprocess.run([sys.executable, "-c", LINES_CODE], env=environment, stderr=writing, check=True, timeout=60)
    os.close(writing)
    with open(reading, encoding="utf-8") as lines:
        severity = "<4>" if is_journal else ""
        assert lines.read().splitlines() == [
            "perf-offcpu agent: as \\x1b usual",
            f"{severity}perf-offcpu agent: a segment is lost",
        ]
