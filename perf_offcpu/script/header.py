# SPDX-License-Identifier: Apache-2.0
"""Print facts about machine and run in lines with `#`, as `perf script --header` does."""

from __future__ import annotations

import time
from collections.abc import Iterator

from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Meta
from perf_offcpu.text import printable

_RULE = "# ========"
_MINUTE_NS = 60 * 10**9


def header_lines(profile: Profile) -> Iterator[str]:
    """Return the lines, without line ends; unknown facts are left out."""
    meta = profile.meta
    facts = {
        "captured on": _captured(meta),
        "hostname": meta.hostname,
        "os release": meta.os_release,
        "perf version": meta.version,
        "arch": meta.arch,
        "nrcpus online": str(meta.nr_cpus or ""),
        "cpudesc": meta.cpu_desc,
        "cmdline": " ".join(meta.cmdline),
    }
    yield _RULE
    yield from (_fact(name, text) for name, text in facts.items() if text)
    for event in profile.evsels:
        yield _fact("event", f"name = {event.name}" + (f", unit = {event.unit}" if event.unit else ""))
    if meta.threshold_ns >= 0:
        yield _fact("off-cpu threshold", f"{meta.threshold_ns} ns")
    for part in meta.recorded if 0 < meta.begin_ns < meta.end_ns else ():
        begin, end = (f"{ns // 10**9}.{ns % 10**9:09}" for ns in part)
        yield _fact("recorded", f"from {begin} to {end}")
    yield from (_RULE, "#")


def _captured(meta: Meta) -> str:
    """Return the date of the first sample; "" if the recording has no wall clock.

    perf notes the wall clock and the clock of its events before the first sample. Inside a time namespace it
    sees another clock than the kernel that takes the samples; where perf's is ahead, that shows.
    """
    if not meta.wall_clock_ns or meta.first_ns < 0:
        return ""
    if meta.wall_clock_at_ns > max(meta.last_ns, meta.end_ns) + _MINUTE_NS:
        return "unknown, by its clock perf began after the last sample (in a time namespace?)"
    wall_ns = meta.wall_clock_ns + meta.first_ns - meta.wall_clock_at_ns
    return time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(wall_ns // 10**9))


def _fact(name: str, text: str) -> str:
    return f"# {name} : {printable(text)}"
