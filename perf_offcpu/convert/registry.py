# SPDX-License-Identifier: Apache-2.0
"""The table of output formats. Each names a module with one function:

    write(profile: Profile, out: IO, options: Options) -> None

`profile` holds the samples to write and no others (selection has been done); `out` takes text (UTF-8, `\\n`)
or, for a binary format, bytes. All formats write integers and sort what they write, so that summed weights
equal the profile's to the unit and the same profile always yields the same bytes. Where weights of different
units would be summed, `write` raises UsageError.

To add a format, write its module and add its row. Modules are imported when used."""

from __future__ import annotations

import importlib
from dataclasses import fields
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from perf_offcpu.callpaths.options import PathOptions
from perf_offcpu.errors import UsageError
from perf_offcpu.structs import frozen

if TYPE_CHECKING:
    from perf_offcpu.analysis.times.lanes import Lane
    from perf_offcpu.causality.cascade import Cascade
    from perf_offcpu.model.profile import Profile


MIN_SHARE = 0.5  # percent of the total below which nodes and edges of a graph are left out


@frozen
class Options(PathOptions):
    """Options of all converters. The selection of samples is done before: see `analysis.selection.select`."""

    unit: str = ""  # unit of time of the weights, a key of UNITS; "" for ns
    form: str = ""  # one of `Format.forms`; "" is the first
    wakers: bool = False  # callgraph: wake-ups between threads instead of calls between functions
    per_thread: bool = False  # graphs of threads: a node for each thread, not for each comm
    objects: bool = False  # show threads and the objects that they wait for, instead of calls
    cascade: Cascade | None = None  # show waits with the waits that they hold up, instead of calls
    path: Lane | None = None  # a critical path, on a track of its own
    svg: bool = False  # write a picture of the graph, drawn by graphviz
    min_share: float = MIN_SHARE  # leave out rows below this percentage of the total
    diff: Profile | None = None  # an older profile to compare with, its events selected alike
    title: str = ""  # title of a picture; "" is one made of what it shows
    idle: frozenset[tuple[int, int]] = frozenset()  # (pid, tid) of threads that merely wait for work
    sentences: tuple[str, ...] = ()  # the verdict, for the head of a page
    selected: tuple[str, ...] = ()  # words of the command line that select the samples, input included


@frozen
class Format:
    """An output format, and the module that writes it."""

    name: str  # the flag of `perf-offcpu convert` without its dashes
    module: str  # the module in `convert` that writes it
    suffix: str  # appended to the input's name when no output is named
    doc: str  # one line for the help
    options: frozenset[str] = frozenset()  # fields of Options that it honours; setting others is an error
    binary: bool = False  # writes bytes; not for terminals
    forms: tuple[str, ...] = ()  # values of the flag, each a suffix of its own; the first is the default
    most_bytes: int = 0  # size above which the usual viewers no longer open it; 0 for no such limit
    needs_times: bool = False  # shows when things happened, and so needs samples with a time

    def write(self, profile: Profile, out: IO[Any], options: Options | None = None) -> None:
        """Write all samples of the profile to a stream; raise UsageError if the format cannot hold them."""
        if self.needs_times and len(profile.samples) and not bool((profile.samples.time_ns >= 0).any()):
            raise UsageError(f"no sample has a time, and --{self.name} shows when things happened")
        module = importlib.import_module(f"perf_offcpu.convert.{self.module}")
        module.write(profile, out, options or Options())

    def suffix_for(self, options: Options) -> str:
        """Return the suffix of the default output file, followed by the form, or `svg`, if the format has forms."""
        if not self.forms:
            return self.suffix
        return f"{self.suffix}.{'svg' if options.svg else options.form or self.forms[0]}"

    def accept(self, options: Options) -> None:
        """Raise UsageError if an option is set that has no effect in this format."""
        default = Options()
        for name in (field.name for field in fields(options)):
            if name not in self.options and getattr(options, name) != getattr(default, name):
                raise UsageError(f"--{name.replace('_', '-')} means nothing to --{self.name}")


_FRAMES = frozenset({"addrs", "kernel", "state"})
_NO_STATE = _FRAMES - {"state"}
_TITLED = _FRAMES | {"title"}
_PAGE = frozenset({"title", "sentences", "path"})
_FOLDED = _FRAMES | {"pid", "tid", "unit", "diff", "waker_stack", "wakers", "chains"}
_PICTURE = frozenset({"pid", "tid", "addrs", "state", "title", "diff", "waker_stack", "wakers", "chains"})
_V8_STRING = 2**29 - 24
"""The longest string of Chromium's JavaScript, and so the largest JSON text that a page can parse."""

_FIREFOX, _PERFETTO = 500 * 10**6, 2**31
"""Most bytes that profiler.firefox.com and ui.perfetto.dev, in 32-bit WebAssembly, open."""

_json = partial(Format, most_bytes=_V8_STRING)
_timed = partial(Format, options=_NO_STATE | {"path"}, needs_times=True)
_timed_json = partial(_timed, most_bytes=_V8_STRING)
_perfetto, _firefox = partial(_timed, binary=True, most_bytes=_PERFETTO), partial(_timed, most_bytes=_FIREFOX)
_ROWS = (
    _json(
        "html", "html.page", ".report.html", "threads in time, flame graph and tables of any part, one HTML file", _PAGE
    ),
    Format("folded", "folded", ".folded", "folded stacks: comm;root;…;leaf WEIGHT", _FOLDED),
    Format("flamegraph", "html.flamegraph", ".html", "interactive flame graph, one HTML file", _PICTURE),
    _json("speedscope", "speedscope", ".speedscope.json", "speedscope.app: each thread in time", _TITLED),
    _timed_json("chrome-trace", "chrome_trace", ".trace.json", "Trace Event JSON: Perfetto, chrome://tracing"),
    _perfetto("perfetto", "perfetto.trace", ".pftrace", "Perfetto's own format: for large recordings"),
    _firefox("firefox", "firefox.profile", ".firefox.json", "profiler.firefox.com: threads in time, markers of waits"),
    Format("pprof", "pprof", ".pb.gz", "pprof's profile.proto: go tool pprof", _NO_STATE, binary=True),
    Format(
        "callgraph",
        "callgraph.forms",
        ".callgraph",
        "graph of calls, or (--wakers, --cascade, --objects) of waits between threads",
        _TITLED | {"form", "wakers", "cascade", "objects", "per_thread", "svg", "min_share", "diff"},
        forms=("dot", "graphml", "gexf", "json", "text"),
    ),
)
FORMATS: dict[str, Format] = {row.name: row for row in _ROWS}
