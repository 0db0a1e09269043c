# SPDX-License-Identifier: Apache-2.0
"""Record, decode, symbolize and convert off-CPU time: the time that a program waits. In Python,
`perf_offcpu.load(path)` returns a Profile (see `perf_offcpu.api`). Other modules are imported at first use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perf_offcpu.api import Profile, load

__all__ = ["Profile", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from perf_offcpu import api

    return getattr(api, name)
