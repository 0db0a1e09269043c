# SPDX-License-Identifier: Apache-2.0
"""Compile the programs of tests/workload, and others that tests write."""

import subprocess
from pathlib import Path

WORKLOAD = Path(__file__).parents[1] / "workload"


def build(source: str | Path, program: Path, *flags: str) -> Path:
    """Compile a C or C++ file, or link one of C++, in tests/workload where the path is relative."""
    compiler = "g++" if Path(source).suffix in (".cpp", ".o") else "gcc"
    subprocess.run([compiler, *flags, "-pthread", "-o", program, WORKLOAD / source], check=True, timeout=300)
    return program


def addresses(program: Path) -> dict[str, int]:
    """Return the addresses of its symbols by name, as nm reads them."""
    text = subprocess.run(["nm", program], check=True, timeout=60, capture_output=True, text=True).stdout
    return {line.split()[-1]: int(line.split()[0], 16) for line in text.splitlines() if line[0] != " "}
