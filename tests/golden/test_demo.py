# SPDX-License-Identifier: Apache-2.0
"""The stored recording, which scripts/demo shows where it cannot record."""

from __future__ import annotations

from pathlib import Path

from perf_offcpu.cli import main

HERE = Path(__file__).parent
DATA = HERE.parent / "data"


def test_the_stored_recording_has_its_known_output(tmp_path: Path) -> None:
    out = tmp_path / "out.folded"
    symbols = ["--symfs", str(DATA / "demo.symfs"), "--kallsyms", str(DATA / "demo.kallsyms")]
    assert main(["convert", "-f", "--folded", "-i", str(DATA / "demo.data"), "-o", str(out), *symbols]) == 0
    assert out.read_text() == (HERE / "demo.folded").read_text()
