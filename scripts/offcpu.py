#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Convert a recording's off-cpu time, inside perf or by hand.

    perf script -i perf.data -s scripts/offcpu.py                      folded stacks on standard output
    perf script -i perf.data -s scripts/offcpu.py -- --flamegraph OUT  any format of `perf-offcpu convert`
    python3 scripts/offcpu.py -i perf.data                             the same without perf

perf embeds its own Python, which sees no virtual environment: numpy and pyelftools must be installed for that
Python. Packages of the checkout's .venv are used if they are for the same version.
"""

import importlib.util
import os
import sys


def _find_packages() -> None:
    """Make perf_offcpu importable, from the checkout or the prefix that holds this script."""
    here = os.path.dirname(os.path.realpath(sys.argv[0]))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    root = os.path.dirname(here)
    prefixes = [os.path.join(root, ".venv"), root, os.path.dirname(root)]
    if os.path.isdir(os.path.join(root, "perf_offcpu")):
        sys.path.insert(0, root)
        del prefixes[1:]  # a checkout is no prefix, and the directory above it may be another user's, as /tmp
    # After this Python's own packages, so that only missing ones are taken from there.
    sys.path += [
        path for prefix in prefixes if os.path.isdir(path := os.path.join(prefix, "lib", version, "site-packages"))
    ]


def _is_inside_perf() -> bool:
    return "perf_trace_context" in sys.builtin_module_names


_find_packages()
try:
    import numpy  # noqa: F401  first, so that the message names the missing package

    if importlib.util.find_spec("elftools") is None:  # imported later, for files that are not in the cache
        raise ImportError(name="elftools")
    from perf_offcpu import perf_script
except ImportError as problem:
    sys.exit(
        f"offcpu.py: Python {sys.version_info.major}.{sys.version_info.minor} of this perf cannot import "
        f"{problem.name}: install it for that Python (Debian: apt install python3-numpy python3-pyelftools)"
    )

if _is_inside_perf():
    _handler = perf_script.PerfScriptHandler(sys.argv[1:])
    process_event = _handler.process_event
    trace_end = _handler.trace_end
elif __name__ == "__main__":
    sys.exit(perf_script.main(sys.argv[1:]))
