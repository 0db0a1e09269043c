# SPDX-License-Identifier: Apache-2.0
"""Add the man pages (from Documentation/*.txt) and scripts/offcpu.py to wheels and source distributions.

A wheel installs the pages in PREFIX/share/man/man1, where `man` looks for programs in PREFIX/bin. asciidoctor
makes them, as it makes perf's and git's. A source distribution holds them ready-made, so that installing from
it needs no asciidoctor; a wheel built from a checkout without asciidoctor has none, and the build says so.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SCRIPTS = {"scripts/offcpu.py": "share/perf-offcpu/offcpu.py"}
MAN = "man"
"""Directory of the pages in a source distribution."""


class BuildHook(BuildHookInterface[Any]):
    """Hook of hatchling for both targets."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files that are not in git, or not inside the package."""
        if version == "editable":
            return
        self.made = tempfile.mkdtemp(prefix="perf-offcpu-man.")
        pages = man_pages(Path(self.root), Path(self.made))
        if not pages:
            self.app.display_warning("no man pages: install asciidoctor and build again to have them")
        if self.target_name == "sdist":
            build_data["force_include"].update({str(page): f"{MAN}/{page.name}" for page in pages})
            return
        build_data["shared_data"].update({str(page): f"share/man/man1/{page.name}" for page in pages})
        build_data["shared_data"].update(
            {str(Path(self.root, name)): place for name, place in SCRIPTS.items()}
        )

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the pages: they are in the archive now."""
        if version != "editable":
            shutil.rmtree(self.made)


def man_pages(root: Path, directory: Path) -> list[Path]:
    """Return the pages of a source distribution, or make them in a directory; none without asciidoctor."""
    if ready := sorted((root / MAN).glob("*.1")):
        return ready
    if shutil.which("asciidoctor") is None:
        return []
    sources = sorted((root / "Documentation").glob("perf-offcpu*.txt"))
    command = ["asciidoctor", "--backend=manpage", "--failure-level=WARN", "--destination-dir", directory]
    subprocess.run([*command, *sources], check=True)
    return [directory / source.with_suffix(".1").name for source in sources]
