# SPDX-License-Identifier: Apache-2.0
"""Which version this is, and where the files that are not Python lie: the BPF sources and the headers bcc
compiles them with.

In a checkout (and so in an editable install) bpf/ stands beside the package, as people who read kernel
tools expect it; a wheel carries it inside the package. Both are real directories, never archives: bcc
hands the path to clang.
"""

from __future__ import annotations

from pathlib import Path

from perf_offcpu.errors import CapabilityError

PACKAGE = Path(__file__).resolve().parent
PROGRAM = "off_cpu.bpf.c"


def bpf_dir() -> Path:
    """The directory of off_cpu.bpf.c and include/.

    Raises:
        CapabilityError: it is neither beside the package nor inside it; the installation is damaged.
    """
    for place in (PACKAGE / "bpf", PACKAGE.parent / "bpf"):
        if (place / PROGRAM).is_file():
            return place
    raise CapabilityError(f"{PROGRAM} is neither in {PACKAGE} nor beside it", "install perf-offcpu again")


def version() -> str:
    """The installed version; "unknown" when running from a source tree that is not installed."""
    from importlib import metadata

    try:
        return metadata.version("perf-offcpu")
    except metadata.PackageNotFoundError:
        return "unknown (not installed)"
