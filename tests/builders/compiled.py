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
