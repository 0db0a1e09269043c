# SPDX-License-Identifier: Apache-2.0
"""Compile the programs of tests/workload, and others that tests write."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

WORKLOAD = Path(__file__).parents[1] / "workload"
kept: Path | None = None
"""Directory of programs that were compiled before; None to compile each time."""


def build(source: str | Path, program: Path, *flags: str) -> Path:
    """Compile a C or C++ file, or link one of C++, in tests/workload where the path is relative."""
    path = WORKLOAD / source
    command = ["g++" if path.suffix in (".cpp", ".o") else "gcc", *flags, "-pthread"]
    if kept is None:
        subprocess.run([*command, "-o", program, path], check=True, timeout=300)
        return program
    copy = kept / f"{path.stem}-{_key(command, path)}"
    if not copy.exists():
        with tempfile.TemporaryDirectory(dir=kept) as directory:
            made = Path(directory, program.name)
            subprocess.run([*command, "-o", made, path], check=True, timeout=300)
            made.rename(copy)
    shutil.copy(copy, program)
    return program


def _key(command: list[str], source: Path) -> str:
    """Return a hash of the command, the source with the headers beside it, the compiler and libc."""
    tool = Path(shutil.which(command[0]) or "/nonexistent").resolve()
    place = "" if source.suffix == ".o" else source.parent
    contents = [one.read_bytes() for one in (source, *sorted(source.parent.glob("*.h")))]
    facts = (command, place, contents, tool, tool.stat().st_mtime_ns, os.confstr("CS_GNU_LIBC_VERSION"))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def addresses(program: Path) -> dict[str, int]:
    """Return the addresses of its symbols by name, as nm reads them."""
    text = subprocess.run(["nm", program], check=True, timeout=60, capture_output=True, text=True).stdout
    return {line.split()[-1]: int(line.split()[0], 16) for line in text.splitlines() if line[0] != " "}
