# SPDX-License-Identifier: Apache-2.0
"""Names of containers: of a kubelet's list, of a CRI socket, in the dataset and its reports; servers that fail."""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from builders.dataset import rows_of
from builders.program import run

from perf_offcpu.agent import containers
from perf_offcpu.agent.config import make_config
from perf_offcpu.agent.containers import ContainerAsker, containers_at
from perf_offcpu.agent.metrics import Metrics
from perf_offcpu.dataset.dataset import open_dataset
from perf_offcpu.dataset.rows import ContainerNames, host_of
from perf_offcpu.dataset.segment import write_segment
from perf_offcpu.errors import UsageError
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

DEMO = Path(__file__).resolve().parents[2] / "data" / "demo.data"
ID, OTHER = "0123456789abcdef" * 4, "f" * 64
WEB = ContainerNames("web-7d4b", "shop", "nginx", "registry/nginx:1.27")


def pods(*rows: tuple[str, ContainerNames], kind: str = "containerStatuses") -> dict[str, Any]:
    """Return a PodList of core/v1, as a kubelet writes it, with a pod for each container."""
    return {
        "kind": "PodList",
        "items": [
            {
                "metadata": {"name": names.pod, "namespace": names.namespace, "uid": "1"},
                "status": {kind: [{"name": names.container_name, "image": names.image, "containerID": id_}]},
            }
            for id_, names in rows
        ],
    }


@contextlib.contextmanager
def kubelet(*answers: object, delay_s: float = 0) -> Iterator[str]:
    """Serve /pods: each answer once, the last one again and again: a document, bytes, or a status."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = left.pop(0) if len(left) > 1 else left[0]
            time.sleep(delay_s)
            status = answer if isinstance(answer, int) else 200
            self.send_response(status if self.path == "/pods" else 404)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("kind", ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"])
def test_names_that_a_kubelet_has(kind: str) -> None:
    other = ContainerNames("db-0", "shop", "postgres", "docker.io/postgres:17")
    with kubelet(pods((f"containerd://{ID}", WEB), (f"cri-o://{OTHER}", other), kind=kind)) as place:
        assert containers_at(place) == {ID: WEB, OTHER: other}


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
    """Return a length-delimited protobuf field."""
    data = data.encode() if isinstance(data, str) else data
    low, high = len(data) & 0x7F, len(data) >> 7
    return bytes([number << 3 | 2, *([low | 0x80, high] if high else [low])]) + data


def runtime(tmp_path: Path, answer: bytes, times: int = 1) -> str:
    """Return what asking a CRI socket with this answer gives, as text."""
    words = [sys.executable, "-c", RUNTIME, f"unix:{tmp_path}/cri.sock", answer.hex(), str(times)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_names_that_a_runtime_has(tmp_path: Path) -> None:
    labels = {"io.kubernetes.pod.name": WEB.pod, "io.kubernetes.pod.namespace": WEB.namespace, "a": "b"}
    body = part(1, ID) + part(2, OTHER) + part(3, part(1, WEB.container_name)) + part(4, part(1, WEB.image))
    body += b"".join(part(8, part(1, name) + part(2, value)) for name, value in labels.items())
    without_pod = part(1, OTHER) + part(3, part(1, "alone")) + part(4, part(1, "\x1b[31m"))
    found = json.loads(runtime(tmp_path, part(1, body) + part(1, without_pod) + part(1, part(1, "no-id"))))
    assert found == {ID: list(WEB), OTHER: ["", "", "alone", "\\x1b[31m"]}


def test_answers_of_a_runtime_are_bounded(tmp_path: Path) -> None:
    assert runtime(tmp_path, b"\x0a\xff\xff") == "{}"
    assert runtime(tmp_path, bytes(1 << 10), 17 << 10) == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    "answer", [b"\x00", b"[" * 100_000, b" " * (17 << 20), 503], ids=["no JSON", "deep", "large", "status"]
)
def test_answers_that_are_none(answer: object) -> None:
    with kubelet(answer) as place, pytest.raises((OSError, ValueError, RecursionError)):
        containers_at(place)


@pytest.mark.parametrize(
    "answer", [[], None, {"items": {}}, {"items": [1, {"status": {"containerStatuses": [[], {}]}}]}]
)
def test_documents_of_another_form_have_no_names(answer: object) -> None:
    with kubelet(answer) as place:
        assert containers_at(place) == {}


def test_texts_are_printable_and_bounded() -> None:
    bad = ContainerNames("a\nb", 5, "x" * 5000, "\x1b]0;")  # type: ignore[arg-type]
    with kubelet(pods((ID, bad), ("short", WEB))) as place:
        (names,) = containers_at(place).values()
    assert names == ContainerNames("a\\nb", "", "x" * 1000, "\\x1b]0;")


def test_a_place_that_is_slow_or_gone_is_said_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "_ANSWER_S", 0.2)
    monkeypatch.setattr(containers, "_EACH_S", 0.1)
    said, metrics = list[str](), Metrics()
    with kubelet(pods((ID, WEB)), 500, pods((OTHER, WEB))) as place:
        asker = ContainerAsker(place, metrics, said.append)
        until = time.monotonic() + 20
        while len(asker.names) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        asker.close(0)
    assert dict(asker.names) == {ID: WEB, OTHER: WEB}, "names of a container that has ended are kept"
    assert metrics.value("container_names_failures_total") == 1
    assert [text.partition(":")[0] for text in said] == [
        "names of containers are not known",
        "names of containers are known again",
    ]
    with kubelet({}, delay_s=1) as place, pytest.raises(OSError):
        containers_at(place)


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


@pytest.mark.parametrize(
    "place", ["unix:run.sock", "https://node:10250", "http://node", "http://u@node:1", "http://[::1", "x"]
)
def test_places_that_cannot_be_asked_are_refused(place: str) -> None:
    with pytest.raises(UsageError, match="--containers .*: give unix:PATH of a CRI socket"):
        make_config({"dataset": "set", "containers": place})
