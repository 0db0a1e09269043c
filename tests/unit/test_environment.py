# SPDX-License-Identifier: Apache-2.0
"""Are all variables that name code or paths ignored for root? (How: tests/kernel/test_hostile_users.py)"""

from __future__ import annotations

import re
from pathlib import Path

from perf_offcpu.environment import NAMING

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_PATHS = {"COLUMNS", "NO_COLOR", "TERM", "PERF_OFFCPU_CACHE_BYTES", "PERF_OFFCPU_TRACEBACK"}
ASKED = re.compile(r"environ(?:\.get\(|\[)\"(\w+)\"|\"(\w+)\" in os\.environ")


def test_every_variable_that_is_asked_for_is_ignored_or_names_no_path() -> None:
    asked = {
        name
        for path in (ROOT / "perf_offcpu").rglob("*.py")
        if path.name != "environment.py"
        for found in ASKED.finditer(path.read_text())
        for name in found.groups()
        if name
    }
    assert {"XDG_CACHE_HOME", "LD_LIBRARY_PATH"} <= asked <= set(NAMING) | WITHOUT_PATHS


def test_the_page_names_every_variable() -> None:
    page = (ROOT / "Documentation" / "security.md").read_text()
    assert [name for name in NAMING if name not in page] == []
