# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests on the running kernel."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.compiled import build
from builders.program import run
from kernel.two_hosts import Link, two_hosts
from kernel.whole_stacks import AS_POSTGRES, STACKS, compiled


@pytest.fixture(scope="session")
def napper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = "-O1 -g -Wall -static -no-pie -fno-omit-frame-pointer -fno-optimize-sibling-calls".split()
    flags.append("-mno-omit-leaf-frame-pointer")  # the usual one on arm64, where doze() would hide its caller
    return build(Path(__file__).with_name("napper.c"), tmp_path_factory.mktemp("napper") / "napper", *flags)


@pytest.fixture(scope="session")
def cpp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("waits.cpp", tmp_path_factory.mktemp("stacks"), "-g")


@pytest.fixture(scope="session")
def recorded_waiter(waiter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of the workload with sums, budgets, on-CPU samples, and stacks as they are sent."""
    path = tmp_path_factory.mktemp("recorded_waiter") / "perf.data"
    run("record", "--call-graph", "fp", "-o", path, "--", waiter, "--rounds", "5", cwd=path.parent)
    return path


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


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    with two_hosts() as link:
        yield link


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory that everybody can reach and write to."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == os.getuid():
            directory.chmod(directory.stat().st_mode | 0o755)
    tmp_path.chmod(0o777)
    return tmp_path
