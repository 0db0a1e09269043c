# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests on the running kernel."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel import napping
from kernel.whole_stacks import AS_POSTGRES, STACKS, build


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


@pytest.fixture
def database() -> Iterator[Path]:
    """A directory that postgres, who cannot enter pytest's, can use."""
    directory = Path(tempfile.mkdtemp(prefix="waits-of-postgres-"))
    shutil.chown(directory, "postgres", "postgres")
    shutil.copy(STACKS / "postgres.sh", directory / "run")
    try:
        subprocess.run([*AS_POSTGRES, directory / "run", "init", directory], check=True, timeout=60)
        yield directory
    finally:
        shutil.rmtree(directory)
