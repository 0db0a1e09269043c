# SPDX-License-Identifier: Apache-2.0
"""Name wait objects as people know them: tcp 10.0.0.7:5432, pipe to xz (1234), a path."""

from __future__ import annotations

import numpy as np

from perf_offcpu.model.columns import I32, U64
from perf_offcpu.model.profile import Objects
from perf_offcpu.model.recording import Recording, WaitObjects
from perf_offcpu.model.strings import Strings


def named_objects(recording: Recording, strings: Strings) -> Objects:
    """Return the objects of a recording in its order; `strings` gets their names."""
    objects = recording.objects
    return Objects.filled(
        len(objects),
        kind=objects.kind,
        name=objects.name,
        pid=objects.pid,
        address=objects.address,
        peer_pid=objects.peer_pid,
    )


def rows_of(ids: U64, objects: WaitObjects) -> I32:
    """Return int32[n]: the row of each id in the table; -1 where it is 0 or unknown."""
    place = np.searchsorted(objects.id, ids)
    found = np.append(objects.id, np.uint64(0))[place] == ids
    return np.where(found & (ids != 0), place, -1).astype(np.int32)
