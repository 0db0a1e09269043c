# SPDX-License-Identifier: Apache-2.0
"""What the servers demand of a profile, as their sources say; each function raises Rejected. `Series` is what a server
would store: labels, and the value of each stack (root first) with its labels."""

import gzip
import re
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from builders.push.published import PARCA, PPROF, PYROSCOPE, classes, parse

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
