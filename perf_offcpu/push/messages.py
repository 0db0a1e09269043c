# SPDX-License-Identifier: Apache-2.0
"""Make the messages that push a profile: bytes that can be kept and sent later. A message of Pyroscope is a PushRequest
(api/push/v1/push.proto of https://github.com/grafana/pyroscope), one of Parca a WriteRawRequest
(proto/parca/profilestore/v1alpha1/profilestore.proto of https://github.com/parca-dev/parca), over HTTP in the JSON of
protobuf; both hold pprof. Messages of the third kind are made by `otlp`."""

import base64
import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

from perf_offcpu.convert.encode.protobuf import field
from perf_offcpu.convert.pprof import Content, encode_content
from perf_offcpu.convert.registry import Options
from perf_offcpu.model.profile import Profile
from perf_offcpu.push import otlp
from perf_offcpu.push.labels import check_labels, labels_of, underscored
from perf_offcpu.push.waits import TYPE, Waits, encode_parts, waits_of
from perf_offcpu.structs import frozen

PARCA_NAME = "perf_offcpu"
"""Name of the profile in Parca, which takes it from OTLP's scope: perf_offcpu:off_cpu:nanoseconds:::delta."""
_LEVEL = 1


class Form(NamedTuple):
    """Functions that make a request for a kind of server: `encode` makes a profile, `wrap` the request with it."""

    encode: Callable[[Waits, Mapping[str, str]], bytes]  # waits and labels → profile, whose size is limited
    wrap: Callable[[bytes, Mapping[str, str]], bytes]  # profile and labels → request


@frozen
class Message:
    """Holds a request for one target (`body`), and the number and weight of the samples in it."""

    body: bytes
    samples: int  # samples of the profile that are summed up in it
    weight_ns: int  # their off-CPU time


def messages(form: Form, profile: Profile, labels: Mapping[str, str]) -> Iterator[Message]:
    """Yield the messages of the waits of a profile; none if it has no waits. `labels` are of all samples; `service` and
    `host` stand for OpenTelemetry's names of service and host. Raise UsageError if a server would refuse a label."""
    check_labels(labels)
    own = labels_of(profile, labels)
    for part, encoded in encode_parts(waits_of(profile), lambda waits: form.encode(waits, own)):
        yield Message(form.wrap(encoded, own), len(part.profile.samples), int(part.content.values[0].sum()))


def _pprof(waits: Waits, _labels: Mapping[str, str]) -> bytes:
    """Return a profile.proto, not compressed."""
    content = waits.content
    sets = [{underscored(name): text for name, text in label_set.items()} for label_set in content.label_sets]
    spelled = Content(content.types, content.values, sets, content.label_set)
    return b"".join(encode_content(waits.profile, Options(), spelled))


def _pyroscope(profile: bytes, labels: Mapping[str, str]) -> bytes:
    named = {"__name__": TYPE, "__delta__": "false", **labels}  # no delta: each profile has its own waits
    pairs = (field(1, underscored(name)) + field(2, text) for name, text in named.items())
    identity = UUID(bytes=blake2b(profile, digest_size=16).digest())  # a profile that is sent twice is recognised
    sample = field(1, _packed(profile)) + field(2, str(identity))
    return field(1, b"".join(field(1, pair) for pair in pairs) + field(2, sample))


def _parca(profile: bytes, labels: Mapping[str, str]) -> bytes:
    pairs = (field(1, name) + field(2, text) for name, text in _parca_labels(labels).items())
    series = field(1, b"".join(field(1, pair) for pair in pairs)) + field(2, field(1, _packed(profile)))
    return field(2, series) + field(3, 1)  # addresses are those of the files


def _parca_json(profile: bytes, labels: Mapping[str, str]) -> bytes:
    pairs = [{"name": name, "value": text} for name, text in _parca_labels(labels).items()]
    sample = {"rawProfile": base64.b64encode(_packed(profile)).decode()}
    series = {"labels": {"labels": pairs}, "samples": [sample]}
    return json.dumps({"series": [series], "normalized": True}).encode()


def _parca_labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {"__name__": PARCA_NAME} | {underscored(name): text for name, text in labels.items()}


def _packed(data: bytes) -> bytes:
    return gzip.compress(data, _LEVEL, mtime=0)


PYROSCOPE, PARCA_HTTP, PARCA_GRPC = Form(_pprof, _pyroscope), Form(_pprof, _parca_json), Form(_pprof, _parca)
OTLP_HTTP = Form(otlp.request, lambda encoded, _: _packed(encoded))
OTLP_GRPC = Form(otlp.request, lambda encoded, _: encoded)
