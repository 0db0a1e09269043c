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

Waits are cut into parts that servers accept. A value is off-CPU time in ns of one stack and set of labels. Labels of
samples become labels of series in Pyroscope (5000 series by default) and columns in Parca, so samples have two labels
only: comm and class of the wait. Threads, objects and other details stay in recordings and datasets."""

import base64
import gzip
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

import numpy as np

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.interpreters import fold_interpreters
from perf_offcpu.convert.encode import protobuf as pb
from perf_offcpu.convert.encode.protobuf import field, varint, varints
from perf_offcpu.convert.locations import Function, Location, Locations
from perf_offcpu.convert.locations import Mapping as Code
from perf_offcpu.convert.pprof import Content, encode_content, utc_ns
from perf_offcpu.convert.registry import Options
from perf_offcpu.model.columns import I64, group, sum_by
from perf_offcpu.model.profile import Profile
from perf_offcpu.push.labels import THREAD, WAIT_CLASS, check_labels, labels_of, underscored
from perf_offcpu.resources import version
from perf_offcpu.structs import frozen
from perf_offcpu.text import UNKNOWN, printable

TYPE, UNIT = "off_cpu", "nanoseconds"
"""Sample type and unit that Pyroscope's converter of OTLP recognises (pkg/ingester/otlp/convert.go)."""
MOST_COMMS = 60
OTHERS = "(others)"  # label of comms with little off-CPU time: thread pools number their threads
MOST_BYTES = 3 << 20
"""Size of a part before compression: gRPC servers and Pyroscope take 4 MiB by default, labels included."""
MOST_SAMPLES = 15_000  # number of samples of a part: Pyroscope accepts 16 000 per profile by default


@frozen
class Waits:
    """Waits to push, with their labels; they become one message, or several if that would be too large."""

    profile: Profile  # with these waits alone
    content: Content  # off-CPU ns and labels (in OpenTelemetry's spelling) of each sample

    def take(self, rows: I64) -> "Waits":
        """Return the waits in `rows` (of the samples), in this order."""
        content, label_set = self.content, self.content.label_set[rows]
        first, group_of = group(label_set)
        sets = [content.label_sets[number] for number in label_set[first].tolist()]
        values = [column[rows] for column in content.values]
        return Waits(self.profile.select(rows), Content(content.types, values, sets, group_of))


def waits_of(profile: Profile) -> Waits:
    """Return the waits of a profile with a weight, labelled with comm and class, as they are pushed: frames of
    interpreters folded, without addresses of the kernel."""
    classes = classify(profile).wait_class  # of all: sums are classified like single waits of other rows
    names, name = _thread_names(profile)
    first, group_of = group(name, classes)
    labels = {kind: "" if kind == WaitClass.OTHER else kind.label for kind in WaitClass}
    rows = zip(name[first].tolist(), classes[first].tolist(), strict=True)
    sets: list[dict[str, str | int]] = [{THREAD: names[row], WAIT_CLASS: labels[kind]} for row, kind in rows]
    shown = _without_kernel_addresses(_with_time(fold_interpreters(profile)))
    waits = Waits(shown, Content([(TYPE, UNIT)], [profile.samples.period], sets, group_of))
    return waits.take(np.flatnonzero(profile.is_offcpu() & (profile.samples.period > 0)))


def _thread_names(profile: Profile) -> tuple[list[str], I64]:
    """Return the comms, at most MOST_COMMS (the lightest are OTHERS), and int64[samples]: index of each sample's."""
    first, group_of = group(profile.samples.comm)
    weights = sum_by(group_of, np.where(profile.is_offcpu(), profile.samples.period, 0), len(first)).tolist()
    comms = [printable(profile.strings[row]).strip() or UNKNOWN for row in profile.samples.comm[first].tolist()]
    by_name: Counter[str] = Counter()
    for comm, weight in zip(comms, weights, strict=True):
        by_name[comm] += weight
    names = sorted(by_name, key=lambda comm: (-by_name[comm], comm))
    kept = names if len(names) <= MOST_COMMS else [*names[: MOST_COMMS - 1], OTHERS]
    numbers = {comm: min(number, len(kept) - 1) for number, comm in enumerate(names)}
    return kept, np.array([numbers[comm] for comm in comms], np.int64)[group_of]


def encode_parts(waits: Waits, encode: Callable[[Waits], bytes]) -> Iterator[tuple[Waits, bytes]]:
    """Cut waits into parts of at most MOST_SAMPLES distinct (stack, labels) and MOST_BYTES of the result of `encode`,
    before compression (a single one may exceed it); yield (part, its encoded bytes)."""
    pending = [waits] if len(waits.profile.samples) else []
    while pending:
        part = pending.pop()
        _, group_of = group(part.profile.samples.stack, part.content.label_set)
        groups = int(group_of.max()) + 1
        pieces = -(-groups // MOST_SAMPLES)
        encoded = encode(part) if pieces == 1 else b""
        pieces = min(max(pieces, -(-len(encoded) // MOST_BYTES)), groups)
        if pieces == 1:
            yield part, encoded
            continue
        piece_of = group_of * pieces // groups
        pending += [part.take(np.flatnonzero(piece_of == piece)) for piece in reversed(range(pieces))]


def _without_kernel_addresses(profile: Profile) -> Profile:
    """Return the profile with address 0 for kernel frames: their addresses differ from boot to boot."""
    frames = profile.frames
    address = np.where(frames.is_kernel(), np.uint64(0), frames.address)
    return replace(profile, frames=frames.with_columns(address=address))


def _with_time(profile: Profile) -> Profile:
    """Return the profile; if its recording has no wall-clock time, with times as if it ended now."""
    if utc_ns(profile):
        return profile
    meta = profile.meta
    first = max(meta.first_ns, 0)
    last = max(meta.last_ns, first)
    now = replace(meta, wall_clock_ns=time.time_ns(), wall_clock_at_ns=last, first_ns=first, last_ns=last)
    return replace(profile, meta=now)


PARCA_NAME = "perf_offcpu"
"""Name of the profile in Parca, which takes it from OTLP's scope: perf_offcpu:off_cpu:nanoseconds:::delta."""
_LEVEL = 1


class Form(NamedTuple):
    """Functions that encode the requests for a kind of server."""

    encode: Callable[[Waits, Mapping[str, str]], bytes]  # (waits, labels) → profile, whose size servers limit
    wrap: Callable[[bytes, Mapping[str, str]], bytes]  # (that profile, labels) → body of the request


@frozen
class Message:
    """Body of a request for one target."""

    body: bytes
    samples: int  # number of samples of the profile that are summed in it
    weight_ns: int  # their off-CPU time


def messages(form: Form, profile: Profile, labels: Mapping[str, str]) -> Iterator[Message]:
    """Yield the messages that push the waits of a profile, none if it has no waits. `labels`: name → value, of all
    samples; names `service` and `host` become OpenTelemetry's. Raise UsageError if a server would refuse a label."""
    check_labels(labels)
    own = labels_of(profile, labels)
    for part, encoded in encode_parts(waits_of(profile), lambda waits: form.encode(waits, own)):
        yield Message(form.wrap(encoded, own), len(part.profile.samples), int(part.content.values[0].sum()))


def _pprof(waits: Waits, _labels: Mapping[str, str]) -> bytes:
    """Encode waits as pprof's profile.proto, not compressed."""
    content = waits.content
    sets = [{underscored(name): text for name, text in label_set.items()} for label_set in content.label_sets]
    spelled = Content(content.types, content.values, sets, content.label_set)
    return b"".join(encode_content(waits.profile, Options(), spelled))


def _pyroscope(profile: bytes, labels: Mapping[str, str]) -> bytes:
    """Encode Pyroscope's PushRequest with a profile.proto."""
    named = {"__name__": TYPE, "__delta__": "false", **labels}  # no delta: each profile has its own waits
    pairs = (field(1, underscored(name)) + field(2, text) for name, text in named.items())
    identity = UUID(bytes=blake2b(profile, digest_size=16).digest())  # a profile that is sent twice is recognised
    sample = field(1, _packed(profile)) + field(2, str(identity))
    return field(1, b"".join(field(1, pair) for pair in pairs) + field(2, sample))


def _parca(profile: bytes, labels: Mapping[str, str]) -> bytes:
    """Encode Parca's WriteRawRequest with a profile.proto."""
    pairs = (field(1, name) + field(2, text) for name, text in _parca_labels(labels).items())
    series = field(1, b"".join(field(1, pair) for pair in pairs)) + field(2, field(1, _packed(profile)))
    return field(2, series) + field(3, 1)  # addresses are those of the files


def _parca_json(profile: bytes, labels: Mapping[str, str]) -> bytes:
    """Encode Parca's WriteRawRequest with a profile.proto, in the JSON of protobuf."""
    pairs = [{"name": name, "value": text} for name, text in _parca_labels(labels).items()]
    sample = {"rawProfile": base64.b64encode(_packed(profile)).decode()}
    return json.dumps({"series": [{"labels": {"labels": pairs}, "samples": [sample]}], "normalized": True}).encode()


def _parca_labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {"__name__": PARCA_NAME} | {underscored(name): text for name, text in labels.items()}


def _packed(data: bytes) -> bytes:
    return gzip.compress(data, _LEVEL, mtime=0)


SCOPE = "perf-offcpu"
_BUILD_ID = "process.executable.build_id.gnu"  # https://opentelemetry.io/docs/specs/semconv/registry/attributes/process


def _otlp(waits: Waits, labels: Mapping[str, str]) -> bytes:
    """Encode waits as OTLP's ExportProfilesServiceRequest, not compressed; `labels`: attributes of the resource."""
    tables = _Dictionary(Locations(waits.profile, Options()))
    profile = tables.profile(waits)
    scope = field(1, SCOPE) + field(2, version())
    resource = b"".join(field(1, field(1, name) + field(2, field(1, text))) for name, text in labels.items())
    scoped = field(1, scope) + field(2, profile)
    return field(1, field(1, resource) + field(2, scoped)) + field(2, b"".join(tables.encoded()))


class _Dictionary:
    """The ProfilesDictionary of one request; entry 0 of each table is empty and means none."""

    def __init__(self, tables: Locations) -> None:
        self.tables = tables
        self._attributes = {b"": 0}

    def profile(self, waits: Waits) -> bytes:
        """Encode waits as a Profile message; add the entries to which it refers to the tables."""
        string, meta = self.tables.string, waits.profile.meta
        name, unit = waits.content.types[0]
        samples = b"".join(self._samples(waits.content))
        begin = np.array([utc_ns(waits.profile)], np.uint64)
        head = field(1, field(1, string(name)) + field(2, string(unit))) + samples + pb.fixed64(3, begin).flat()
        head += field(4, max(meta.duration_ns, 1)) + field(5, b"")
        return head + field(7, blake2b(head, digest_size=16).digest())

    def _samples(self, content: Content) -> Iterator[bytes]:
        """Sum the values by stack and labels, and encode a Sample for each such pair; yield the bytes."""
        sets = pb.from_bytes([self._label_set(label_set) for label_set in content.label_sets])
        first, group_of = group(self.tables.of_sample, content.label_set)
        values = varints(sum_by(group_of, content.values[0], len(first)))
        stack = pb.numbers(1, self.tables.of_sample[first] + 1)
        labels, lengths = sets.take(content.label_set[first]), pb.lengths(4, values.lengths)
        yield pb.messages(2, pb.joined(stack, labels, lengths, values)).flat()

    def _label_set(self, labels: Mapping[str, str | int]) -> bytes:
        """Encode the field of a Sample that refers to its labels, which are added as attributes."""
        rows = [self._attribute(name, str(text)) for name, text in labels.items() if text != ""]
        return field(2, b"".join(map(varint, rows)))

    def _attribute(self, name: str, text: str) -> int:
        """Return the index of the attribute `name` = `text` in the table of attributes; a new one is added."""
        body = field(1, self.tables.string(name)) + field(2, field(1, text))
        return self._attributes.setdefault(body, len(self._attributes))

    def encoded(self) -> Iterator[bytes]:
        """Yield the encoded entries of all tables; strings last, when all have been added."""
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
    return b"".join(field(number, text) for number, text in enumerate(function, 1))


PYROSCOPE, PARCA_HTTP, PARCA_GRPC = Form(_pprof, _pyroscope), Form(_pprof, _parca_json), Form(_pprof, _parca)
OTLP_HTTP = Form(_otlp, lambda encoded, _: _packed(encoded))
OTLP_GRPC = Form(_otlp, lambda encoded, _: encoded)
