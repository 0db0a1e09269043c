# SPDX-License-Identifier: Apache-2.0
"""What the servers demand of a profile, as their sources say; each function raises Rejected. `Series` is what a server
would store: labels, and the value of each stack (root first) with its labels. Sources for OTLP: profiles.proto of
opentelemetry-proto, v1development; pkg/normalizer/otel.go of Parca; pkg/ingester/otlp/convert.go and ingest_handler.go
of Pyroscope."""

import gzip
import re
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from builders.push.published import PARCA, PPROF, PYROSCOPE, classes, parse
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest

Profile = classes("pprof", PPROF)["Profile"]
PushRequest = classes("pyroscope", PYROSCOPE)["PushRequest"]
WriteRawRequest = classes("parca", PARCA)["WriteRawRequest"]

Stack = tuple[str, ...]


class Rejected(Exception):
    """The server answers InvalidArgument."""


def demand(condition: object, text: str) -> None:
    if not condition:
        raise Rejected(text)


@dataclass
class Series:
    """One profile as it is stored."""

    type: str  # name:type:unit:period_type:period_unit
    labels: dict[str, str]
    time_ns: int
    duration_ns: int
    values: Counter[tuple[Stack, frozenset[tuple[str, str]]]] = field(default_factory=Counter)
    addresses: set[tuple[str, str, int]] = field(default_factory=set)  # (dso, build-id, address)

    @property
    def total(self) -> int:
        return sum(self.values.values())

    def by_label(self, name: str) -> Counter[tuple[str, Stack]]:
        found: Counter[tuple[str, Stack]] = Counter()
        for (stack, labels), value in self.values.items():
            found[dict(labels).get(name, ""), stack] += value
        return found


# ---- Pyroscope: pkg/validation/validate.go, limits.go, pkg/model/pprofsplit, pkg/pprof

PYROSCOPE_BYTES, PYROSCOPE_SAMPLES, PYROSCOPE_LABELS = 4 << 20, 16_000, 30
PYROSCOPE_AGE_S = 3600.0
_LEGACY_NAME = re.compile(r"[A-Za-z_.][A-Za-z0-9_.]*")


def pyroscope_push(data: bytes) -> list[Series]:
    """Distributor.Push: what a PushRequest is stored as."""
    request, found = parse(PushRequest, data), []
    demand(request.series, "no profiles received")
    for series in request.series:
        labels = _unique((label.name, label.value) for label in series.labels)
        demand(series.samples, "no profiles received")
        for sample in series.samples:
            UUID(sample.ID)
            stored = stored_pprof(gunzip(sample.raw_profile, PYROSCOPE_BYTES), labels)
            found += [pyroscope_profile(one, labels) for one in stored]
    return found


def pyroscope_profile(series: Series, labels: Mapping[str, str]) -> Series:
    """ValidateProfile and, for each series that labels of samples make, ValidateLabels."""
    demand(-600e9 < time.time_ns() - series.time_ns < PYROSCOPE_AGE_S * 1e9, "profile is outside of ingestion window")
    demand(len(series.values) <= PYROSCOPE_SAMPLES, "exceeds the samples count limit")
    demand("-" not in series.type, "sample type contains -")
    for own in {labels for _, labels in series.values}:
        pyroscope_labels({**dict(own), **labels})
    return series


def pyroscope_labels(labels: Mapping[str, str]) -> None:
    demand(len(labels) <= PYROSCOPE_LABELS, "too many label names")
    demand(labels.get("__name__"), "invalid metric name")
    demand(labels.get("service_name"), "service name is not provided")
    sanitized = _unique((name.replace(".", "_"), value) for name, value in labels.items())
    for name, value in sanitized.items():
        demand(_LEGACY_NAME.fullmatch(name) and len(name) <= 1024, f"invalid label name '{name}'")
        demand(len(value.encode()) <= 2048, f"label value too long: '{name}'")


# ---- Parca: pkg/normalizer/normalizer.go, validate.go, pkg/profilestore/profilecolumnstore.go

_PARCA_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_PROMQL_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def parca_write_raw(request: Any) -> list[Series]:
    """ProfileColumnStore.WriteRaw: what a WriteRawRequest is stored as."""
    stored = []
    for series in request.series:
        pairs = [(label.name, label.value) for label in series.labels.labels]
        name = dict(pairs).get("__name__", "")
        labels = _unique(pair for pair in pairs if pair[0] != "__name__")
        demand(name, "missing __name__ label")
        demand(all(map(_PARCA_NAME.fullmatch, labels)), "invalid label name")
        for sample in series.samples:
            stored += stored_pprof(gunzip(sample.raw_profile, 64 << 20), {"__name__": name, **labels})
    for one in stored:
        delta = ":delta" if one.duration_ns else ""
        demand(_PROMQL_NAME.fullmatch(one.type + delta), f"invalid profile type {one.type}")
        own = {name for _, own in one.values for name, _ in own}
        demand(all(map(_PARCA_NAME.fullmatch, own)) and not own & {*one.labels}, "labels are renamed")
    return stored


def gunzip(data: bytes, limit: int) -> bytes:
    demand(data[:2] == b"\x1f\x8b", "not compressed")
    try:
        unpacked = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as problem:
        raise Rejected(f"decompressing profile: {problem}") from None
    demand(len(unpacked) <= limit, "uncompressed profile payload size exceeds limit")
    return unpacked


def stored_pprof(data: bytes, labels: Mapping[str, str]) -> list[Series]:
    """ValidatePprofProfile of Parca, which is stricter than Pyroscope; one series for each sample type."""
    profile = parse(Profile, data)
    strings = profile.string_table
    demand(strings and strings[0] == "", "first item in string table is expected to be empty string")
    demand(len({*strings}) == len(strings), "a string is twice in the table")
    for what in ("mapping", "location", "function"):
        rows = getattr(profile, what)
        demand([row.id for row in rows] == [*range(1, len(rows) + 1)], f"{what} id is not sequential")
    for location in profile.location:
        demand(location.mapping_id <= len(profile.mapping), "location has invalid mapping id")
        demand(location.line, "a location has neither symbols nor a way to find them")
        demand(all(1 <= line.function_id <= len(profile.function) for line in location.line), "invalid function id")
    period = profile.period_type
    suffix = f"{strings[period.type]}:{strings[period.unit]}"
    found = [
        Series(
            f"{labels['__name__']}:{strings[kind.type]}:{strings[kind.unit]}:{suffix}",
            dict(labels),
            profile.time_nanos,
            profile.duration_nanos,
            addresses={_code(profile, location) for location in profile.location if location.mapping_id},
        )  # fmt: skip
        for kind in profile.sample_type
    ]
    demand(found, "missing sample type information")
    for sample in profile.sample:
        demand(len(sample.value) == len(found), "mismatch of values and types")
        demand(all(1 <= id_ <= len(profile.location) for id_ in sample.location_id), "location is out of range")
        demand(all(label.key for label in sample.label), "label has no key")
        own = _unique((strings[label.key], strings[label.str]) for label in sample.label if label.str)
        stack = [name for id_ in sample.location_id for name in _names(profile, id_)]
        for series, value in zip(found, sample.value, strict=True):
            demand(value > 0, "a value that servers leave out")
            series.values[tuple(reversed(stack)), frozenset(own.items())] += value
    return found


def _names(profile: Any, location: int) -> Iterable[str]:
    for line in profile.location[location - 1].line:
        yield profile.string_table[profile.function[line.function_id - 1].name]


def _code(profile: Any, location: Any) -> tuple[str, str, int]:
    mapping = profile.mapping[location.mapping_id - 1]
    texts = (profile.string_table[mapping.filename], profile.string_table[mapping.build_id])
    return *texts, location.address


def _unique(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return pairs as a dict; equal names may only have equal values."""
    found: dict[str, str] = {}
    for name, value in pairs:
        demand(found.setdefault(name, value) == value, f"duplicate label name: {name}")
    return found


def otlp_export(data: bytes) -> list[Series]:
    """Return what a request is stored as; raise Rejected where OTLP's specification, Parca or Pyroscope would."""
    demand(len(data) <= 4 << 20, "received message larger than max")
    request = parse(ExportProfilesServiceRequest, data)
    dictionary = Dictionary(request.dictionary)
    demand(request.resource_profiles, "resource profiles are empty")
    found = []
    for resource in request.resource_profiles:
        demand(resource.HasField("resource"), "Parca reads the attributes of a resource that is not there")
        labels = texts((one.key, one.value) for one in resource.resource.attributes)
        for scoped in resource.scope_profiles:
            demand(scoped.HasField("scope") and scoped.scope.name, "Parca names the profile after its scope")
            for profile in scoped.profiles:
                series = dictionary.series(profile, labels)
                demand(len(profile.samples) <= PYROSCOPE_SAMPLES, "exceeds the samples count limit")
                demand(profile.ByteSize() <= PYROSCOPE_BYTES, "exceeds the size limit")
                named = {"__name__": "off_cpu", **labels, "service_name": labels.get("service.name", "")}
                found.append(pyroscope_profile(series, named))
    dictionary.check_unused()
    return found


def texts(pairs: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Return attributes; Parca makes labels of strings that are not empty."""
    found: dict[str, str] = {}
    for key, value in pairs:
        demand(key and key not in found, f"attribute key {key!r} is empty or a duplicate")
        demand(value.WhichOneof("value") == "string_value", f"attribute {key} is no string")
        demand(value.string_value.strip(), f"attribute {key} is empty")
        found[key] = value.string_value
    return found


class Dictionary:
    """The tables of a request; each use of an entry is checked and remembered."""

    def __init__(self, dictionary: Any) -> None:
        self.strings: Sequence[str] = dictionary.string_table
        demand(self.strings and self.strings[0] == "", "first string table entry must be empty")
        demand(len({*self.strings}) == len(self.strings), "string table has duplicates")
        self.used: dict[str, set[int]] = {"string": {0}}
        self.tables: dict[str, Any] = {}
        for name in ("mapping", "location", "function", "link", "attribute", "stack"):
            rows = getattr(dictionary, f"{name}_table")
            demand(rows, f"{name} table is empty")
            demand(rows[0].ByteSize() == 0, f"first {name} table entry must be empty")
            encoded = [row.SerializeToString() for row in rows]
            demand(len({*encoded}) == len(encoded), f"{name} table has duplicates")
            self.tables[name], self.used[name] = rows, {0}

    def string(self, index: int) -> str:
        demand(0 <= index < len(self.strings), f"string index {index} out of bounds")
        self.used["string"].add(index)
        return self.strings[index]

    def row(self, table: str, index: int) -> Any:
        demand(0 <= index < len(self.tables[table]), f"{table} index {index} out of bounds")
        self.used[table].add(index)
        return self.tables[table][index]

    def check_unused(self) -> None:
        """There SHOULD NOT be orphaned items in a dictionary."""
        for table, used in self.used.items():
            size = len(self.strings if table == "string" else self.tables[table])
            demand(len(used) == size, f"{table} table has entries without use: {sorted({*range(size)} - used)}")

    def attributes(self, indices: Iterable[int]) -> dict[str, str]:
        rows = [self.row("attribute", index) for index in indices]
        demand(all(row.unit_strindex == 0 for row in rows), "labels have no units")
        return texts((self.string(row.key_strindex), row.value) for row in rows)

    def series(self, profile: Any, labels: dict[str, str]) -> Series:
        kind, period = profile.sample_type, profile.period_type
        demand(profile.HasField("period_type"), "period type is nil")
        pair = (self.string(kind.type_strindex), self.string(kind.unit_strindex))
        demand(pair == ("off_cpu", "nanoseconds") and profile.period == 0, "Pyroscope takes it for another type")
        demand((period.type_strindex, period.unit_strindex) == (0, 0), "Parca makes another type of it")
        demand(len(profile.profile_id) == 16 and any(profile.profile_id), "profile ID must be 16 bytes")
        demand(profile.samples, "sample is empty")
        found = Series("off_cpu:off_cpu:nanoseconds::", labels, profile.time_unix_nano, profile.duration_nano)
        identities: set[object] = set()
        for sample in profile.samples:
            demand(len(sample.values) == 1 and not sample.timestamps_unix_nano, "not one aggregated value")
            demand(sample.values[0] > 0, "a value that servers leave out")
            demand(sample.link_index == 0, "there are no links")
            own = self.attributes(sample.attribute_indices)
            demand("service.name" not in own, "Pyroscope splits the profile by service")
            stack = [name for index in self.stack(sample.stack_index) for name in self.names(index, found)]
            identity = (sample.stack_index, frozenset(sample.attribute_indices))
            demand(identity not in identities, "samples of one identity SHOULD be combined")
            identities.add(identity)
            found.values[tuple(reversed(stack)), frozenset(own.items())] += sample.values[0]
        return found

    def stack(self, index: int) -> Sequence[int]:
        locations: Sequence[int] = self.row("stack", index).location_indices
        demand(locations and 0 not in locations, "a stack without locations")
        return locations

    def names(self, index: int, found: Series) -> Iterable[str]:
        location = self.row("location", index)
        mapping = self.row("mapping", location.mapping_index)
        path, own = self.string(mapping.filename_strindex), self.attributes(mapping.attribute_indices)
        if location.mapping_index:
            demand(mapping.memory_start <= location.address < mapping.memory_limit, "address outside its mapping")
            found.addresses.add((path, own.get("process.executable.build_id.gnu", ""), location.address))
        demand(location.lines, "a location without a function")
        for line in location.lines:
            demand(line.function_index > 0, "a line without a function")
            function = self.row("function", line.function_index)
            self.string(function.system_name_strindex)
            self.string(function.filename_strindex)
            yield self.string(function.name_strindex)
