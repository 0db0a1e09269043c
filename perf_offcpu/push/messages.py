# SPDX-License-Identifier: Apache-2.0
"""Make the messages that push a profile: bytes that can be kept and sent later.

A message of Pyroscope is a PushRequest (api/push/v1/push.proto of https://github.com/grafana/pyroscope), one
of Parca a WriteRawRequest (proto/parca/profilestore/v1alpha1/profilestore.proto of
https://github.com/parca-dev/parca), over HTTP in the JSON of protobuf; both hold pprof. `otlp` has the third.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from uuid import UUID

from perf_offcpu.convert.encode.protobuf import field
from perf_offcpu.convert.pprof import Content, encode_content
from perf_offcpu.convert.registry import Options
from perf_offcpu.model.profile import Profile
from perf_offcpu.push import otlp
from perf_offcpu.push.labels import check_labels, labels_of, underscored
from perf_offcpu.push.targets import Server, Target
from perf_offcpu.push.waits import TYPE, Waits, encode_parts, waits_of
from perf_offcpu.structs import frozen

PARCA_NAME = "perf_offcpu"
"""Name of the profile in Parca, which takes it from OTLP's scope: perf_offcpu:off_cpu:nanoseconds:::delta."""
_LEVEL = 1


@frozen
class Message:
    """A request for one target."""

    body: bytes
    samples: int  # samples of the profile that are summed up in it
    weight_ns: int  # their off-CPU time


def messages(target: Target, profile: Profile, labels: Mapping[str, str]) -> Iterator[Message]:
    """Make the messages of the waits of a profile; none if it has no waits.

    Args:
        labels: of all samples; `service` and `host` stand for OpenTelemetry's names of service and host.

    Raises:
        UsageError: a server would refuse a label.
    """
    check_labels(labels)
    own = labels_of(profile, labels)
    encode, wrap = _FORMS[target.server, target.is_grpc]
    for part, encoded in encode_parts(waits_of(profile), lambda waits: encode(waits, own)):
        yield Message(wrap(encoded, own), len(part.profile.samples), part.weight_ns)


def _pprof(waits: Waits, _labels: Mapping[str, str]) -> bytes:
    """Return a profile.proto, not compressed."""
    content = waits.content
    sets = [{underscored(name): text for name, text in label_set.items()} for label_set in content.label_sets]
    spelled = Content(content.types, content.values, sets, content.label_set)
    return b"".join(encode_content(waits.profile, Options(), spelled))


def _pyroscope(profile: bytes, labels: Mapping[str, str]) -> bytes:
    named = {"__name__": TYPE, "__delta__": "false", **labels}  # no delta: each profile has its own waits
    pairs = (field(1, underscored(name)) + field(2, text) for name, text in named.items())
    sample = field(1, _packed(profile)) + field(2, str(UUID(bytes=identity(profile))))
    return field(1, b"".join(field(1, pair) for pair in pairs) + field(2, sample))


def _parca(profile: bytes, labels: Mapping[str, str]) -> bytes:
    pairs = (field(1, underscored(name)) + field(2, text) for name, text in _parca_labels(labels))
    series = field(1, b"".join(field(1, pair) for pair in pairs)) + field(2, field(1, _packed(profile)))
    return field(2, series) + field(3, 1)  # addresses are those of the files


def _parca_json(profile: bytes, labels: Mapping[str, str]) -> bytes:
    pairs = [{"name": underscored(name), "value": text} for name, text in _parca_labels(labels)]
    sample = {"rawProfile": base64.b64encode(_packed(profile)).decode()}
    series = {"labels": {"labels": pairs}, "samples": [sample]}
    return json.dumps({"series": [series], "normalized": True}).encode()


def _parca_labels(labels: Mapping[str, str]) -> list[tuple[str, str]]:
    return [("__name__", PARCA_NAME), *labels.items()]


def _packed(data: bytes) -> bytes:
    return gzip.compress(data, _LEVEL, mtime=0)


def identity(data: bytes) -> bytes:
    """Return 16 bytes that identify a profile: a profile that is sent twice can be recognised."""
    return blake2b(data, digest_size=16).digest()


_Encode = Callable[[Waits, Mapping[str, str]], bytes]
_Wrap = Callable[[bytes, Mapping[str, str]], bytes]
_FORMS: dict[tuple[Server, bool], tuple[_Encode, _Wrap]] = {
    (Server.PYROSCOPE, False): (_pprof, _pyroscope),
    (Server.PARCA, False): (_pprof, _parca_json),
    (Server.PARCA, True): (_pprof, _parca),
    (Server.OTLP, False): (otlp.request, lambda encoded, _: _packed(encoded)),
    (Server.OTLP, True): (otlp.request, lambda encoded, _: encoded),
}
