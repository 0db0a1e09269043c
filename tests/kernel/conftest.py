# SPDX-License-Identifier: Apache-2.0
"""What the tests on the running kernel share."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel import napping


@pytest.fixture(scope="session")
def napper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built napper.c."""
    program = tmp_path_factory.mktemp("napper") / "napper"
    napping.build(program)
    return program
