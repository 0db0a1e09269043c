# SPDX-License-Identifier: Apache-2.0
"""Tracepoints as events: their numbers, and the description of their data for the file.

A sample of a tracepoint holds a structure of the running kernel. perf opens a file with such an event only if the
feature TRACING_DATA describes its layout (`perfdata.tracing_data` reads that feature).

Source: tools/perf/util/trace-event-info.c; tools/lib/api/fs/tracing_path.c."""

# direct in this module: files of tracefs, whose names are checked
import ctypes
import os
import re
from collections.abc import Iterable
from pathlib import Path

from perf_offcpu.collect.events.perf_event import NATIVE
from perf_offcpu.errors import CapabilityError, UsageError
from perf_offcpu.perfdata.tracing_data import tracing_data_body

TRACEFS = Path("/sys/kernel/tracing")
DEBUGFS = Path("/sys/kernel/debug")

_WORD = re.compile(r"\w{1,100}")


def tracepoint_id(text: str, system: str, name: str) -> int:
    """Return attr.config of a tracepoint. `text`: the event as the user wrote it, for messages. Raises UsageError: the
    kernel has no tracepoint of this name; CapabilityError: tracefs cannot be read."""
    if not _WORD.fullmatch(system) or not _WORD.fullmatch(name):
        raise UsageError(f"-e {text}: unknown event; a tracepoint is SYSTEM:NAME, such as sched:sched_switch")
    events = events_directory(text)
    try:
        return int((events / system / name / "id").read_text())
    except PermissionError:
        raise CapabilityError(f"-e {text}: {events} may not be read", "run as root") from None
    except (OSError, ValueError):
        raise UsageError(f"-e {text}: unknown event; this kernel has no tracepoint {system}:{name}") from None


def events_directory(text: str) -> Path:
    """Return the directory in which tracefs lists events; mount tracefs if it is not mounted yet, as perf does. `text`:
    the event, for messages. Raises CapabilityError: tracefs is not mounted, and this process may not mount it."""
    for directory in (TRACEFS, DEBUGFS / "tracing"):
        if (directory / "events").is_dir():
            return directory / "events"
    if ctypes.CDLL(None).mount(b"nodev", os.fsencode(TRACEFS), b"tracefs", 0, None):
        raise CapabilityError(
            f"-e {text}: tracepoints are listed in tracefs, which is not mounted", f"mount -t tracefs nodev {TRACEFS}"
        )
    return TRACEFS / "events"


def tracing_data(names: Iterable[str]) -> bytes:
    """Return the body of the feature TRACING_DATA. `names`: tracepoints SYSTEM:NAME, whose modifiers are ignored."""
    systems: dict[bytes, list[bytes]] = {}
    events = events_directory("tracepoints")
    for system, name in dict.fromkeys(tuple(name.split(":")[:2]) for name in names):
        text = (events / system / name / "format").read_bytes()
        systems.setdefault(os.fsencode(system), []).append(text)
    headers = ((events / "header_page").read_bytes(), (events / "header_event").read_bytes())
    return tracing_data_body(headers, systems, NATIVE)
