# SPDX-License-Identifier: Apache-2.0
"""The published messages of pprof, Pyroscope and Parca, as descriptors, and a parser that knows no others. Those of
OTLP come from the package opentelemetry-proto. Here a line is a message: number, name, type of each field; `*` marks
repeated ones. Fields that no message of ours may set are left out, so that they are refused: deprecated ones,
annotations, executable_info."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

PPROF = """
Profile: 1 sample_type ValueType*, 2 sample Sample*, 3 mapping Mapping*, 4 location Location*,
 5 function Function*, 6 string_table string*, 7 drop_frames int64, 8 keep_frames int64, 9 time_nanos int64,
 10 duration_nanos int64, 11 period_type ValueType, 12 period int64, 13 comment int64*,
 14 default_sample_type int64
ValueType: 1 type int64, 2 unit int64
Sample: 1 location_id uint64*, 2 value int64*, 3 label Label*
Label: 1 key int64, 2 str int64, 3 num int64, 4 num_unit int64
Mapping: 1 id uint64, 2 memory_start uint64, 3 memory_limit uint64, 4 file_offset uint64, 5 filename int64,
 6 build_id int64, 7 has_functions bool, 8 has_filenames bool, 9 has_line_numbers bool,
 10 has_inline_frames bool
Location: 1 id uint64, 2 mapping_id uint64, 3 address uint64, 4 line Line*, 5 is_folded bool
Line: 1 function_id uint64, 2 line int64
Function: 1 id uint64, 2 name int64, 3 system_name int64, 4 filename int64, 5 start_line int64
"""
"""proto/profile.proto of https://github.com/google/pprof."""

PYROSCOPE = """
PushRequest: 1 series RawProfileSeries*
RawProfileSeries: 1 labels LabelPair*, 2 samples RawSample*
LabelPair: 1 name string, 2 value string
RawSample: 1 raw_profile bytes, 2 ID string
"""
"""api/push/v1/push.proto and api/types/v1 of https://github.com/grafana/pyroscope (3fe6a45, 2026-08)."""

PARCA = """
WriteRawRequest: 2 series RawProfileSeries*, 3 normalized bool
RawProfileSeries: 1 labels LabelSet, 2 samples RawSample*
LabelSet: 1 labels Label*
Label: 1 name string, 2 value string
RawSample: 1 raw_profile bytes
"""
"""proto/parca/profilestore/v1alpha1 of https://github.com/parca-dev/parca (3b5647c, 2026-07)."""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {name: getattr(_Field, f"TYPE_{name.upper()}") for name in "string bytes bool int64 uint64 double".split()}


def classes(package: str, table: str) -> dict[str, type[Message]]:
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for line in table.strip().replace("\n ", " ").split("\n"):
        name, _, fields = line.partition(": ")
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            number, field_name, kind = field.split()
            added = message.field.add(name=field_name, number=int(number))
            added.label = _Field.LABEL_REPEATED if kind.endswith("*") else _Field.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            added.type = _SCALARS.get(kind, _Field.TYPE_MESSAGE)
            if kind not in _SCALARS:
                added.type_name = f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClassesForFiles([file.name], pool) | {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{message.name}"))
        for message in file.message_type
    }


class Malformed(Exception):
    """Bytes are not the expected message."""


def parse(kind: Any, data: bytes) -> Any:
    """Decode a message; raise Malformed for damage and for fields that it does not have, at any depth."""
    try:
        message = kind.FromString(data)
    except DecodeError as problem:
        raise Malformed(str(problem)) from None
    _refuse_unknown(message)
    return message


def _refuse_unknown(message: Message) -> None:
    if unknown := [field.field_number for field in UnknownFieldSet(message)]:
        raise Malformed(f"{message.DESCRIPTOR.name} has no fields {unknown}")
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in value if field.is_repeated else [value]:
                _refuse_unknown(one)
