# SPDX-License-Identifier: Apache-2.0
"""Add man pages (Documentation/*.txt), scripts/offcpu.py and service/ to wheels and source distributions.

A wheel installs the pages in PREFIX/share/man/man1, where `man` looks for programs in PREFIX/bin. asciidoctor
makes them, as it makes perf's and git's. A source distribution holds them ready-made, so that installing from
it needs no asciidoctor. Without asciidoctor a wheel from a checkout has plainer pages: the same text, with
the marks of asciidoc inside lines.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SCRIPTS = {
    "scripts/offcpu.py": "share/perf-offcpu/offcpu.py",
    "service/perf-offcpu-agent.service": "share/perf-offcpu/perf-offcpu-agent.service",
    "service/daemonset.yaml": "share/perf-offcpu/daemonset.yaml",
    "service/Containerfile": "share/perf-offcpu/Containerfile",
    "service/agent.toml": "share/perf-offcpu/agent.toml",
    "service/alerts.yaml": "share/perf-offcpu/alerts.yaml",
    "service/grafana.json": "share/perf-offcpu/grafana.json",
}
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
        if self.target_name == "sdist":
            if not pages:
                self.app.display_warning("no man pages: install asciidoctor and build again to have them")
            build_data["force_include"].update({str(page): f"{MAN}/{page.name}" for page in pages})
            return
        pages = pages or plain_pages(Path(self.root), Path(self.made))
        build_data["shared_data"].update({str(page): f"share/man/man1/{page.name}" for page in pages})
        build_data["shared_data"].update({str(Path(self.root, name)): place for name, place in SCRIPTS.items()})

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
    command = ["asciidoctor", "--backend=manpage", "--failure-level=WARN", f"--destination-dir={directory}"]
    subprocess.run([*command, *map(str, sources)], check=True)
    return [directory / source.with_suffix(".1").name for source in sources]


def plain_pages(root: Path, directory: Path) -> list[Path]:
    """Make the pages in a directory without asciidoctor."""
    sources = sorted((root / "Documentation").glob("perf-offcpu*.txt"))
    for source in sources:
        (directory / f"{source.stem}.1").write_text(plain_page(with_includes(source)), "utf-8")
    return [directory / f"{source.stem}.1" for source in sources]


def with_includes(source: Path) -> str:
    """Return the text of a page with the files that it includes: options that several verbs share."""
    return re.sub(
        r"^include::(.+)\[\]$",
        lambda include: source.with_name(include[1]).read_text("utf-8").rstrip(),
        source.read_text("utf-8"),
        flags=re.MULTILINE,
    )


def plain_page(text: str) -> str:
    """Return asciidoc as requests of man(7): headings, terms, items, and blocks that keep their lines."""
    text = re.sub(r"linkperf:([\w-]+)\[1\]", r"\1(1)", text.replace("\\", "\\e"))
    text = re.sub(r"(\n\t.*\n)(?=\S.*::\n)", r"\1\n", text)  # a term after the text of another
    title, *paragraphs = re.split(r"\n\n+", text.strip())
    page = [f'.TH "{title.partition("(")[0].upper()}" 1']
    for paragraph in paragraphs:
        lines = paragraph.split("\n")
        if re.fullmatch("-+|~+", "".join(lines[1:2])):
            page.append(f".{'SH' if lines[1][0] == '-' else 'SS'} {lines[0]}")
            lines = lines[2:]
        terms = [line for line in lines if line.endswith("::")]
        lines = lines[len(terms) :]
        if terms:
            page += [".TP", f".B {', '.join(terms).replace('::', '')}"]
        elif re.match(r"\t|\[|\||----", "".join(lines[:1])):
            kept = (line for line in lines if not re.fullmatch(r"\[.*\]|\|=+|-+", line))
            page += [".PP", ".nf", *map(_text, kept), ".fi"]
            continue
        elif page[-1][:3] not in (".SH", ".SS"):
            page.append(".PP")
        for line in map(str.strip, lines):
            page += [".br"] if line == "+" else [".br", rf"\(bu {line[2:]}"] if line[:2] == "* " else [_text(line)]
    return "\n".join(page).replace("-", "\\-") + "\n"


def _text(line: str) -> str:
    """Return a line of text that man(7) does not take for a request."""
    return rf"\&{line}" if line.startswith((".", "'")) else line
