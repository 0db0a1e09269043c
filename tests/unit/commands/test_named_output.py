# SPDX-License-Identifier: Apache-2.0
"""Errors of writing carry the name that the user gave."""

from __future__ import annotations

import pytest

from perf_offcpu.commands.shared.output import open_output


@pytest.mark.parametrize("binary", [True, False])
def test_a_full_disk_is_reported_with_the_files_name(binary: bool) -> None:
    with (
        pytest.raises(OSError, match="No space left") as caught,
        open_output("/dev/full", binary=binary) as out,
    ):
        out.write((b"x" if binary else "x") * 100_000)
    assert caught.value.filename == "/dev/full"
