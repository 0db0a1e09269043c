# SPDX-License-Identifier: Apache-2.0
"""Each file names its licence as https://spdx.org specifies; bpf/ has its own."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ANYWHERE, IN_KERNEL = "Apache-2.0", "GPL-2.0-only OR BSD-2-Clause"

CODE = {".py", ".c", ".h", ".sh", ".js", ".css", ".html", ".toml", ".yml"}
"""And programs without a suffix. Texts and data have no room for a comment."""
# Not written by hand: environments, caches, builds, recordings of the tests.
PASSED_OVER = {ROOT / name for name in ".git .venv build dist demo-output LICENSES tests/data".split()}
MADE = re.compile(r".*_cache|__pycache__|\.hypothesis|.*\.egg-info")


def files() -> list[Path]:
    written: list[Path] = []
    for directory, names, files_here in os.walk(ROOT):
        names[:] = [n for n in names if Path(directory, n) not in PASSED_OVER and not MADE.fullmatch(n)]
        written += [Path(directory, name) for name in files_here]
    programs = [path for path in written if not path.suffix and path.is_file() and os.access(path, os.X_OK)]
    return sorted([*programs, *(path for path in written if path.suffix in CODE)])


def licence_of(path: Path) -> str:
    head = b"\n".join(path.read_bytes().splitlines()[:4]).decode()
    match = re.search(r"SPDX-License-Identifier: ([\w. -]+?)(?: \*/| -->|$)", head, re.MULTILINE)
    return match[1] if match else ""


def test_files_name_their_licence_in_their_first_lines() -> None:
    named = {path.relative_to(ROOT).as_posix(): licence_of(path) for path in files()}
    in_kernel = {path for path in named if path.startswith("bpf/") or path.endswith(".bpf.c")}
    wrong = [path for path in named if named[path] != (IN_KERNEL if path in in_kernel else ANYWHERE)]
    assert not wrong, "add a line SPDX-License-Identifier"
    assert {"bpf/off_cpu.h", "scripts/test", "tests/unit/test_licences.py", ".ci/run"} <= named.keys()


def test_texts_of_all_licences_are_there() -> None:
    named = {name for words in (ANYWHERE, IN_KERNEL) for name in words.split(" OR ")}
    assert {path.stem for path in (ROOT / "LICENSES").iterdir()} == named
