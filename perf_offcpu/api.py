# SPDX-License-Identifier: Apache-2.0
"""Use perf-offcpu from Python:

    import perf_offcpu

    profile = perf_offcpu.load("perf.data")
    waits = profile.to_dataframe()
    waits = waits[waits["offcpu"]]
    print(waits.groupby("wait_class", observed=True)["period"].sum())

`import perf_offcpu` alone imports nothing else; `load` does when it is first used."""

import dataclasses
import os
from collections.abc import Iterable
from typing import IO, Any

from perf_offcpu.model.profile import Profile as ModelProfile


class Profile(ModelProfile):
    """A `model.profile.Profile` with methods to write it and to convert it to a data frame."""

    __slots__ = ()

    def to_dataframe(self, library: str = "") -> Any:
        """Return a data frame with a row for each sample and the columns of `convert.dataframe.COLUMNS`. `library`:
        "pandas", "polars", or "" for the first one installed. Raise UsageError if it is not installed."""
        from perf_offcpu.convert.dataframe import to_dataframe

        return to_dataframe(self, library)

    def write(self, format_name: str, out: IO[Any], **options: Any) -> None:
        """Write the samples in a format of `perf-offcpu convert`.

        Args:
            format_name: a key of `convert.registry.FORMATS`, such as "folded".
            out: an open stream for text, or for bytes if the format is binary.
            options: fields of `convert.registry.Options`.

        Raises:
            UsageError: the format is unknown, does not have an option, or cannot hold the samples.
        """
        from perf_offcpu.convert.registry import FORMATS, Options
        from perf_offcpu.errors import UsageError

        if format_name not in FORMATS:
            raise UsageError(f"no format '{format_name}' (known: {', '.join(FORMATS)})")
        chosen = Options(**options)
        FORMATS[format_name].accept(chosen)
        FORMATS[format_name].write(self, out, chosen)


def load(
    path: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    events: Iterable[str] | None = None,
    symfs: str | None = None,
    kallsyms: str | None = None,
    **joining: bool,
) -> Profile:
    """Read and symbolize a recording, or several as one.

    Args:
        path: a perf.data file, of perf-offcpu or perf; "-" for standard input.
        more: recordings of the same host or others, joined with the first.
        events: names of the events to keep; None for all, () for the off-cpu events.
        symfs, kallsyms: as for `perf-offcpu report`.
        joining: how several recordings are joined: `apart`, `from_start`, `prefix` of `decode.join.JoinOptions`.

    Raises:
        FormatError: a file is no recording.
        UsageError: a named event is not recorded, a file with symbols cannot be read, or recordings cannot be joined.
    """
    from perf_offcpu.analysis.selection.select import select_events
    from perf_offcpu.cache import DiskCache
    from perf_offcpu.symbolize.load import load_profile
    from perf_offcpu.symbolize.options import SymbolizeOptions

    options = SymbolizeOptions(symfs=symfs, kallsyms=kallsyms, cache=DiskCache.usual())
    profile = load_profile([os.fspath(source) for source in (path, *more)], options, **joining)
    if events is not None:
        profile = select_events(profile, tuple(events))
    return Profile(*(getattr(profile, field.name) for field in dataclasses.fields(profile)))
