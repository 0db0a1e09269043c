# SPDX-License-Identifier: Apache-2.0
"""Each file names its licence as https://spdx.org specifies; bpf/ has its own."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ANYWHERE, IN_KERNEL = "Apache-2.0", "GPL-2.0-only OR BSD-2-Clause"

CODE = {".py", ".c", ".h", ".sh", ".js", ".css", ".html", ".toml", ".yml"}
"""And programs without a suffix. Texts and data have no room for a comment."""
# Not written here: environments, caches, builds, recordings of the tests.
PASSED_OVER = {".git", ".venv", "__pycache__", "build", "dist", "demo-output", "LICENSES", "data"}


def files() -> list[Path]:
    """Return all hand-written files of the tree."""
    found = []
    for directory, names, files_here in os.walk(ROOT):
        kept = {name for name in names if name not in PASSED_OVER}
        names[:] = sorted(name for name in kept if not re.search(r"_cache$|^\.hypothesis$|\.egg-info$", name))
        found += [Path(directory, name) for name in files_here]
    return sorted(path for path in found if path.suffix in CODE or is_program(path))


def is_program(path: Path) -> bool:
    return not path.suffix and path.is_file() and os.access(path, os.X_OK)


@pytest.mark.parametrize("path", [path.relative_to(ROOT).as_posix() for path in files()])
def test_file_names_its_licence_in_its_first_lines(path: str) -> None:
    text = (ROOT / path).read_bytes()
    head = b"\n".join(text.splitlines()[:4]).decode()
    match = re.search(r"SPDX-License-Identifier: ([\w. -]+?)(?: \*/| -->|$)", head, re.MULTILINE)
    assert match is not None, f"{path}: add a line SPDX-License-Identifier"
    assert match[1] == (IN_KERNEL if path.startswith("bpf/") else ANYWHERE)


def test_texts_of_all_licences_are_there() -> None:
    named = {name for words in (ANYWHERE, IN_KERNEL) for name in words.split(" OR ")}
    assert {path.stem for path in (ROOT / "LICENSES").iterdir()} == named
