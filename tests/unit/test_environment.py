# SPDX-License-Identifier: Apache-2.0
"""Are all variables that name code or paths ignored for root? (How: tests/kernel/test_hostile_users.py)"""

import re
from pathlib import Path

from perf_offcpu.environment import ALLOWED, FOLLOWED

ROOT = Path(__file__).resolve().parents[2]
ASKED = re.compile(r"environ(?:\.get\(|\[)\"(\w+)\"|\"(\w+)\" in os\.environ")


def test_every_variable_that_is_asked_for_is_ignored_or_allowed() -> None:
    asked = {
        name
        for path in (ROOT / "perf_offcpu").rglob("*.py")
        if path.name != "environment.py"
        for found in ASKED.finditer(path.read_text())
        for name in found.groups()
        if name
    }
    assert {"XDG_CACHE_HOME", "LD_LIBRARY_PATH", "LESS"} <= asked <= ALLOWED | set(FOLLOWED)


def test_the_page_names_every_variable() -> None:
    page = (ROOT / "Documentation" / "security.md").read_text()
    assert [name for name in (*FOLLOWED, *ALLOWED) if name not in page and not name.startswith("LC_")] == []
