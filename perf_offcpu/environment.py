# SPDX-License-Identifier: Apache-2.0
"""Choose the environment variables that root trusts, and the environment of every process that is started.

A variable can name a program, a path or options of a program, and so say what root runs, reads and writes. Where root
was called by another user (`sudo -E`, `su`, pkexec), or HOME is another user's, only variables that are known to be
harmless stay. This is a list of allowed variables, because those of the pager, the compiler and the C library cannot
all be known. The recorded command gets all of them: its environment is the caller's affair."""

import os
import re
import sys
from typing import Final

ALLOWED: Final = frozenset(
    "PATH PERF_OFFCPU_CACHE_BYTES PERF_OFFCPU_LABELS PERF_OFFCPU_TRACEBACK SUDO_UID PKEXEC_UID JOURNAL_STREAM "
    "TERM COLORTERM NO_COLOR COLUMNS LINES "
    "LANG LANGUAGE LC_ALL LC_COLLATE LC_CTYPE LC_MESSAGES LC_MONETARY LC_NUMERIC LC_TIME".split()
)
"""Variables of another user that root accepts: PATH (sudo has secure_path), and variables that name no path."""
_ANY_TEXT: Final = frozenset({"PATH", "PERF_OFFCPU_LABELS"})
_NAME: Final = re.compile(r"[\w.,:@+=-]*", re.ASCII)  # a value that is a name, neither a path nor a format
FOLLOWED: Final = tuple(
    "BCC_KERNEL_SOURCE DEBUGINFOD_CACHE_PATH DEBUGINFOD_URLS LD_LIBRARY_PATH LD_PRELOAD LESS LESSCLOSE LESSKEY "
    "LESSOPEN PAGER PERF_BUILDID_DIR PERF_CONFIG PERF_EXEC_PATH PERF_PAGER PYTHONHOME PYTHONPATH STATE_DIRECTORY "
    "TMPDIR XDG_CACHE_HOME XDG_CONFIG_HOME XDG_STATE_HOME HOME".split()
)
"""Variables that users set for this program and its pager: the message about ignored variables names only these."""
_CALLERS: Final = ("SUDO_UID", "PKEXEC_UID")
_ignored: dict[str, str] = {}


def ignore_variables_of_others() -> list[str]:
    """Remove variables from this process's environment if it is root's and may be another user's, unless they are
    ALLOWED; return the names in FOLLOWED that were removed."""
    if not _is_of_other():
        return []
    kept = _accepted()
    _ignored.update({name: value for name, value in os.environ.items() if kept.get(name) != value})
    os.environ.clear()
    os.environ |= kept
    return [name for name in FOLLOWED if name in _ignored]


def child_environment(**changes: str) -> dict[str, str]:
    """Return the environment, with `changes`, for processes that this program starts, but the recorded command."""
    return {**(_accepted() if _is_of_other() else os.environ), **changes}


def interpreter() -> str:
    """Return the path of the interpreter that runs this program. In a Python embedded in perf, sys.executable is the
    first python3 of PATH, perhaps another version."""
    if sys.executable and "perf_trace_context" not in sys.builtin_module_names:
        return sys.executable
    return f"{sys.base_exec_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"


def environment_of_caller() -> dict[str, str]:
    """Return the whole environment with which this program was started, for the recorded command."""
    return {**os.environ, **_ignored}


def _accepted() -> dict[str, str]:
    """Return the ALLOWED variables with harmless values, and HOME of root's passwd entry."""
    import pwd

    allowed = ((name, value) for name, value in os.environ.items() if name in ALLOWED)
    harmless = {name: value for name, value in allowed if name in _ANY_TEXT or _NAME.fullmatch(value)}
    return {**harmless, "HOME": pwd.getpwuid(0).pw_dir}


def _is_of_other() -> bool:
    """Return True if this process is root's and its environment may be another user's."""
    if os.geteuid() != 0:
        return False
    if any(os.environ.get(name, "0") != "0" for name in _CALLERS):
        return True
    try:
        return os.stat(os.environ.get("HOME", "/")).st_uid != 0  # direct: asks whose it is
    except (OSError, ValueError):
        return False
