# SPDX-License-Identifier: Apache-2.0
"""Examine the Python packages and the perf of this machine for `perf-offcpu doctor`.

perf is optional. Its features for recordings depend on its version and on its Python.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from perf_offcpu.collect.doctor.kernel import Finding, State
from perf_offcpu.environment import child_environment
from perf_offcpu.resources import installed_version

READING, PERF = "reading", "perf"
_RETYPES = (6, 16)
"""First version of perf that re-types raw off-cpu samples."""
_EMBEDS_UNTIL = (7, 3)
"""Last version of perf that embeds Python."""
_SCRIPT_NEEDS = {"numpy": "numpy", "pyelftools": "elftools"}
"""Package required by scripts/offcpu.py → its module."""


def examine_reading() -> Iterator[Finding]:
    """Examine the packages for reading, symbolizing and converting."""
    for package, purpose in (
        ("numpy", ""),
        ("pyelftools", "names of functions"),
        ("zstandard", "compressed recordings"),
        ("multi-demangle", "C++ names"),
    ):
        if found := installed_version(package):
            yield Finding(READING, package, State.WORKS, found)
        else:
            advice = f"pip install {package}, for {purpose or 'everything'}"
            yield Finding(READING, package, State.MISSING, "not installed", advice)


def examine_perf() -> Iterator[Finding]:
    """Examine perf: its version, how it reads off-cpu samples, its Python."""
    said = _output("perf", "--version")
    match = re.search(r"(\d+)\.(\d+)\S*", said)
    if match is None:
        advice = "install perf (Debian: apt install linux-perf) to open recordings with it, too"
        yield Finding(PERF, "perf", State.LIMITED, "not found, or not for this kernel", advice)
        return
    version = int(match[1]), int(match[2])
    yield Finding(PERF, "perf", State.WORKS, f"{match[0]}, {shutil.which('perf')}")
    if version >= _RETYPES:
        yield Finding(PERF, "off-cpu samples", State.WORKS, "perf report shows recordings as they are")
    else:
        found = "perf before 6.16 shows their number, neither times nor stacks"
        yield Finding(
            PERF, "off-cpu samples", State.LIMITED, found, "perf-offcpu inject -i perf.data -o for-perf.data"
        )
    yield _python(version)


def _python(version: tuple[int, int]) -> Finding:
    part = "scripts/offcpu.py"
    if version > _EMBEDS_UNTIL:
        return Finding(PERF, part, State.WORKS, "this perf runs scripts as programs of their own")
    library = embedded_python()
    if library is None:
        advice = "run scripts/offcpu.py -i perf.data without perf"
        return Finding(PERF, part, State.LIMITED, "this perf was built without Python", advice)
    missing = [package for package, module in _SCRIPT_NEEDS.items() if not _has_module(library, module)]
    if not missing:
        return Finding(
            PERF, part, State.WORKS, f"perf's Python is {library}, with {' and '.join(_SCRIPT_NEEDS)}"
        )
    found = f"perf's Python is {library}, without {' and '.join(missing)}"
    debian = " ".join(f"python3-{package}" for package in missing)
    advice = f"apt install {debian}, or {' and '.join(missing)} for Python {library}"
    return Finding(PERF, part, State.LIMITED, found, advice)


def embedded_python() -> str | None:
    """Return the version ("3.11") of the Python in perf; None for a perf without Python."""
    if re.search(r"libpython:\s*\[\s*OFF", _output("perf", "version", "--build-options")):
        return None
    path = shutil.which("perf")
    linked = _output("ldd", path) if path else ""
    match = re.search(r"libpython(\d+\.\d+)", linked)
    return match[1] if match else None


def _has_module(python: str, module: str) -> bool:
    """Return True if a system Python finds a module: by its interpreter or, without one, by files."""
    if program := shutil.which(f"python{python}", path="/usr/bin:/usr/local/bin"):
        return "yes" in _output(program, "-c", f"import {module}; print('yes')")
    directories = ("/usr/lib/python3/dist-packages", f"/usr/local/lib/python{python}/dist-packages")
    # direct: directories of the system's Python
    return any(Path(directory, module).is_dir() for directory in directories)


def _output(*command: str) -> str:
    """Return the standard output of a command; "" for a command that fails or takes too long."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
            check=False,
            env=child_environment(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
