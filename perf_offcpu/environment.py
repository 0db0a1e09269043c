# SPDX-License-Identifier: Apache-2.0
"""Ignore environment variables of another user with whose environment root runs (`sudo -E`, `su`, pkexec).

A variable that names a program or a path says what root runs, reads and writes. Where root was called by
another user, or HOME is another user's, these variables are removed before anything asks for them; the
recorded command gets them back, because its environment is the caller's affair.
"""

from __future__ import annotations

import os
from typing import Final

NAMING: Final = (
    *("BCC_KERNEL_SOURCE", "DEBUGINFOD_CACHE_PATH", "DEBUGINFOD_URLS", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("LESSCLOSE", "LESSOPEN", "PAGER", "PERF_BUILDID_DIR", "PERF_CONFIG", "PERF_EXEC_PATH", "PERF_PAGER"),
    *("PYTHONHOME", "PYTHONPATH", "STATE_DIRECTORY", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"),
)
"""Variables that name code or paths, of this program and of those that it starts."""
_CALLERS: Final = ("SUDO_UID", "PKEXEC_UID")

_ignored: dict[str, str] = {}


def ignore_variables_of_others() -> list[str]:
    """Remove variables that name code or paths if they may be another user's; return their names."""
    if os.geteuid() != 0 or not _is_of_other():
        return []
    import pwd

    home = pwd.getpwuid(0).pw_dir
    names = [name for name in NAMING if name in os.environ]
    if os.environ.get("HOME", home) != home:
        names.append("HOME")
    for name in names:
        _ignored[name] = os.environ.pop(name)
    os.environ["HOME"] = home
    return names


def environment_of_caller() -> dict[str, str]:
    """Return the environment with which this program was started."""
    return {**os.environ, **_ignored}


def _is_of_other() -> bool:
    if any(os.environ.get(name, "0") != "0" for name in _CALLERS):
        return True
    try:
        return os.stat(os.environ.get("HOME", "/")).st_uid != 0  # direct: asks whose it is
    except (OSError, ValueError):
        return False
