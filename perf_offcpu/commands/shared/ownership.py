# SPDX-License-Identifier: Apache-2.0
"""perf's ownership check: a recording that somebody else could have prepared is not read by default.

Source: tools/perf/util/data.c, open_file_read().
"""

from __future__ import annotations

import os
import stat

from perf_offcpu.errors import PerfOffcpuError


def check_ownership(path: str, force: bool) -> None:
    """Let a recording pass if it belongs to the user or to root, or the user insists.

    Standard input and FIFOs pass, as in perf; what does not exist is the reader's to report.

    Raises:
        PerfOffcpuError: it belongs to somebody else.
    """
    if force or path == "-":
        return
    try:
        status = os.stat(path)
    except OSError:
        return
    if not stat.S_ISFIFO(status.st_mode) and status.st_uid not in (0, os.geteuid()):
        raise PerfOffcpuError(f"{path}: not owned by the current user or root (use -f to read it anyway)")
