# SPDX-License-Identifier: Apache-2.0
"""Convert a Profile to a data frame: one row a sample, names instead of numbers, unknown values missing. pandas or
polars makes it; neither is needed for anything else."""

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.holders import holders_of
from perf_offcpu.callpaths.keys import Texts, merged, sample_texts
from perf_offcpu.callpaths.tree import build_paths
from perf_offcpu.convert.encode.text_columns import path_texts
from perf_offcpu.convert.registry import Options
from perf_offcpu.errors import UsageError
from perf_offcpu.model.columns import Bool
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SUM_FLAGS
from perf_offcpu.tables import read_table

COLUMNS = dict(read_table(__file__))["columns"]
"""Name → meaning of the columns, in order."""

_NUMBERS = "pid tid cpu time_ns switch_out_ns wakeup_ns runq_ns longest_ns asked_ns waker_pid waker_tid".split()
"""Columns of ProfileSamples that become columns of the data frame; -1 becomes a missing value."""


def to_dataframe(profile: Profile, library: str = "") -> Any:
    """Return the samples of a profile as a data frame with the columns COLUMNS, of `library` "pandas" or "polars" ("":
    the first one installed). Raise UsageError if it is not installed."""
    makers = {"pandas": _pandas, "polars": _polars}
    wanted = [library] if library else list(makers)
    installed = [name for name in wanted if name in makers and importlib.util.find_spec(name)]
    if not installed:
        raise UsageError(f"a data frame needs {' or '.join(wanted)}: install it for this Python")
    return makers[installed[0]](dict(_columns(profile)))


def _columns(profile: Profile) -> Iterator[tuple[str, Texts | tuple[NDArray[Any], Bool | None]]]:
    """Yield (name, column) in the order of COLUMNS; a column is Texts or (values, bool[n] of missing ones or None)."""
    samples, held = profile.samples, holders_of(profile).held
    made: dict[str, Any] = sample_texts(profile, classify(profile)) | {
        "period": (samples.period, None),
        "offcpu": (profile.is_offcpu(), None),
        "sum": (samples.has(SUM_FLAGS), None),
        "count": (samples.count, None),
        "holder_tid": (held, held < 0),
        "stack": _stacks(profile),
    }
    for name in COLUMNS:
        values = getattr(samples, name) if name in _NUMBERS else None
        yield name, made[name] if values is None else (values, values == -1)


def _stacks(profile: Profile) -> Texts:
    """Return the stack of each sample as text, `root;…;leaf`."""
    tree = build_paths(profile, Options())
    nodes, inverse = np.unique(tree.of_sample, return_inverse=True)
    # The root of each path is the comm, which has a column of its own.
    texts = [text.partition(";")[2] for text in path_texts(tree, nodes.astype(np.int64))]
    return merged(texts, inverse.astype(np.int64))


def _pandas(columns: dict[str, Any]) -> Any:
    import pandas as pd

    def made(column: Any) -> Any:
        if isinstance(column, Texts):
            return pd.Categorical.from_codes(column.codes, column.texts)
        values, unknown = column
        return values if unknown is None else pd.arrays.IntegerArray(values.astype(np.int64), unknown)

    return pd.DataFrame({name: made(column) for name, column in columns.items()})


def _polars(columns: dict[str, Any]) -> Any:
    import polars as pl

    made = []
    for name, column in columns.items():
        if isinstance(column, Texts):
            texts = pl.Series(name, [*column.texts, None], pl.String)
            codes = np.where(column.codes < 0, len(column.texts), column.codes)
            made.append(texts.gather(codes).cast(pl.Categorical))
        else:
            values, unknown = column
            series = pl.Series(name, values)
            made.append(series if unknown is None else series.set(pl.Series(unknown), None))
    return pl.DataFrame(made)
