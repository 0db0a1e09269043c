# SPDX-License-Identifier: Apache-2.0
"""Name stacks and frames by hashes of their content, the same on all hosts and in all processes.

    frame_id   blake2b, 8 bytes, of the columns of the table `frames` after it, as UTF-8 texts joined by NUL
               (numbers in decimal, truth values as 0 or 1; no text holds a NUL)
    stack_id   blake2b, 8 bytes, of its frame ids, leaf first, 8 bytes each, little endian

Both are read as little-endian signed integers; 0, which stands for no stack, becomes 1. Among a billion
different stacks two share an id with a probability of 3 %."""

import hashlib
from itertools import pairwise
from typing import Any

import numpy as np

from perf_offcpu.binary.columnar import offsets_of
from perf_offcpu.callpaths.keys import Texts, merged, named
from perf_offcpu.dataset.schema import TABLES
from perf_offcpu.model.callchains import paths_of_nodes, spread
from perf_offcpu.model.columns import I64, Bool, distinct, group
from perf_offcpu.model.profile import Profile
from perf_offcpu.structs import frozen

_SIZE = 8


def content_id(data: bytes) -> int:
    """Hash the content of a stack or frame to its id, a signed 64-bit integer that is never 0."""
    digest = hashlib.blake2b(data, digest_size=_SIZE).digest()
    return int.from_bytes(digest, "little", signed=True) or 1


@frozen
class Content:
    """Distinct stacks and frames of a profile's samples, with ids made from their content."""

    stack_of: I64  # stack id by row of profile.stacks, 0 if no sample has the stack; one more row, -1: 0
    stack_ids: I64  # int64[s], ascending
    offsets: I64  # int64[s + 1], index in frame_ids at which each stack begins
    frame_ids: I64  # ids of the frames of all stacks, each stack leaf first
    frames: dict[str, Any]  # columns of table `frames`, ascending by frame_id

    def of_stacks(self, ids: I64) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the columns of tables `stacks` and `frames` for stack ids in any order; id 0 is no stack."""
        import pyarrow as pa

        ids = distinct(ids)
        rows = np.searchsorted(self.stack_ids, ids[ids != 0])
        lengths = np.diff(self.offsets)[rows]
        offsets = offsets_of(lengths)
        values = self.frame_ids[spread(self.offsets[:-1][rows], lengths, offsets)]
        list_type = pa.list_(pa.field("element", pa.int64(), nullable=False))
        lists = pa.ListArray.from_arrays(offsets.astype(np.int32), values, list_type)
        kept = np.searchsorted(self.frames["frame_id"], distinct(values))
        frames = {name: taken(column, kept) for name, column in self.frames.items()}
        return {"stack_id": self.stack_ids[rows], "frame_ids": lists}, frames


def taken(column: Any, rows: I64 | Bool | slice) -> Any:
    """Return the chosen rows of a column: of a Texts, an array, or a tuple (array, mask)."""
    if isinstance(column, Texts):
        return Texts(column.texts, column.codes[rows])
    return tuple(part[rows] for part in column) if isinstance(column, tuple) else column[rows]


def content_of(profile: Profile) -> Content:
    """Return the distinct stacks (also of wakers) and frames of a profile's samples, with their ids."""
    stacks, samples = profile.stacks, profile.samples
    nodes = distinct(np.concatenate([samples.stack, samples.waker_stack]))
    nodes = nodes[nodes >= 0].astype(np.int64)
    offsets, path = paths_of_nodes(stacks.parent, nodes, leaf_first=True)
    rows = stacks.frame[path].astype(np.int64)
    frame_of, frames = _frames(profile, distinct(rows))
    chains = frame_of[rows]
    data = chains.astype("<i8", copy=False).tobytes()
    ids = np.array(
        [content_id(data[_SIZE * begin : _SIZE * end]) for begin, end in pairwise(offsets.tolist())], np.int64
    )
    stack_of = np.zeros(len(stacks) + 1, np.int64)
    stack_of[nodes] = ids
    # Addresses of one line are one frame, so that several stacks of the profile may have one content.
    stack_ids, first = np.unique(ids, return_index=True)
    lengths = np.diff(offsets)[first]
    begins = offsets_of(lengths)
    return Content(stack_of, stack_ids, begins, chains[spread(offsets[:-1][first], lengths, begins)], frames)


def _frames(profile: Profile, rows: I64) -> tuple[I64, dict[str, Any]]:
    """Return the id of each frame of the profile (0 if not in `rows`), and the columns of table `frames` for `rows`."""
    frames = profile.frames.take(rows)
    dsos, of_dso = np.unique(frames.dso, return_inverse=True)
    build_ids = merged([profile.build_id(dso) for dso in dsos.tolist()], of_dso.astype(np.int64))
    has_build = np.array([text != "" for text in build_ids.texts], np.bool_)[build_ids.codes]
    # Without a build-id, and in the kernel, an address says nothing outside of its process or boot.
    unnamed = (frames.symbol == 0) & has_build & ~frames.is_kernel()
    columns: dict[str, Any] = {
        "symbol": named(frames.symbol, profile.strings),
        "address": np.where(unnamed, frames.address.view(np.int64), 0),
        "dso": named(frames.dso, profile.strings),
        "build_id": build_ids,
        "file": named(frames.file, profile.strings),
        "line": frames.line,
        "inlined": frames.inline_depth > 0,
        "kernel": frames.is_kernel(),
    }
    parts = [column.codes if isinstance(column, Texts) else column for column in columns.values()]
    first, group_of = group(*parts)
    ids = np.array(_ids({name: taken(column, first) for name, column in columns.items()}), np.int64)
    unique, row = np.unique(ids, return_index=True)
    id_of = np.zeros(len(profile.frames), np.int64)
    id_of[rows] = ids[group_of]
    return id_of, {"frame_id": unique} | {name: taken(column, first[row]) for name, column in columns.items()}


def _ids(columns: dict[str, Any]) -> list[int]:
    """Hash each row of table `frames` to its id."""
    texts = [
        [values.texts[code] for code in values.codes.tolist()]
        if isinstance(values := columns[column.name], Texts)
        else [str(int(value)) for value in values.tolist()]
        for column in TABLES["frames"][1:]
    ]
    return [content_id("\0".join(row).encode()) for row in zip(*texts, strict=True)]
