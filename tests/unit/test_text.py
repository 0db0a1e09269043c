# SPDX-License-Identifier: Apache-2.0
"""Names as text: harmless, visible and UTF-8, with any bytes in a name."""

from __future__ import annotations

import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu import text

ANY_BYTES = st.binary(max_size=40).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(("raw", "shown"), [
    ("plain::name<int>", "plain::name<int>"), ("größe 名前", "größe 名前"), ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
    ("\x1b[31mred\x07", "\\x1b[31mred\\x07"), ("\x9b31m", "\\x9b31m"),
    ("a\u202eb\u2028c\u200bd", "a\\u202eb\\u2028c\\u200bd"),
    (b"caf\xe9 \xff".decode("utf-8", "surrogateescape"), "caf\\xe9 \\xff"), ("\ud800", "\\ud800"),
])  # fmt: skip
def test_printable(raw: str, shown: str) -> None:
    assert text.printable(raw) == shown


@given(ANY_BYTES | st.text(st.characters(codec=None), max_size=40))
def test_printable_text_drives_nothing(raw: str) -> None:
    shown = text.printable(raw)
    shown.encode("utf-8")
    assert len(shown.splitlines()) <= 1
    assert not {"Cc", "Cs", "Zl", "Zp"} & {unicodedata.category(char) for char in shown}
    assert not {"RLO", "LRO", "RLE", "LRE", "RLI", "LRI", "FSI"} & {
        unicodedata.bidirectional(c) for c in shown
    }


@pytest.mark.parametrize(("symbol", "dso", "address", "label"), [
    ("main", "/bin/x", None, "main"), ("main", "/bin/x", 16, "main"),
    ("", "/usr/lib/libc.so.6", None, "[libc.so.6]"),
    ("", "/usr/lib/libc.so.6", 0x1F3A, "[libc.so.6 <1f3a>]"), ("", "[vdso]", None, "[vdso]"),
    ("", "[vdso]", 16, "[vdso <10>]"), ("", "[kernel.kallsyms]", None, "[kernel.kallsyms]"),
    ("", "//anon", None, "[anon]"), ("", "/memfd:jit (deleted)", None, "[memfd:jit (deleted)]"),
    ("", "[JIT] tid 17", None, "[[JIT] tid 17]"), ("", "/ends/in/", None, "[unknown]"),
    ("", "", None, text.UNKNOWN), ("", "", 255, "[unknown <ff>]"),
])  # fmt: skip
def test_frame_label(symbol: str, dso: str, address: int | None, label: str) -> None:
    assert text.frame_label(symbol, dso, address) == label


@pytest.mark.parametrize(
    ("pid", "tid", "label"),
    [(None, None, "sh"), (7, None, "sh-7"), (7, 8, "sh-7/8"), (-1, 8, "sh-?/8"), (-1, None, "sh-?")],
)
def test_thread_label(pid: int | None, tid: int | None, label: str) -> None:
    assert text.thread_label("sh", pid, tid) == label


def test_a_thread_without_comm_has_a_label() -> None:
    assert text.thread_label("", 7) == "[unknown]-7"


@pytest.mark.parametrize(("label", "field"), [
    ("a;b", "a:b"), ("operator 5", "operator_5"), ("f 1 2.", "f 1_2."), ("g(int) 1.5", "g(int)_1.5"),
    ("v8 5x", "v8 5x"), ("7", "7"),
])  # fmt: skip
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
