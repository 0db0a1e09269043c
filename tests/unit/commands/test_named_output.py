# SPDX-License-Identifier: Apache-2.0
"""Outputs: errors of writing carry the name that the user gave; who may read them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from perf_offcpu.cli import main
from perf_offcpu.commands.shared.output import open_output

RECORDING = Path(__file__).resolve().parents[2] / "data" / "demo.data"


@pytest.mark.parametrize("binary", [True, False])
def test_a_full_disk_is_reported_with_the_files_name(binary: bool) -> None:
    with (
        pytest.raises(OSError, match="No space left") as caught,
        open_output("/dev/full", binary=binary) as out,
    ):
        out.write((b"x" if binary else "x") * 100_000)
    assert caught.value.filename == "/dev/full"


@pytest.mark.parametrize(
    ("own", "old", "mode"), [(0o644, 0o664, 0o644), (0o600, 0o644, 0o600), (0o644, 0o640, 0o640)]
)
def test_who_may_read_the_output_may_read_all_recordings(
    own: int, old: int, mode: int, tmp_path: Path
) -> None:
    for name, bits in (("x.data", own), ("old.data", old)):
        shutil.copy(RECORDING, tmp_path / name)
        (tmp_path / name).chmod(bits)
    umask = os.umask(0o022)
    try:
        words = ["-i", str(tmp_path / "x.data"), "--diff", str(tmp_path / "old.data")]
        assert main(["convert", "--folded", *words, "-o", str(tmp_path / "out")]) == 0
        assert main(["report", "--html", str(tmp_path / "page"), *words[:2]]) == 0
    finally:
        os.umask(umask)
    assert (tmp_path / "out").stat().st_mode & 0o777 == mode
    assert (tmp_path / "page").stat().st_mode & 0o777 == own
