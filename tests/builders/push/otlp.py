# SPDX-License-Identifier: Apache-2.0
"""What OTLP's specification, Parca and Pyroscope demand of an ExportProfilesServiceRequest, all at once. Specification:
profiles.proto of opentelemetry-proto, v1development. Parca: pkg/normalizer/otel.go. Pyroscope:
pkg/ingester/otlp/convert.go and ingest_handler.go."""

from collections.abc import Iterable, Sequence
from typing import Any

from builders.push.published import parse
from builders.push.rules import PYROSCOPE_BYTES, PYROSCOPE_SAMPLES, Series, demand, pyroscope_profile
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest


def export(data: bytes) -> list[Series]:
    """Return what a request is stored as; raise Rejected where one of the three would."""
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
