# SPDX-License-Identifier: Apache-2.0
"""Build-ids of mapped objects: of their maps, else of the header."""

from __future__ import annotations

from pathlib import Path

from builders.hosts import CLOCK, existing, mapped, tick
from builders.recording import write

from perf_offcpu.abi.features import Feature
from perf_offcpu.decode.load import load_recording
from perf_offcpu.perfdata.features import BuildId, build_id_body


def test_maps_come_first_and_paths_of_several_files_have_none(tmp_path: Path) -> None:
    listed = {b"/bin/a": 1, b"/bin/b": 2, b"/bin/c": 3, b"/bin/absent": 4}
    entries = [BuildId(-1, 2, bytes([tag]).hex() * 20, path) for path, tag in listed.items()]
    entries.append(BuildId(-1, 2, "05" * 20, b"/bin/c"))
    records = [*existing(7, "x"), tick(1000), mapped(7, 0x5000, b"/bin/d")]
    records += [mapped(7, 0x1000, b"/bin/a"), mapped(7, 0x2000, b"/bin/b", b"\x09" * 20)]
    records.append(mapped(7, 0x3000, b"/bin/c"))
    path = write(tmp_path / "x", [CLOCK], records, {Feature.BUILD_ID: build_id_body(entries)})
    recording = load_recording(path)
    recording.check()
    strings, dsos = recording.strings, recording.dsos
    found = {
        strings[path]: strings[build_id]
        for path, build_id in zip(dsos.path.tolist(), dsos.build_id.tolist(), strict=True)
    }
    assert found == {"/bin/a": "01" * 20, "/bin/b": "09" * 20, "/bin/c": "", "/bin/d": ""}
