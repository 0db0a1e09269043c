# SPDX-License-Identifier: Apache-2.0
"""Read answers of servers: the reason of an error in words, and a few numbers. The bytes are not trusted. Sources:
ExportProfilesServiceResponse of opentelemetry-proto; google/rpc/status.proto and error_details.proto of
https://github.com/googleapis/googleapis; https://connectrpc.com/docs/protocol."""

import json
from collections.abc import Iterator
from email.utils import parsedate_to_datetime

from perf_offcpu.structs import frozen
from perf_offcpu.text import printable

MOST_BYTES = 1 << 16  # largest number of bytes of an answer that is read
LONGEST_WAIT_S = 3600.0  # longest pause that a server may ask for
_LONGEST_TEXT = 300
_RETRY_INFO = b"/google.rpc.RetryInfo"


@frozen
class Answer:
    """Answer of a server that accepted a message, perhaps without some of its profiles."""

    rejected: int = 0  # number of profiles that it did not accept
    text: str = ""  # remark of the server, printable; "" for none


def export_answer(data: bytes) -> Answer:
    """Decode an ExportProfilesServiceResponse (protobuf); an empty Answer if it is malformed."""
    partial = _message(data, 1)
    return Answer(max(_number(partial, 1), 0), shown(last_field(partial, 2)))


def error_text(data: bytes, content_type: str) -> str:
    """Return the reason in the body `data` of an HTTP error response, printable; "" if it has none."""
    if content_type in {"application/x-protobuf", "application/protobuf"}:
        return shown(last_field(data, 2))
    if content_type == "application/json":
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return shown(data)
        return shown(str(document.get("message", "")).encode("utf-8", "replace")) if isinstance(document, dict) else ""
    return shown(data) if content_type.startswith("text/plain") else ""


def retry_after_s(text: str | None, now_s: float) -> float | None:
    """Convert the value of an HTTP Retry-After header (seconds or date) to seconds from `now_s` (since 1970), at most
    LONGEST_WAIT_S; None without a valid header."""
    text = (text or "").strip()
    if text.isascii() and text.isdigit():
        return _bounded(float(text[:9]))
    try:
        return _bounded(parsedate_to_datetime(text).timestamp() - now_s) if text else None
    except (ValueError, OverflowError):
        return None


def retry_delay_s(status: bytes) -> float | None:
    """Return the delay that the RetryInfo in an encoded google.rpc.Status asks for, s; None without RetryInfo."""
    for detail in submessages(status, 3):
        if last_field(detail, 1).endswith(_RETRY_INFO):
            delay = _message(last_field(detail, 2), 1)
            return _bounded(_number(delay, 1) + _number(delay, 2) / 1e9)
    return None


def shown(data: bytes) -> str:
    """Return the first line of a text of a server, printable and of bounded length."""
    line = data[: 4 * _LONGEST_TEXT].decode("utf-8", "replace").strip().partition("\n")[0]
    return printable(line[:_LONGEST_TEXT].strip())


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), LONGEST_WAIT_S)


def _number(data: bytes, number: int) -> int:
    """Return the int64 field `number` of an encoded protobuf message; 0 if it is absent."""
    numbers = [value for field, value in _fields(data) if field == number and isinstance(value, int)]
    return numbers[-1] - (numbers[-1] >> 63 << 64) if numbers else 0


def submessages(data: bytes, number: int) -> list[bytes]:
    """Return the bytes of each length-delimited field `number` of an encoded protobuf message, in order."""
    return [value for field, value in _fields(data) if field == number and isinstance(value, bytes)]


def last_field(data: bytes, number: int) -> bytes:
    """Return the bytes of the last length-delimited field `number` of an encoded protobuf message; b"" if absent."""
    return (submessages(data, number) or [b""])[-1]


def _message(data: bytes, number: int) -> bytes:
    """Return the embedded message in field `number` of an encoded protobuf message; repeated ones are merged."""
    return b"".join(submessages(data, number))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes | None]]:
    """Yield (number, value) of each field of an encoded protobuf message up to the first malformed one. The value is an
    int for a varint, bytes for a length-delimited field, None for numbers of fixed size."""
    offset = 0
    while offset < len(data):
        tag, offset = _varint(data, offset)
        kind = tag & 7
        if kind == 0:
            value, offset = _varint(data, offset)
            yield tag >> 3, value
            continue
        length, offset = _varint(data, offset) if kind == 2 else ({1: 8, 5: 4}.get(kind, len(data) + 1), offset)
        if length > len(data) - offset:
            return
        yield tag >> 3, data[offset : offset + length] if kind == 2 else None
        offset += length


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """Decode the varint at `offset`; return its value and the offset after it, (0, end of data) if it is malformed."""
    value = 0
    for shift in range(0, 70, 7):
        if offset >= len(data):
            break
        value |= (data[offset] & 0x7F) << shift
        offset += 1
        if data[offset - 1] < 0x80:
            return value & (1 << 64) - 1, offset
    return 0, len(data)
