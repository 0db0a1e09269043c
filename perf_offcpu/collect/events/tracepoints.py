# SPDX-License-Identifier: Apache-2.0
"""Tracepoints as events: their numbers, and the description of their data that a file carries along.

Their samples hold the tracepoint's own data, a structure of the running kernel's. perf cannot even open a
file with such an event unless the feature TRACING_DATA tells how it is laid out (`perfdata.tracing_data`
reads that container, and says what is in it).

Source: tools/perf/util/trace-event-info.c.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.errors import CapabilityError, UsageError
from perf_offcpu.perfdata.write.tracing_data import tracing_data_body

TRACEFS = Path("/sys/kernel/tracing")
_DEBUGFS = Path("/sys/kernel/debug/tracing")

_WORD = re.compile(r"\w{1,100}")


def tracepoint_id(text: str, system: str, name: str, tracefs: Path = TRACEFS) -> int:
    """attr.config of a tracepoint.

    Args:
        text: the event as the user wrote it.

    Raises:
        UsageError: there is none of this name.
        CapabilityError: tracefs is not there.
    """
    if not _WORD.fullmatch(system) or not _WORD.fullmatch(name):
        raise UsageError(f"-e {text}: unknown event; a tracepoint is SYSTEM:NAME, such as sched:sched_switch")
    events = events_directory(text, tracefs)
    try:
        return int((events / system / name / "id").read_text())
    except PermissionError:
        raise CapabilityError(f"-e {text}: {events} may not be read", "run as root") from None
    except (OSError, ValueError):
        raise UsageError(f"-e {text}: unknown event; this kernel has no tracepoint {system}:{name}") from None


def events_directory(text: str, tracefs: Path = TRACEFS) -> Path:
    """Where tracefs lists its events.

    Raises:
        CapabilityError: tracefs is not mounted.
    """
    for directory in (tracefs, _DEBUGFS):
        if (directory / "events").is_dir():
            return directory / "events"
    raise CapabilityError(
        f"-e {text}: tracepoints are listed in tracefs, which is not mounted",
        f"mount -t tracefs nodev {tracefs}",
    )


def tracing_data(names: Iterable[str], tracefs: Path = TRACEFS) -> bytes:
    """The body of TRACING_DATA for tracepoints `SYSTEM:NAME`, modifiers behind them ignored."""
    systems: dict[bytes, list[bytes]] = {}
    events = events_directory("tracepoints", tracefs)
    for system, name in dict.fromkeys(tuple(name.split(":")[:2]) for name in names):
        text = (events / system / name / "format").read_bytes()
        systems.setdefault(os.fsencode(system), []).append(text)
    headers = ((events / "header_page").read_bytes(), (events / "header_event").read_bytes())
    return tracing_data_body(headers, systems, NATIVE)
