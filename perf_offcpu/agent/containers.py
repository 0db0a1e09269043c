# SPDX-License-Identifier: Apache-2.0
"""Look up pod, namespace, name and image of containers by id, since control groups show only ids. A socket of the
Container Runtime Interface (unix:/run/containerd/containerd.sock; CRI-O has one, too) lists them. Answers are not
trusted: their size, time and texts are bounded. Names of containers that have ended are kept for segments that are
decoded later. Source: ListContainers of cri-api, pkg/apis/runtime/v1/api.proto."""

import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

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
_ID: Final = re.compile(rb"[0-9a-f]{64}")
_CRI: Final = "/runtime.v1.RuntimeService/ListContainers"
_POD, _NAMESPACE = b"io.kubernetes.pod.name", b"io.kubernetes.pod.namespace"


class ContainerAsker(Worker):
    """Thread, without capabilities, that asks a CRI socket (unix:PATH) for containers every _EACH_S seconds."""

    def __init__(self, address: str, metrics: Metrics, say: Say) -> None:
        super().__init__(say, _EACH_S)
        self.address, self._metrics, self._due_s = address, metrics, 0.0
        self.names: Mapping[str, ContainerNames] = {}
        """Container id (64 hexadecimal digits) → names, also of containers that ended; those listed last are last."""
        self.start()

    def pending(self) -> Sequence[str]:
        """Return [address of the socket] if it is time to ask again, else []."""
        return [self.address] if time.monotonic() >= self._due_s else []

    def do(self, name: str) -> None:
        """Ask the socket at the address `name` for its containers, and add them to `names`."""
        try:
            listed = containers_at(name)
        except Exception as problem:  # of a library or server: recording goes on, with ids
            self._metrics.add("container_names_failures_total")
            text = printable(str(problem))[:_LONGEST] or type(problem).__name__
            self.retry(f"names of containers are not known: {name}: {text}")
            return
        merged = {**{key: value for key, value in self.names.items() if key not in listed}, **listed}
        self.names = dict(list(merged.items())[-_MOST_KEPT:])
        self._due_s = time.monotonic() + _EACH_S
        self.worked("names of containers are known again")


def containers_at(address: str) -> "dict[str, ContainerNames]":
    """Ask a CRI socket for its containers; return id → names. Raise gRPC's exceptions if it gives no answer."""
    from perf_offcpu.dataset.rows import ContainerNames
    from perf_offcpu.push.answers import last_field, submessages

    containers = dict[str, ContainerNames]()
    for container in submessages(_call(address), 1):
        labels = {last_field(label, 1): last_field(label, 2) for label in submessages(container, 8)}
        name, image = (last_field(last_field(container, field), 1) for field in (3, 4))
        texts = labels.get(_POD, b""), labels.get(_NAMESPACE, b""), name, image
        if _ID.fullmatch(id_ := last_field(container, 1)):
            shown = (printable(text[:_LONGEST].decode("utf-8", "replace")) for text in texts)
            containers[id_.decode()] = ContainerNames(*shown)
    return containers


def _call(address: str) -> bytes:
    """Call ListContainers of a CRI socket; return the encoded ListContainersResponse."""
    from perf_offcpu.push.grpc_sender import import_grpc

    bounds = [("grpc.max_receive_message_length", _MOST_BYTES), ("grpc.enable_retries", 0)]
    with import_grpc().insecure_channel(address, bounds) as channel:
        return bytes(channel.unary_unary(_CRI)(b"", timeout=_ANSWER_S))
