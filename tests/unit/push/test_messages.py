# SPDX-License-Identifier: Apache-2.0
"""Messages, read by the published descriptions and under the rules of the servers; answers, bounded and printable."""

from collections import Counter
from collections.abc import Iterator

import pytest
from builders.large import large_profile
from builders.profile import Code, ProfileBuilder
from builders.push.rules import Series
from builders.push.servers import METHODS, ROUTES
from builders.push.waits import folded, recent, some_waits
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceResponse

from perf_offcpu.errors import UsageError
from perf_offcpu.model.join import join
from perf_offcpu.model.profile import Profile
from perf_offcpu.push import messages as module
from perf_offcpu.push.answers import LONGEST_WAIT_S, error_text, export_answer, retry_after_s, retry_delay_s
from perf_offcpu.push.messages import OTLP_GRPC, OTLP_HTTP, Message, messages
from perf_offcpu.push.targets import SERVERS, parse_target
from perf_offcpu.text import printable

TARGETS = [f"{word}=http://h" for word in SERVERS] + [f"{word}=grpc://h:1" for word in SERVERS if SERVERS[word].grpc]
LABELS = {"service": "web", "host": "db7", "region": "eu-1"}


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def stored(target: str, body: bytes) -> list[Series]:
    parsed = parse_target(target)
    take = METHODS[parsed.path] if parsed.is_grpc else ROUTES[parsed.path][1]
    return take(body)


def pushed(target: str, profile: Profile, labels: dict[str, str]) -> Iterator[tuple[Message, Series]]:
    for message in messages(parse_target(target).form, profile, labels):
        (series,) = stored(target, message.body)
        yield message, series


def is_otlp(target: str) -> bool:
    return parse_target(target).form in (OTLP_HTTP, OTLP_GRPC)


def test_stacks_and_weights_are_those_of_folded_lines(target: str) -> None:
    profile = some_waits()
    ((message, series),) = pushed(target, profile, LABELS)
    name = "thread.name" if is_otlp(target) else "thread_name"
    expected = +folded(profile)
    assert {comm for comm, _ in expected} == {"a", "b", "b\\n\\u202e"}
    assert series.by_label(name) == expected
    offcpu = profile.samples.period[profile.is_offcpu()]
    assert message.weight_ns == series.total == sum(offcpu.tolist())
    assert message.samples == (offcpu > 0).sum()


def test_type_labels_and_times(target: str) -> None:
    profile = some_waits()
    ((_, series),) = pushed(target, profile, LABELS)
    name = "perf_offcpu" if target.startswith("parca") else "off_cpu"
    assert series.type == f"{name}:off_cpu:nanoseconds::"
    assert (series.time_ns, series.duration_ns) == (profile.meta.wall_clock_ns, 5 * 10**9)
    if is_otlp(target):
        assert series.labels == {"service.name": "web", "host.name": "db7", "region": "eu-1"}
    else:
        own = {"__delta__": "false"} if target.startswith("pyroscope") else {}
        assert series.labels == {"service_name": "web", "host_name": "db7", "region": "eu-1", "__name__": name} | own
    classes = {dict(labels).get("wait.class", dict(labels).get("wait_class")) for _, labels in series.values}
    assert len(classes) > 1 and "other" not in classes
    assert ("/lib/libc.so.6", "c0ffee", 0x1234) in series.addresses
    ((_, without),) = pushed(target, profile, {})  # the host is known, and the service is not
    labels = {name.replace(".", "_"): value for name, value in without.labels.items()}
    assert (labels["host_name"], labels["service_name"]) == ("db7", "unknown_service")


def test_no_waits_no_message_and_a_profile_without_wall_clock_ended_now(target: str) -> None:
    for builder in (ProfileBuilder(), ProfileBuilder().sample("a", ["main"], 5, event="cpu-clock")):
        assert list(messages(parse_target(target).form, builder.build(), {})) == []
    ((_, series),) = pushed(target, ProfileBuilder().sample("a", ["main"], 5).build(), {})
    assert series.total == 5  # the rules have looked at the time


@pytest.mark.long
def test_large_profiles_are_several_messages(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each within the limits; together they are the profile, and no stack is in two of them."""
    profile = recent(large_profile(300, 200))
    monkeypatch.setattr(module, "MOST_SAMPLES", 50)
    monkeypatch.setattr(module, "MOST_BYTES", 35_000)
    found, ids = Counter[object](), set()
    sent = list(pushed(target, profile, LABELS))
    for message, series in sent:
        assert len(series.values) <= 50 and not series.values.keys() & found.keys()
        if target == "otlp=grpc://h:1":
            assert len(message.body) < 39_000
        found.update(series.values)
        ids.add(message.body)
    assert len(ids) == len(sent) > 4
    whole = recent(profile)
    monkeypatch.undo()
    ((_, one),) = pushed(target, whole, LABELS)
    assert found == one.values
    assert one.total == sum(profile.samples.period[profile.is_offcpu()].tolist())
    assert sum(message.weight_ns for message, _ in sent) == one.total


def test_threads_of_many_names_share_a_label(target: str) -> None:
    builder = ProfileBuilder()
    for number in range(100):
        builder.sample(f"pool-{number}", ["main"], 1000 - number, tid=number + 1)
        builder.sample(f"pool-{number}", ["main"], 10**6, event="cpu-clock", tid=number + 1)
    ((_, series),) = pushed(target, builder.build(), {})
    name = "thread.name" if is_otlp(target) else "thread_name"
    expected = {(f"pool-{number}", ("main",)): 1000 - number for number in range(module.MOST_COMMS - 1)}
    others = sum(1000 - number for number in range(module.MOST_COMMS - 1, 100))
    assert series.by_label(name) == expected | {(module.OTHERS, ("main",)): others}


def test_equal_entries_are_one(target: str) -> None:
    """Functions of one name in several files, and the frames of several recordings of one program."""
    builder = ProfileBuilder()
    for path in ("/bin/a", "/bin/b"):
        builder.sample("a", [Code("main", path, 0x10), Code("read", "/lib/libc.so.6", 0x20)], 5)
    one = builder.build()
    ((_, series),) = pushed(target, join([one, one], 1), {})
    assert [*series.values.values()] == [20]
    assert {path for path, _, _ in series.addresses} == {"/bin/a", "/bin/b", "/lib/libc.so.6"}


def test_where_the_kernel_is_loaded_is_not_told(target: str) -> None:
    builder = ProfileBuilder()
    for offset in (0x10, 0x20):
        code = Code("schedule", "[kernel.kallsyms]", 0xFFFFFFFF81000000 + offset, kernel=True)
        builder.sample("a", [Code("read", "/lib/libc.so.6", 0x30), code], 5)
    ((_, series),) = pushed(target, builder.build(), {})
    assert {address for _, _, address in series.addresses} == {0, 0x30}
    assert [*series.values.values()] == [10]


def test_the_same_profile_yields_the_same_bytes() -> None:
    profile = some_waits()
    for target in map(parse_target, TARGETS):
        first, again = (list(messages(target.form, profile, LABELS)) for _ in range(2))
        assert [one.body for one in first] == [one.body for one in again]


@pytest.mark.parametrize(("labels", "reason"), [
    ({"a-b": "x"}, "'a-b'"), ({"__name__": "x"}, "'__name__'"), ({"": "x"}, "''"),
    ({"pod": " "}, "pod: the value is empty"), ({"pod": "a\nb"}, "cannot be shown"),
    ({"pod": "x" * 2000}, "too long"), ({"host": "a", "host.name": "b"}, "host_name: given twice"),
    ({"thread.name": "a"}, "thread_name: samples have a label"),
    ({f"l{number}": "x" for number in range(21)}, "21 labels"),
])  # fmt: skip
def test_labels_that_some_server_refuses(labels: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        list(messages(parse_target(TARGETS[0]).form, some_waits(), labels))


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
