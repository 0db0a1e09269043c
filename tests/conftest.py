# SPDX-License-Identifier: Apache-2.0
"""What all tests share: the built workload, the installed command, and who may touch the kernel."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from builders import compiled
from builders.program import PATIENCE
from hypothesis import settings

from perf_offcpu.objects import search

TESTS = Path(__file__).resolve().parent
DEBUG_ROOTS = search.DEBUG_ROOTS
KEPT = re.compile(r"PATH|TMPDIR|CC|CI|\w+_proxy|(PERF_OFFCPU_TEST|PYTEST|HYPOTHESIS|COVERAGE|COV|PIP)_\w+|PYTHON\w+")
"""Variables that tests take over: the others are settings of a user, of whom no result may depend."""

# A deadline for each example judges how busy the machine is; pytest-timeout ends what hangs.
EXAMPLES = int(os.environ.get("PERF_OFFCPU_TEST_EXAMPLES", "20"))
database = settings().database if os.access(TESTS.parent, os.W_OK) else None
settings.register_profile("patient", deadline=None, max_examples=EXAMPLES, database=database)
settings.load_profile("patient")


def _patient(method: Callable[..., Any]) -> Callable[..., Any]:
    def wait(*args: Any, **options: Any) -> Any:
        given = signature(method).bind(*args, **options)
        if given.arguments.get("timeout") is not None:
            given.arguments["timeout"] *= PATIENCE
        return method(*given.args, **given.kwargs)

    return wait


if PATIENCE != 1:
    # subprocess.run, check_call and the like wait through these two.
    subprocess.Popen.communicate = _patient(subprocess.Popen.communicate)  # type: ignore[method-assign]
    subprocess.Popen.wait = _patient(subprocess.Popen.wait)  # type: ignore[method-assign]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in tests/kernel is marked so: `-m "not kernel"` leaves it out. Others need root, no more."""
    for item in items:
        if item.path.is_relative_to(TESTS / "kernel"):
            item.add_marker("kernel")
        elif item.get_closest_marker("kernel"):
            item.add_marker("beside")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Choose the debug files that names come from, before fixtures of modules read them. Those of the machine name
    nothing in tests that need no kernel. A kernel test without root fails and says what to do: skipped, it would look
    like passed."""
    of_kernel = item.get_closest_marker("kernel") is not None
    search.DEBUG_ROOTS = DEBUG_ROOTS if of_kernel else ("/nonexistent",)
    if of_kernel and os.geteuid() != 0:
        pytest.fail('needs root: use scripts/test, or leave kernel tests out with -m "not kernel"', pytrace=False)


@pytest.fixture(scope="session", autouse=True)
def own_caches(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> None:
    """No test sees or changes what this user's caches of symbols hold; commands it starts neither. Workers of a run
    share one, as readers and writers of different programs do. BPF programs are compiled once for all runs of the
    tests: they are named by all that they are made of, and tests/kernel/test_bpf_cache.py, which compiles them anew,
    holds that. So are the programs of tests/workload."""
    caches = tmp_path_factory.mktemp("caches")
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    cache = (tmp_path_factory.getbasetemp().parent if is_worker else caches) / "cache"
    if request.config.pluginmanager.has_plugin("cacheprovider"):
        (cache / "perf-offcpu").mkdir(parents=True, exist_ok=True)
        programs = request.config.cache.mkdir("programs")
        with suppress(FileExistsError):
            (cache / "perf-offcpu" / "programs").symlink_to(programs)
        compiled.kept = request.config.cache.mkdir("builds")
    # perf itself looks into its configuration. What it keeps is not for ours, whose answers it would change.
    # On a busy machine it gives up addr2line after its usual 5 s, and says so.
    config = f"[buildid]\n\tdir = {caches / 'debug-of-perf'}\n[core]\n\taddr2line-timeout = 300000\n"
    (caches / "perfconfig").write_text(config)
    home = caches / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    os.environ.clear()
    os.environ |= kept | {"HOME": str(home), "LANG": "C.UTF-8", "TZ": "UTC", "XDG_CACHE_HOME": str(cache)}
    os.environ |= {"PERF_BUILDID_DIR": str(caches / "debug"), "PERF_CONFIG": str(caches / "perfconfig")}
    os.environ["DEBUGINFOD_CACHE_PATH"] = str(caches / "debuginfod")
    time.tzset()
    os.umask(0o022)


@pytest.fixture(autouse=True)
def own_build_ids_and_umask() -> Iterator[None]:
    """Remove files kept by build-id after each test: they would name addresses in recordings of others."""
    yield
    os.umask(0o022)
    if os.path.lexists(kept := os.environ["PERF_BUILDID_DIR"]):
        shutil.rmtree(kept)


@pytest.fixture(scope="session")
def waiter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/workload/waiter.c, built once a session; `workload.measured` runs it and reads its output."""
    if shutil.which(os.environ.get("CC", "gcc")) is None:
        pytest.fail("needs a C compiler: install gcc and libc6-dev", pytrace=False)
    program = tmp_path_factory.mktemp("workload") / "waiter"
    subprocess.run([TESTS / "workload" / "build.sh", program], check=True, timeout=60)
    return program


@pytest.fixture
def perf_data(tmp_path: Path) -> Path:
    return tmp_path / "perf.data"
