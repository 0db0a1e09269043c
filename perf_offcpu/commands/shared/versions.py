# SPDX-License-Identifier: Apache-2.0
"""What perf-offcpu runs on: the lines of `perf-offcpu --version -vv`."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import metadata

from perf_offcpu.errors import PerfOffcpuError

PACKAGES = ("numpy", "pyelftools", "zstandard", "multi-demangle")


def surroundings() -> Iterator[tuple[str, str]]:
    """(name, version and place), one after the other."""
    from perf_offcpu.resources import PACKAGE

    yield "installed in", PACKAGE
    yield "python", f"{platform.python_version()}, {sys.executable}"
    yield "kernel", f"{platform.release()} {platform.machine()}"
    yield "bcc", _bcc()
    for name in PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name, "not installed"


def _bcc() -> str:
    from perf_offcpu.collect.bpf.compile import import_bcc

    try:
        bcc = import_bcc()
    except PerfOffcpuError as problem:
        return str(problem)
    return f"{getattr(bcc, '__version__', 'of unknown version')}, {bcc.__file__}"
