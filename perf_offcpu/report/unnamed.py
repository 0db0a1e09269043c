# SPDX-License-Identifier: Apache-2.0
"""Find the file whose functions lack names most, and say how its debug symbols are had.

Debug symbols are identified by build-id, so the advice holds for recordings of other hosts and distributions,
too. Whether anyone keeps them cannot be known here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perf_offcpu import losses
from perf_offcpu.analysis.causes import innermost
from perf_offcpu.analysis.group import group, sum_by
from perf_offcpu.model.profile import Profile
from perf_offcpu.structs import frozen
from perf_offcpu.text import printable

_CANDIDATES = 4
_LEAST_PERCENT = 1
_PADDING = b"\0" * 4
"""Records pad short build-ids with zeros; a build-id ends so once in 2^32."""
_NO_FILE = {
    cause.name for cause in (losses.FILE_MISSING, losses.FILE_DELETED, losses.FILE_DENIED, losses.OTHER_BUILD)
}


@frozen
class Unnamed:
    """A file with code that has no names."""

    dso: str  # path as recorded
    build_id: str  # hex
    addresses: int  # number of distinct addresses without a name
    weight: int  # of the samples whose stacks have one of them
    has_file: bool  # the file itself was found

    @property
    def commands(self) -> list[str]:
        """Return the commands that fetch its symbols, from servers that have this build."""
        kinds = ["debuginfo"] if self.has_file else ["executable", "debuginfo"]
        return [f"debuginfod-find {kind} {self.build_id}" for kind in kinds]


def unnamed_of(profile: Profile) -> Unnamed | None:
    """Return the file with a build-id whose unnamed code is on the stacks of most weight; None below 1 %."""
    found = max(_candidates(profile), key=lambda one: (one.weight, one.dso), default=None)
    whole = int(profile.samples.period.sum())
    return found if found and 100 * found.weight >= _LEAST_PERCENT * whole > 0 else None


def _candidates(profile: Profile) -> Iterator[Unnamed]:
    """Return the files with most unnamed addresses."""
    frames, samples = profile.frames, profile.samples
    nameless = (frames.symbol == 0) & ~frames.is_kernel()
    known = [dso for dso in np.unique(frames.dso[nameless]).tolist() if profile.build_id(dso)]
    counts = {dso: len(np.unique(frames.address[nameless & (frames.dso == dso)])) for dso in known}
    first, of = group(samples.stack)
    leaf = samples.stack[first].astype(np.int64)
    weight = sum_by(of, samples.period, len(first))
    for dso in sorted(counts, key=lambda one: -counts[one])[:_CANDIDATES]:
        hit = innermost(profile, leaf, nameless & (frames.dso == dso)) >= 0
        path = profile.strings[dso]
        yield Unnamed(
            path,
            _trimmed(profile.build_id(dso)),
            counts[dso],
            int(weight[hit].sum()),
            _has_file(profile, path),
        )


def _trimmed(build_id: str) -> str:
    raw = bytes.fromhex(build_id)
    return (raw.rstrip(b"\0") if raw.endswith(_PADDING) else raw).hex()


def _has_file(profile: Profile, path: str) -> bool:
    return not any(cause.name in _NO_FILE and cause.text.startswith(f"{path}: ") for cause in profile.losses)


def advice(unnamed: Unnamed, share: str) -> str:
    """Return the sentence of the report.

    Args:
        share: of its weight.
    """
    addresses = f"{unnamed.addresses} address{'' if unnamed.addresses == 1 else 'es'}"
    return (
        f"{printable(unnamed.dso)} has {addresses} without a name, on the stacks of {share}. "
        f"Its debug symbols may have them: {' and '.join(unnamed.commands)} (with DEBUGINFOD_URLS), "
        "or a package: see NAMES in perf-offcpu-report(1)"
    )
