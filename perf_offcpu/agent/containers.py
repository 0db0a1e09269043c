# SPDX-License-Identifier: Apache-2.0
"""Ask what containers are called: pod, namespace, name and image by id. Control groups have the ids alone.

unix:/run/containerd/containerd.sock   a socket of the Container Runtime Interface (containerd, CRI-O)
http://127.0.0.1:10255                 the read-only port of the kubelet

Answers are not trusted: their size, time and texts are bounded. Names of containers that have ended are kept for
segments that are decoded later. Sources: ListContainers of cri-api, pkg/apis/runtime/v1/api.proto; PodList of the
Kubernetes API, core/v1."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from perf_offcpu.agent.journal import Say
from perf_offcpu.agent.metrics import Metrics
from perf_offcpu.agent.sinks import Worker
from perf_offcpu.text import printable

if TYPE_CHECKING:
    from perf_offcpu.dataset.rows import ContainerNames

_EACH_S: Final = 20.0  # a container that lives shorter may have its id alone
_ANSWER_S: Final = 10.0
_MOST_BYTES: Final = 16 << 20
_MOST_KEPT: Final = 10_000
_LONGEST: Final = 1000
_ID: Final = re.compile(r"(?:[a-z-]+://)?([0-9a-f]{64})")
_CRI: Final = "/runtime.v1.RuntimeService/ListContainers"
_POD, _NAMESPACE = b"io.kubernetes.pod.name", b"io.kubernetes.pod.namespace"
_STATUSES: Final = "initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"


class ContainerAsker(Worker):
    """Thread that keeps the names of this host's containers; without capabilities."""

    def __init__(self, place: str, metrics: Metrics, say: Say) -> None:
        super().__init__(say, _EACH_S)
        self.place, self._metrics, self._due_s = place, metrics, 0.0
        self.names: Mapping[str, ContainerNames] = {}
        """The names by id of 64 hexadecimal digits, the last known last."""
        self.start()

    def pending(self) -> Sequence[str]:
        """Return the place if it is time to ask again."""
        return [self.place] if time.monotonic() >= self._due_s else []

    def do(self, name: str) -> None:
        """Ask for the containers of now."""
        try:
            known = containers_at(name)
        except Exception as problem:  # of a library or server: recording goes on, with ids
            self._metrics.add("container_names_failures_total")
            text = printable(str(problem))[:_LONGEST] or type(problem).__name__
            self.retry(f"names of containers are not known: {name}: {text}")
            return
        merged = {**{key: value for key, value in self.names.items() if key not in known}, **known}
        self.names = dict(list(merged.items())[-_MOST_KEPT:])
        self._due_s = time.monotonic() + _EACH_S
        self.worked("names of containers are known again")


def containers_at(place: str) -> dict[str, ContainerNames]:
    """Return the names of the containers that a CRI socket or kubelet has, by id. Raise OSError, HTTPException,
    ValueError, or what gRPC raises, if it gives no answer."""
    listed = _of_runtime(_call(place)) if place.startswith("unix:") else _of_kubelet(json.loads(_get(place)))
    return dict(listed)


def _call(place: str) -> bytes:
    """Return a ListContainersResponse."""
    from perf_offcpu.push.grpc_sender import import_grpc

    bounds = [("grpc.max_receive_message_length", _MOST_BYTES), ("grpc.enable_retries", 0)]
    with import_grpc().insecure_channel(place, bounds) as channel:
        return bytes(channel.unary_unary(_CRI)(b"", timeout=_ANSWER_S))


def _get(place: str) -> bytes:
    """Return the kubelet's list of pods, JSON."""
    from perf_offcpu.push.http_sender import cut

    parts, expired = urlsplit(place), threading.Event()
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_ANSWER_S)
    try:
        connection.connect()
        timer = threading.Timer(_ANSWER_S, cut, (connection.sock, expired))
        timer.daemon = True
        timer.start()
        try:
            connection.request("GET", parts.path.rstrip("/") or "/pods")
            answer = connection.getresponse()
            data = answer.read(_MOST_BYTES)
        finally:
            timer.cancel()
        if expired.is_set() or answer.status != http.HTTPStatus.OK or len(data) == _MOST_BYTES:
            raise OSError(f"status {answer.status}, {len(data)} bytes")
        return data
    finally:
        connection.close()


def _of_runtime(answer: bytes) -> Iterator[tuple[str, ContainerNames]]:
    from perf_offcpu.push.answers import last_field, submessages

    for container in submessages(answer, 1):
        labels = {last_field(label, 1): last_field(label, 2) for label in submessages(container, 8)}
        name, image = (last_field(last_field(container, field), 1) for field in (3, 4))
        parts = last_field(container, 1), labels.get(_POD, b""), labels.get(_NAMESPACE, b""), name, image
        yield from _row(*(part.decode("utf-8", "replace") for part in parts))


def _of_kubelet(pods: Any) -> Iterator[tuple[str, ContainerNames]]:
    for pod in _list(pods, "items"):
        about, status = _part(pod, "metadata"), _part(pod, "status")
        for kind in _STATUSES:
            for container in _list(status, kind):
                own = [_part(container, key) for key in ("name", "image")]
                yield from _row(_part(container, "containerID"), _part(about, "name"), _part(about, "namespace"), *own)


def _part(value: Any, key: str) -> Any:
    """Return the value of a key of a JSON document; None if the document has another form."""
    return value.get(key) if isinstance(value, dict) else None


def _list(value: Any, key: str) -> list[Any]:
    part = _part(value, key)
    return part if isinstance(part, list) else []


def _row(container: Any, *texts: Any) -> Iterator[tuple[str, ContainerNames]]:
    """Yield the id and the names of a container, if it has a valid id."""
    from perf_offcpu.dataset.rows import ContainerNames

    if isinstance(container, str) and (match := _ID.fullmatch(container)):
        shown = (printable(text[:_LONGEST]) if isinstance(text, str) else "" for text in texts)
        yield match[1], ContainerNames(*shown)
