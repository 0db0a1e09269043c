# SPDX-License-Identifier: Apache-2.0
"""Find the version of the package and the directory of the BPF sources. In a checkout (and so in an editable install)
bpf/ is next to the package; in a wheel it is inside the package. bcc passes its path to clang."""

import contextlib
import json
import os
import re
import sys
from typing import TYPE_CHECKING

from perf_offcpu.errors import CapabilityError
from perf_offcpu.files import read_regular

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = os.path.dirname(os.path.realpath(__file__))  # direct: the package's own
PROGRAM = "off_cpu.bpf.c"
_METADATA = re.compile(r"perf_offcpu-([0-9][\w.+!-]*)\.dist-info")


def bpf_dir() -> "Path":
    """Return the directory of off_cpu.bpf.c and include/; raise CapabilityError if the installation lacks it."""
    from pathlib import Path

    for directory in (Path(PACKAGE, "bpf"), Path(PACKAGE).parent / "bpf"):
        if (directory / PROGRAM).is_file():  # direct: the package's own sources
            return directory
    raise CapabilityError(f"{PROGRAM} is neither in {PACKAGE} nor next to it", "install perf-offcpu again")


def version() -> str:
    """Return the version of this package; "unknown (not installed)" if it is not installed. It is read from the name of
    the dist-info directory: importlib.metadata takes some 30 ms to import."""
    for directory in sys.path:
        with contextlib.suppress(OSError):
            for name in os.listdir(directory or "."):  # direct: where Python finds this package
                if match := _METADATA.fullmatch(name):
                    return match[1]
    return installed_version("perf-offcpu") or "unknown (not installed)"


def commit() -> str:
    """Return ", commit ID" of the checkout that this package runs in or was installed from; "" if not known."""
    from importlib import metadata

    folder = os.path.join(os.path.dirname(os.path.dirname(__file__)), ".git")
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, KeyError, metadata.PackageNotFoundError):
        if os.path.isdir(folder):  # direct: where Python finds this package
            head = _line(os.path.join(folder, "HEAD"))
            return f", commit {_line(os.path.join(folder, head[5:]))[:12] if head.startswith('ref: ') else head[:12]}"
        # direct: this package's own metadata
        origin = metadata.distribution("perf-offcpu").read_text("direct_url.json")
        return f", commit {json.loads(origin or '')['vcs_info']['commit_id'][:12]}"
    return ""


def _line(path: str) -> str:
    return read_regular(path, 4096).decode("ascii").strip()


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, by its metadata; None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
