# SPDX-License-Identifier: Apache-2.0
"""Write what a Perfetto trace says once and then refers to by number: names, frames, callstacks, details.

Numbers (iids) begin at 1; 0 is none. Source of the format: protos/perfetto/trace/interned_data,
profiling/profile_common.proto and track_event of https://github.com/google/perfetto.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from perf_offcpu.callpaths.names import NameKind
from perf_offcpu.callpaths.tree import PathTree
from perf_offcpu.convert.encode import protobuf
from perf_offcpu.convert.encode.protobuf import field
from perf_offcpu.model.columns import I64

CATEGORIES, EVENT_NAMES, ANNOTATION_NAMES, _FUNCTIONS = 1, 2, 3, 5
_FRAMES, _CALLSTACKS, _PATHS, _MAPPINGS, _ANNOTATION_STRINGS = 6, 7, 17, 19, 29
_KIND_NATIVE, _KIND_KERNEL = 1, 2
_BLOCK = 1 << 14


class Interned:
    """Strings of InternedData, numbered as they come."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._iids: dict[int, dict[str, int]] = {}

    def iid(self, kind: int, text: str) -> int:
        """Return the number of a text of a kind: CATEGORIES, EVENT_NAMES, ANNOTATION_NAMES."""
        known = self._iids.setdefault(kind, {})
        if text not in known:
            known[text] = len(known) + 1
            self.parts.append(field(kind, field(1, known[text]) + field(2, text)))
        return known[text]

    @property
    def event_names(self) -> int:
        """The number of event names so far."""
        return len(self._iids.get(EVENT_NAMES, {}))

    def annotation(self, name: str, text: str) -> bytes:
        """Return a DebugAnnotation field with a text."""
        ids = field(1, self.iid(ANNOTATION_NAMES, name)) + field(17, self.iid(_ANNOTATION_STRINGS, text))
        return field(4, ids)


def frames(tree: PathTree, names: int) -> bytes:
    """Write a tree's names: event name, function and frame of name i have iid names + i + 1."""
    dsos = {dso: row for row, dso in enumerate(sorted({name.dso for name in tree.names}), 1)}
    parts = []
    for dso, iid in dsos.items():
        parts.append(field(_PATHS, field(1, iid) + field(2, dso)))
        parts.append(field(_MAPPINGS, field(1, iid) + field(7, iid)))
    for iid, name in enumerate(tree.names, names + 1):
        kind = _KIND_KERNEL if name.kind == NameKind.KERNEL else _KIND_NATIVE
        parts.append(field(EVENT_NAMES, field(1, iid) + field(2, name.label)))
        parts.append(field(_FUNCTIONS, field(1, iid) + field(2, name.label)))
        ids = field(1, iid) + field(2, iid) + field(3, dsos[name.dso]) + field(7, kind)
        parts.append(field(_FRAMES, ids))
    return b"".join(parts)


def callstacks(tree: PathTree, nodes: I64, names: int) -> Iterable[bytes]:
    """Write the callstacks of distinct nodes, outermost frame first, in blocks: node i has iid i + 1."""
    for begin in range(0, len(nodes), _BLOCK):
        block = nodes[begin : begin + _BLOCK]
        paths = tree.paths(block)
        ids = protobuf.ragged(protobuf.numbers(2, paths.values + np.uint64(names + 1)), paths.offsets)
        heads = protobuf.numbers(1, block + 1)
        lengths = heads.lengths + np.array([len(one) for one in ids])
        heads = protobuf.joined(protobuf.lengths(_CALLSTACKS, lengths), heads)
        texts = protobuf.ragged(heads, np.arange(len(block) + 1))
        yield b"".join(part for pair in zip(texts, ids, strict=True) for part in pair)
