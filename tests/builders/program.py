# SPDX-License-Identifier: Apache-2.0
"""Run perf-offcpu in a process of its own, without the cost of a start. Most of a short run is imports. Here a process
that has imported everything forks for each run, which has its own memory, descriptors, environment and exit status as
any other. How it starts is left to tests of that (`PROGRAM`, tests/unit/test_cli.py, tests/package)."""

import atexit
import functools
import multiprocessing
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from pathlib import Path

import perf_offcpu
from perf_offcpu.objects import search

PATIENCE = float(os.environ.get("PERF_OFFCPU_TEST_PATIENCE", "1"))
"""How many times longer than usual tests wait for what must happen: an emulated machine is slow."""

PROGRAM = [sys.executable, "-m", "perf_offcpu"]
"""The same with its start, for runs that get signals or are read while they go on."""


@contextmanager
def started(*command: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start any program with pipes for its input and output; yield it and its first line. It is killed at the end."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def run(
    *arguments: str | Path,
    cwd: Path | None = None,
    timeout_s: float = 60,
    status: int | None = 0,
    stdin: str | Path = os.devnull,
) -> subprocess.CompletedProcess[str]:
    """Run the program to its end and return what subprocess.run() would, its output captured. `status` is the exit
    status that is right; None: any. Raises subprocess.TimeoutExpired if it did not end in time."""
    command = ["perf-offcpu", *map(str, arguments)]
    outputs = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("stdout", "stderr")]
    places = [f"/proc/{os.getpid()}/fd/{fd}" for fd in outputs]
    handed = (command, cwd or Path.cwd(), dict(os.environ), [str(stdin), *places], search.DEBUG_ROOTS)
    process = _server().Process(target=_main, args=handed)
    try:
        process.start()
        process.join(timeout_s * PATIENCE)
        if process.exitcode is None:
            raise subprocess.TimeoutExpired(command, timeout_s)
        stdout, stderr = (os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="backslashreplace") for fd in outputs)
        assert status in (None, process.exitcode), f"exit status {process.exitcode}: {stderr}"
        return subprocess.CompletedProcess(command, process.exitcode, stdout, stderr)
    finally:
        process.kill()
        for fd in outputs:
            os.close(fd)


@functools.cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    modules = pkgutil.walk_packages(perf_offcpu.__path__, "perf_offcpu.")
    context.set_forkserver_preload([one.name for one in modules if not one.name.endswith("__main__")])
    return context


def _main(
    command: Sequence[str], cwd: Path, environment: Mapping[str, str], streams: Sequence[str],
    debug_roots: Sequence[str],
) -> None:  # fmt: skip
    search.DEBUG_ROOTS = debug_roots
    for fd, place in enumerate(streams):
        opened = os.open(place, os.O_WRONLY if fd else os.O_RDONLY)
        os.dup2(opened, fd)
        os.close(opened)
    os.chdir(cwd)
    os.environ.clear()
    os.environ |= environment
    sys.argv = list(command)
    from perf_offcpu.cli import main

    try:
        sys.exit(main())
    finally:
        atexit._run_exitfuncs()
