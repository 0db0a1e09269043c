# SPDX-License-Identifier: Apache-2.0
"""Read and write header features: facts about the machine, names of events, build-ids of files. Bodies stay bytes until
they are asked for. A damaged feature is counted and reads as absent; perf 7.2 refuses the whole file for one malformed
body, so all bodies that are written come from here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perf_offcpu import losses
from perf_offcpu.abi import features
from perf_offcpu.abi.attr import ATTR_SIZE_PERF_6_1, unpack_attr
from perf_offcpu.abi.features import BUILD_ID_FIXED_SIZE, Feature
from perf_offcpu.abi.records import Misc
from perf_offcpu.binary.layout import Order, padding, to_int
from perf_offcpu.errors import LayoutError
from perf_offcpu.losses import Losses
from perf_offcpu.perfdata.events import EventSpec

MAX_EVENTS = 65536  # the limit of perf 7.2; a larger number is damage
BUILD_ID_BYTES = 20  # room for a build-id in records and the feature (SHA-1); longer ones are cut, as perf does
HOST_PID = -1  # `BuildId.pid` of all files that are not a virtual machine's


@dataclass(frozen=True, slots=True)
class BuildId:
    """Holds an entry of the BUILD_ID feature: `cpumode` (abi.records.CpuMode), build-id in hex, path."""

    pid: int
    cpumode: int
    build_id: str
    filename: bytes


class Features:
    """Decodes the features of a recording; `bodies` are bit → body, as found in the file."""

    def __init__(self, bodies: Mapping[int, bytes], order: Order, counters: Losses) -> None:
        self.bodies, self.order, self.counters = dict(bodies), order, counters

    def values(self, feature: Feature) -> dict[str, Any] | None:
        """Return the fields of a feature that has a layout; None if it is absent or damaged."""
        body = self.bodies.get(feature)
        try:
            return None if body is None else features.FEATURE_LAYOUTS[feature].unpack(body, self.order)
        except LayoutError:
            self.counters.add(losses.BAD_FEATURE)
            return None

    def text(self, feature: Feature) -> str:
        """Return a feature that is one string (`uname -r` for OSRELEASE, …); "" if absent."""
        values = self.values(feature)
        return decoded(values["text"]) if values else ""

    def cmdline(self) -> tuple[str, ...]:
        """Return the recorder's argv; () if absent."""
        values = self.values(Feature.CMDLINE)
        return tuple(decoded(entry["text"]) for entry in values["texts"]) if values else ()

    def event_specs(self) -> list[EventSpec]:
        """Return names and ids of the events, in the order of the attr table; [] if not recorded."""
        body, specs = self.bodies.get(Feature.EVENT_DESC, b""), list[EventSpec]()
        if not body:
            return specs
        try:
            head, offset = features.EVENT_DESC_HEADER.unpack_from(body, self.order, None, 0, len(body))
            for _ in range(min(head["nr"], MAX_EVENTS)):
                end = offset + head["attr_size"]
                attr = unpack_attr(body[offset:end], self.order)
                entry, offset = features.EVENT_DESC_ENTRY.unpack_from(body, self.order, None, end, len(body))
                specs.append(EventSpec(attr, decoded(entry["name"]), tuple(entry["ids"])))
        except LayoutError:
            self.counters.add(losses.BAD_FEATURE)
            return []
        return specs

    def named(self, specs: list[EventSpec]) -> list[EventSpec]:
        """Return `specs` with names, and ids where missing, from EVENT_DESC; unchanged if it lists another number."""
        described = self.event_specs()
        if len(described) != len(specs):
            return specs
        pairs = zip(specs, described, strict=True)
        return [replace(spec, name=entry.name or spec.name, ids=spec.ids or entry.ids) for spec, entry in pairs]

    def build_ids(self) -> list[BuildId]:
        """Return the recorded build-ids, up to the first impossible entry."""
        body, result, offset = self.bodies.get(Feature.BUILD_ID, b""), list[BuildId](), 0
        while offset + BUILD_ID_FIXED_SIZE <= len(body):
            size = to_int(body[offset + 6 : offset + 8], self.order)
            if size < BUILD_ID_FIXED_SIZE or offset + size > len(body):
                break
            entry = features.BUILD_ID_ENTRY.unpack(body, self.order, None, offset, offset + size)
            length = entry["build_id_size"] if entry["misc"] & Misc.BUILD_ID_SIZE else BUILD_ID_BYTES
            build_id, cpumode = entry["build_id"][:length].hex(), entry["misc"] & Misc.CPUMODE_MASK
            result.append(BuildId(entry["pid"], cpumode, build_id, entry["filename"]))
            offset += size
        return result


def decoded(text: bytes) -> str:
    """Decode text as Python decodes names of files: bytes that are no UTF-8 become surrogates."""
    return text.decode("utf-8", "surrogateescape")


def feature_body(feature: Feature, order: Order = "<", **values: Any) -> bytes:
    """Return the body of a feature from its layout's fields; raise LayoutError if one is missing or does not fit."""
    return features.FEATURE_LAYOUTS[feature].pack(values, order)


def text_body(text: str, order: Order = "<") -> bytes:
    """Return the body of a feature that is one string: HOSTNAME, OSRELEASE, VERSION, ARCH, CPUDESC, CPUID."""
    return feature_body(Feature.HOSTNAME, order, text=encoded(text))


def cmdline_body(argv: Iterable[str], order: Order = "<") -> bytes:
    """Return the body of CMDLINE."""
    return feature_body(Feature.CMDLINE, order, texts=[{"text": encoded(word)} for word in argv])


def event_desc_body(events: Sequence[EventSpec], order: Order = "<") -> bytes:
    """Return the body of EVENT_DESC: names and ids of the events, in the order of the attr table."""
    head = features.EVENT_DESC_HEADER.pack({"nr": len(events), "attr_size": ATTR_SIZE_PERF_6_1}, order)
    for event in events:
        # The number of ids comes before the name, so that it cannot be taken from the array after it.
        entry = {"nr_ids": len(event.ids), "name": encoded(event.name), "ids": event.ids}
        head += event.attr.pack(ATTR_SIZE_PERF_6_1, order) + features.EVENT_DESC_ENTRY.pack(entry, order)
    return head


def build_id_body(entries: Iterable[BuildId], order: Order = "<") -> bytes:
    """Return the body of BUILD_ID: the build-ids of the mapped files."""
    body = b""
    for entry in entries:
        build_id, length = bytes.fromhex(entry.build_id)[:BUILD_ID_BYTES], len(entry.filename) + 1
        values: dict[str, Any] = {"type": 0, "misc": entry.cpumode | Misc.BUILD_ID_SIZE, "reserved": b""}
        values |= {"size": BUILD_ID_FIXED_SIZE + length + padding(length), "pid": entry.pid}
        values |= {"build_id": build_id, "build_id_size": len(build_id), "filename": entry.filename}
        body += features.BUILD_ID_ENTRY.pack(values, order)
    return body


def encoded(text: str) -> bytes:
    """Encode text as it was read from the system: bytes that are no UTF-8 come back unchanged."""
    return text.encode("utf-8", "surrogateescape")
