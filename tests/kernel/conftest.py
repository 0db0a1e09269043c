# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests on the running kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel import napping
from kernel.whole_stacks import build


@pytest.fixture(scope="session")
def napper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build napper.c."""
    program = tmp_path_factory.mktemp("napper") / "napper"
    napping.build(program)
    return program


@pytest.fixture(scope="session")
def cpp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build tests/workload/stacks/waits.cpp."""
    return build("waits", tmp_path_factory.mktemp("stacks") / "waits")
