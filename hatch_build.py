# SPDX-License-Identifier: Apache-2.0
"""Build man pages of Documentation/*.txt and put them, and scripts/offcpu.py, where an installation has them.

A wheel takes the pages to PREFIX/share/man/man1, beside whose bin/ `man` looks. They are made by asciidoctor,
as perf's and git's are. A source distribution holds them ready made, so that nobody who installs from it
needs asciidoctor; a wheel built from a checkout without asciidoctor has none, and the build says so.
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
"""Where a source distribution keeps the pages."""


class BuildHook(BuildHookInterface[Any]):
    """hatchling's custom hook for both targets."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add what is not in git or does not lie inside the package."""
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
        """Remove what was made: it is in the archive now."""
        if version != "editable":
            shutil.rmtree(self.made)


def man_pages(root: Path, directory: Path) -> list[Path]:
    """The pages, made in a directory, or the ready ones of a source distribution, or none."""
    if ready := sorted((root / MAN).glob("*.1")):
        return ready
    if shutil.which("asciidoctor") is None:
        return []
    sources = sorted((root / "Documentation").glob("perf-offcpu*.txt"))
    command = ["asciidoctor", "--backend=manpage", "--failure-level=WARN", "--destination-dir", directory]
    subprocess.run([*command, *sources], check=True)
    return [directory / source.with_suffix(".1").name for source in sources]
