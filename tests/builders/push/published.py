# SPDX-License-Identifier: Apache-2.0
"""The published messages of pprof, Pyroscope and Parca, as descriptors, and a parser that knows no others. Those of
OTLP come from the package opentelemetry-proto."""

from typing import Any

from builders.examples import examples
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

PPROF, PYROSCOPE, PARCA = (
    "\n".join(line for (line,) in examples("builders/push/published.txt", name))
    for name in ("pprof", "Pyroscope", "Parca")
)

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
