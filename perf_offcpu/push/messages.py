# SPDX-License-Identifier: Apache-2.0
"""Make the messages that push a profile: bytes that can be kept and sent later. A message of Pyroscope is a PushRequest
(api/push/v1/push.proto of https://github.com/grafana/pyroscope), one of Parca a WriteRawRequest
(proto/parca/profilestore/v1alpha1/profilestore.proto of https://github.com/parca-dev/parca), over HTTP in the JSON of
protobuf; both hold pprof. A message of OTLP is an ExportProfilesServiceRequest, one profile with its dictionary, of
opentelemetry/proto/profiles/v1development/profiles.proto of
https://github.com/open-telemetry/opentelemetry-proto, 1.10 or later (`values` is field 4).

Where readers of OTLP differ, the request has the form that all of them accept:

- period 0 and a present but empty period_type: Parca requires one, Pyroscope recognises off_cpu without;
- one value per sample and no time stamps: Pyroscope adds values up, Parca checks times against the profile's;
- attributes with string values: Parca makes labels of no others;
- resource and scope are present: Parca reads their attributes without a check;
- link_table[0] is Link{}: the specification prefers 24 zero bytes and allows both, Parca accepts Link{} only.
"""

import base64
import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

import numpy as np

from perf_offcpu.analysis.group import group, sum_by
from perf_offcpu.convert.encode import protobuf as pb
from perf_offcpu.convert.encode.protobuf import field, varint, varints
from perf_offcpu.convert.locations import Function, Location, Locations
from perf_offcpu.convert.locations import Mapping as Code
from perf_offcpu.convert.pprof import Content, encode_content, utc_ns
from perf_offcpu.convert.registry import Options
from perf_offcpu.model.profile import Profile
from perf_offcpu.push.labels import check_labels, labels_of, underscored
from perf_offcpu.push.waits import TYPE, Waits, encode_parts, waits_of
from perf_offcpu.resources import version
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


SCOPE = "perf-offcpu"
_BUILD_ID = "process.executable.build_id.gnu"  # https://opentelemetry.io/docs/specs/semconv/registry/attributes/process


def _otlp(waits: Waits, labels: Mapping[str, str]) -> bytes:
    """Return an ExportProfilesServiceRequest, encoded, not compressed; `labels` are attributes of the resource."""
    tables = _Dictionary(Locations(waits.profile, Options()))
    profile = tables.profile(waits)
    scope = field(1, SCOPE) + field(2, version())
    resource = b"".join(field(1, field(1, name) + field(2, field(1, text))) for name, text in labels.items())
    scoped = field(1, scope) + field(2, profile)
    return field(1, field(1, resource) + field(2, scoped)) + field(2, b"".join(tables.encoded()))


class _Dictionary:
    """Builds the ProfilesDictionary of one request; entry 0 of each table is empty and means none."""

    def __init__(self, tables: Locations) -> None:
        self.tables = tables
        self._attributes = {b"": 0}

    def profile(self, waits: Waits) -> bytes:
        """Return the encoded Profile message of some waits; add the entries to which it refers to the tables."""
        string, meta = self.tables.string, waits.profile.meta
        name, unit = waits.content.types[0]
        samples = b"".join(self._samples(waits.content))
        begin = np.array([utc_ns(waits.profile)], np.uint64)
        head = field(1, field(1, string(name)) + field(2, string(unit))) + samples + pb.fixed64(3, begin).flat()
        head += field(4, max(meta.duration_ns, 1)) + field(5, b"")
        return head + field(7, blake2b(head, digest_size=16).digest())

    def _samples(self, content: Content) -> Iterator[bytes]:
        """Yield an encoded Sample for each distinct pair of stack and labels."""
        sets = pb.from_bytes([self._label_set(label_set) for label_set in content.label_sets])
        first, group_of = group(self.tables.of_sample, content.label_set)
        values = varints(sum_by(group_of, content.values[0], len(first)))
        stack = pb.numbers(1, self.tables.of_sample[first] + 1)
        labels, lengths = sets.take(content.label_set[first]), pb.lengths(4, values.lengths)
        yield pb.messages(2, pb.joined(stack, labels, lengths, values)).flat()

    def _label_set(self, labels: Mapping[str, str | int]) -> bytes:
        rows = [self._attribute(name, str(text)) for name, text in labels.items() if text != ""]
        return field(2, b"".join(map(varint, rows)))

    def _attribute(self, name: str, text: str) -> int:
        body = field(1, self.tables.string(name)) + field(2, field(1, text))
        return self._attributes.setdefault(body, len(self._attributes))

    def encoded(self) -> Iterator[bytes]:
        """Yield the encoded tables; strings last, when all of them are known."""
        tables = self.tables
        yield from (field(1, message) for message in (b"", *map(self._mapping, tables.mappings)))
        yield from (field(2, message) for message in (b"", *map(_location, tables.locations)))
        yield from (field(3, message) for message in (b"", *map(_function, tables.functions)))
        yield field(4, b"")
        yield from (field(6, attribute) for attribute in self._attributes)
        stacks = pb.ragged(varints(tables.stacks.values), tables.stacks.offsets)
        yield from (field(7, message) for message in (b"", *(field(1, stack) for stack in stacks)))
        yield from (field(5, text) for text in tables.strings)

    def _mapping(self, code: Code) -> bytes:
        attributes = field(5, varint(self._attribute(_BUILD_ID, code.build_id))) if code.build_id else b""
        return field(2, code.limit) + field(4, code.path) + attributes


def _location(location: Location) -> bytes:
    code = field(1, location.mapping) + field(2, location.address) if location.mapping else b""
    lines = (field(1, function) + (field(2, line) if line else b"") for function, line in location.lines)
    return code + b"".join(field(3, line) for line in lines)


def _function(function: Function) -> bytes:
    return b"".join(field(place, text) for place, text in enumerate(function, 1))


PYROSCOPE, PARCA_HTTP, PARCA_GRPC = Form(_pprof, _pyroscope), Form(_pprof, _parca_json), Form(_pprof, _parca)
OTLP_HTTP = Form(_otlp, lambda encoded, _: _packed(encoded))
OTLP_GRPC = Form(_otlp, lambda encoded, _: encoded)
