# SPDX-License-Identifier: Apache-2.0
"""Print a recording as the commands do: `script` with every field, `report`, and folded stacks. No file of this machine
is read but a small list of kernel symbols, so that it takes milliseconds and the result is the same everywhere."""

import functools
import io
import tempfile
from collections import deque
from pathlib import Path

from perf_offcpu.analysis.selection.select import select_events
from perf_offcpu.convert.registry import FORMATS
from perf_offcpu.decode.deferred import deferred_as_samples
from perf_offcpu.decode.load import load_recording
from perf_offcpu.objects.search import Search
from perf_offcpu.report.style import Style
from perf_offcpu.report.summary import summarize
from perf_offcpu.report.terminal import render
from perf_offcpu.script.fields import OWN_FIELDS, PERF_FIELDS, FieldChoice
from perf_offcpu.script.samples import TextOptions, header_lines, write
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize
from perf_offcpu.unwind.unwinder import unwind

_KALLSYMS = Path(__file__).resolve().parent.parent / "data" / "demo.kallsyms"

EVERY_FIELD = FieldChoice(frozenset([*PERF_FIELDS, *OWN_FIELDS]), frozenset({"ip", "sym", "dso", "cpu", "period"}))
"""All fields are shown, and only some are asked for: the others may be missing in a recording."""


@functools.cache
def _options() -> SymbolizeOptions:
    empty = tempfile.mkdtemp(prefix="no-symbols-")
    Path(empty).rmdir()
    return SymbolizeOptions(kallsyms=str(_KALLSYMS), symfs=empty, buildid_dir=empty, keep_ips=True)


def show(path: str, merge: bool = True) -> None:
    """Script, report and fold a recording; `merge` completes deferred callchains. Raises PerfOffcpuError."""
    options, recording = _options(), load_recording(path, merge=merge, snapshots=True)
    recording = unwind(recording, Search.usual(options.symfs, options.buildid_dir))
    profile = symbolize(deferred_as_samples(recording), options)
    deque(header_lines(profile), maxlen=0)
    write(profile, io.StringIO(), TextOptions(EVERY_FIELD, nanoseconds=True))
    if merge:
        deque(render(summarize(profile, children=True), Style()), maxlen=0)
        FORMATS["folded"].write(select_events(profile, ()), io.StringIO())
