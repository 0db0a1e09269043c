# SPDX-License-Identifier: Apache-2.0
"""Header files, which hold credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf_offcpu.errors import UsageError
from perf_offcpu.push.opening import read_headers


def test_headers(tmp_path: Path) -> None:
    path = tmp_path / "headers"
    path.write_text("# tenants\n\nX-Scope-OrgID: 7\r\n  Authorization:Bearer a:b c  \n")
    assert read_headers(str(path)) == (("X-Scope-OrgID", "7"), ("Authorization", "Bearer a:b c"))


@pytest.mark.parametrize(("line", "reason"), [
    ("Authorization", "line 2: not a header"), ("Authorization: ", "line 2: not a header"),
    ("A b: geheim", "line 2: not a header"), ("X: geh\x00eim", "line 2: not a header"),
    ("X: geh\reim", "line 2: not a header"), ("X: gehëim", "line 2: not a header"),
    ("Content-Length: 5", "line 2: Content-Length is set by the protocol"),
    ("content-type: a/b", "line 2: content-type is set"),
    ("Transfer-Encoding: chunked", "set by the protocol"), ("Host: other", "set by the protocol"),
    ("grpc-timeout: 1S", "set by the protocol"), ("x-trace-bin: AAAA", "set by the protocol"),
    ("one: geheim", "line 2: one is there twice"),
])  # fmt: skip
def test_what_is_no_header(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "headers"
    path.write_bytes(f"One: 1\n{line}\n".encode())
    with pytest.raises(UsageError) as problem:
        read_headers(str(path))
    assert reason in str(problem.value) and "geheim" not in str(problem.value)


def test_a_file_that_is_too_long_or_none(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"#" * (1 << 17))
    for name in ("long", "none", "."):
        with pytest.raises(OSError):
            read_headers(str(tmp_path / name))
