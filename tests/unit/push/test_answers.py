# SPDX-License-Identifier: Apache-2.0
"""Answers are bytes of strangers: any bytes give an answer, bounded and printable."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceResponse

from perf_offcpu.push.answers import LONGEST_WAIT_S, error_text, export_answer, retry_after_s, retry_delay_s
from perf_offcpu.text import printable

KINDS = ("application/x-protobuf", "application/json", "text/plain", "text/html", "")


@given(st.binary(max_size=200), st.sampled_from(KINDS))
def test_any_bytes(data: bytes, kind: str) -> None:
    for text in (error_text(data, kind), export_answer(data).text):
        assert printable(text) == text and len(text) <= 10 * 300
    delay = retry_delay_s(data)
    assert delay is None or 0 <= delay <= LONGEST_WAIT_S


@pytest.mark.parametrize(("text", "seconds"), [
    ("7", 7.0), ("0", 0.0), ("999999999999", 3600.0), ("-3", None), ("soon", None), ("", None), (None, None),
    ("Thu, 01 Jan 1970 00:20:00 GMT", 1000.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
])  # fmt: skip
def test_retry_after_is_a_number_or_a_date(text: str | None, seconds: float | None) -> None:
    assert retry_after_s(text, 200.0) == seconds


@given(st.text(max_size=40))
def test_any_header(text: str) -> None:
    seconds = retry_after_s(text, 0.0)
    assert seconds is None or 0 <= seconds <= LONGEST_WAIT_S


@given(st.integers(-(2**63), 2**63 - 1), st.text("abc ä", min_size=1, max_size=9))
def test_answers_of_the_published_message(rejected: int, text: str) -> None:
    partial = {"rejected_profiles": rejected, "error_message": text}
    message = ExportProfilesServiceResponse(partial_success=partial)  # type: ignore[arg-type]
    found = export_answer(message.SerializeToString())
    assert (found.rejected, found.text) == (max(rejected, 0), text.strip())


@given(st.binary(max_size=60))
def test_what_the_library_reads_is_read_alike(data: bytes) -> None:
    try:
        message = ExportProfilesServiceResponse.FromString(data)
    except DecodeError:
        return
    assert export_answer(data).rejected == max(message.partial_success.rejected_profiles, 0)


def test_json_that_nests_deeply() -> None:
    assert error_text(b"[" * 60_000, "application/json").startswith("[[")
    assert error_text(b'{"code": 3, "message": "why", "details": []}', "application/json") == "why"
    assert error_text(b'{"message": "\\ud800\\u001b"}', "application/json") == "?\\x1b"
    assert error_text(b'{"message": {"a": 1}}', "application/json") == "{'a': 1}"
