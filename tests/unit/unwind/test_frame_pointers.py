# SPDX-License-Identifier: Apache-2.0
"""A program built with frame pointers is known from one built without."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.compiled import build

from perf_offcpu.unwind.frame_pointers import frame_pointer_share, keeps_frame_pointers


@pytest.mark.parametrize(
    ("option", "keeps"), [("-fno-omit-frame-pointer", True), ("-fomit-frame-pointer", False)]
)
def test_how_a_program_was_built(option: str, keeps: bool, tmp_path: Path) -> None:
    program = str(build("waiter.c", tmp_path / "program", "-O2", option))
    share = frame_pointer_share(program)
    assert share is not None and (share > 0.9 if keeps else share < 0.2)
    assert keeps_frame_pointers(program) is keeps


def test_what_does_not_tell_counts_as_without() -> None:
    assert not keeps_frame_pointers("/etc/passwd")
    assert not keeps_frame_pointers("/nowhere")
    assert not keeps_frame_pointers("/dev/null")
