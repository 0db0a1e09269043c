# SPDX-License-Identifier: Apache-2.0
"""Lengths of time, sizes and names: one syntax for input, harmless and visible text for any bytes."""

import json
import mmap
import re
import unicodedata

import pytest
from builders.examples import examples
from builders.refused import refused
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu import text
from perf_offcpu.errors import UsageError
from perf_offcpu.units import parse_size, parse_time, size_bytes, time_ns


@pytest.mark.parametrize(("text", "ns"), examples("unit/examples.txt", "times"))
def test_times(text: str, ns: str) -> None:
    assert time_ns(text, "ms") == int(ns)
    assert time_ns(text) == (int(ns) if text[-1].isalpha() else None), "without a unit there must be a suffix"


@pytest.mark.parametrize(("text", "size"), examples("unit/examples.txt", "sizes"))
def test_sizes(text: str, size: str) -> None:
    assert size_bytes(text, 4096) == int(size)
    assert size_bytes(text, 0) == (int(size) if text[-1].isalpha() else None)


@pytest.mark.parametrize("text", [
    "", ".", "-1", "1e3", "5 minutes", "5x", "\u0665", "inf", "nan", "s", "M", "9" * 16,
])  # fmt: skip
def test_others(text: str) -> None:
    assert time_ns(text, "s") is None and size_bytes(text) is None
    with pytest.raises(UsageError, match=r"^-x .*: not a length of time \(.*; a number alone is in s\)$"):
        parse_time("-x", text, "s")
    with pytest.raises(UsageError, match=r"^-x .*: not a size \(.*; a number alone is in pages\)$"):
        parse_size("-x", text, ("pages", mmap.PAGESIZE))


def test_numbers_of_a_file() -> None:
    times = parse_time("-x", 2, "ms"), parse_time("-x", 0.25, "ms")
    assert (*times, parse_size("-x", 7)) == (2_000_000, 250_000, 7)
    for value in (True, None, [1], float("nan"), -1, 1e300):
        with pytest.raises(UsageError, match="not a length of time"):
            parse_time("-x", value, "ms")


@pytest.mark.parametrize(("words", "sentence"), examples("unit/sentences.txt", "units"))
def test_each_option_says_it_alike(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f": {sentence}" in refused(capsys, *words.split())


ANY_BYTES = st.binary(max_size=40).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(("raw", "shown"), examples("unit/examples.txt", "printable"))
def test_printable(raw: str, shown: str) -> None:
    assert text.printable(raw.encode().decode("unicode_escape")) == shown


@given(ANY_BYTES | st.text(st.characters(codec=None), max_size=40))
def test_printable_text_drives_nothing(raw: str) -> None:
    shown = text.printable(raw)
    shown.encode("utf-8")
    assert len(shown.splitlines()) <= 1
    assert not {"Cc", "Cs", "Zl", "Zp"} & {unicodedata.category(char) for char in shown}
    assert not {"RLO", "LRO", "RLE", "LRE", "RLI", "LRI", "FSI"} & {unicodedata.bidirectional(c) for c in shown}


@pytest.mark.parametrize(("symbol", "dso", "address", "label"), examples("unit/examples.txt", "frame labels"))
def test_frame_label(symbol: str, dso: str, address: str, label: str) -> None:
    assert text.frame_label(symbol, dso, int(address, 16) if address else None) == label


@pytest.mark.parametrize(("comm", "pid", "tid", "label"), examples("unit/examples.txt", "thread labels"))
def test_thread_label(comm: str, pid: str, tid: str, label: str) -> None:
    assert text.thread_label(comm, *(int(id_) if id_ else None for id_ in (pid, tid))) == label


@pytest.mark.parametrize(("label", "field"), examples("unit/examples.txt", "folded fields"))
def test_folded_field(label: str, field: str) -> None:
    assert text.folded_field(label) == field


def test_folded_root() -> None:
    assert text.folded_root("my thread;1 2") == "my_thread:1_2"
    assert text.folded_root("#!sh") == "\\x23!sh"


@given(ANY_BYTES)
def test_a_folded_line_is_read_back_as_it_was_meant(raw: str) -> None:
    """With the two expressions of flamegraph.pl."""
    field = text.folded_field(text.printable(raw))
    stack, weight = re.fullmatch(r"(.*)\s+?(\d+(?:\.\d*)?)", f"comm;{field} 12").groups()  # type: ignore[union-attr]
    assert (stack, weight) == (f"comm;{field}", "12")
    assert not re.fullmatch(r"(.*)\s+?(\d+(?:\.\d*)?)", stack), "taken for a line of difffolded.pl"


@given(st.text())
def test_json_in_a_script_element_cannot_leave_it(value: str) -> None:
    written = text.for_script_element(json.dumps([value, "</script><!--<script>"]))
    assert "<" not in written and ">" not in written
    assert json.loads(written) == [value, "</script><!--<script>"]
