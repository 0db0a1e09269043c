# SPDX-License-Identifier: Apache-2.0
"""Names of containers: of a CRI socket, in the dataset and its reports; sockets that fail."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from builders.dataset import rows_of
from builders.program import run

from perf_offcpu.agent import containers
from perf_offcpu.agent.containers import ContainerAsker
from perf_offcpu.agent.metrics import Metrics
from perf_offcpu.dataset.dataset import open_dataset
from perf_offcpu.dataset.rows import ContainerNames, host_of
from perf_offcpu.dataset.segment import write_segment
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

DEMO = Path(__file__).resolve().parents[2] / "data" / "demo.data"
ID, OTHER = "0123456789abcdef" * 4, "f" * 64
WEB = ContainerNames("web-7d4b", "shop", "nginx", "registry/nginx:1.27")

RUNTIME = """
import json, sys
from concurrent import futures
import grpc
from perf_offcpu.agent.containers import containers_at
place, answer = sys.argv[1], bytes.fromhex(sys.argv[2]) * int(sys.argv[3])
def serve(request, context):
    assert request == b""
    return answer
methods = {"ListContainers": grpc.unary_unary_rpc_method_handler(serve)}
server = grpc.server(futures.ThreadPoolExecutor(1), options=[("grpc.max_send_message_length", -1)])
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", methods),))
server.add_insecure_port(place)
server.start()
try:
    print(json.dumps(containers_at(place)))
except grpc.RpcError as problem:
    print(problem.code().name)
server.stop(0).wait()
"""


def part(number: int, data: bytes | str) -> bytes:
    data = data.encode() if isinstance(data, str) else data
    low, high = len(data) & 0x7F, len(data) >> 7
    return bytes([number << 3 | 2, *([low | 0x80, high] if high else [low])]) + data


def runtime(tmp_path: Path, answer: bytes, times: int = 1) -> str:
    """Return what asking a CRI socket with this answer gives, as text."""
    root = str(Path(__file__).resolve().parents[3])
    # A relative path: that of a socket has at most 107 bytes.
    words = [sys.executable, "-c", RUNTIME, "unix:cri.sock", answer.hex(), str(times)]
    environment = os.environ | {"PYTHONPATH": root}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def container(id_: str, *labels: tuple[str, str], name: str, image: str) -> bytes:
    body = part(1, id_) + part(2, OTHER) + part(3, part(1, name)) + part(4, part(1, image))
    return part(1, body + b"".join(part(8, part(1, key) + part(2, value)) for key, value in labels))


POD = ("io.kubernetes.pod.name", WEB.pod), ("io.kubernetes.pod.namespace", WEB.namespace), ("a", "b")
NGINX = container(ID, *POD, name=WEB.container_name, image=WEB.image)


def test_names_that_a_runtime_has(tmp_path: Path) -> None:
    """Texts are printable and bounded; what has no id is passed over."""
    others = container(OTHER, name="x" * 1010, image="\x1b[31m"), container("no-id", name="a", image="b")
    found = json.loads(runtime(tmp_path, NGINX + b"".join(others)))
    assert found == {ID: list(WEB), OTHER: ["", "", "x" * 1000, "\\x1b[31m"]}


def test_answers_of_a_runtime_are_bounded(tmp_path: Path) -> None:
    assert runtime(tmp_path, bytes(1 << 10), 17 << 10) == "RESOURCE_EXHAUSTED"


def test_a_runtime_that_fails_is_said_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, real = container(OTHER, *POD, name=WEB.container_name, image=WEB.image), containers._call
    answers = [NGINX, None, *[other] * 99]
    monkeypatch.setattr(containers, "_call", lambda place: answers.pop(0) or real(place))
    monkeypatch.setattr(containers, "_EACH_S", 0.1)
    said, metrics = list[str](), Metrics()
    asker = ContainerAsker(f"unix:{tmp_path}/none.sock", metrics, said.append)
    until = time.monotonic() + 20
    while len(asker.names) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    asker.close(0)
    assert dict(asker.names) == {ID: WEB, OTHER: WEB}, "names of a container that has ended are kept"
    assert metrics.value("container_names_failures_total") == 1
    assert [text.split()[4:6] for text in said] == [["not", "known:"], ["known", "again"]]


def test_samples_have_the_names_of_their_containers(tmp_path: Path) -> None:
    profile = load_profile([str(DEMO)], SymbolizeOptions())
    path = f"/kubepods.slice/kubepods-podab.slice/cri-containerd-{ID}.scope"
    profile = replace(profile, cgroups={number: path for number in profile.cgroups})
    for place, names in (("named", {ID: WEB, OTHER: ContainerNames("other")}), ("alone", {})):
        dataset = open_dataset(str(tmp_path / place), make=True)
        write_segment(dataset, profile, host_of(profile, containers=names))
        rows = [row for row in rows_of(dataset, "samples") if row["container"]]
        expected = (WEB.pod, WEB.namespace, WEB.container_name, WEB.image) if names else (None,) * 4
        columns = [tuple(row[name] for name in ContainerNames._fields) for row in rows]
        assert rows and set(columns) == {expected}
    shown = run("fleet", "report", tmp_path / "named", "--sort", "namespace,pod,image", "--container", "nginx").stdout
    assert any(line.split()[-3:] == [WEB.namespace, WEB.pod, WEB.image] for line in shown.splitlines()), shown
    for name in (WEB.pod, ID[:8], "ngin"):
        text = run("fleet", "report", tmp_path / "named", "--container", name).stdout
        assert ("Total:    0.000 ms" in text) == (name == "ngin"), text
