# SPDX-License-Identifier: Apache-2.0
"""Names of addresses that stand beside callchains: in branches, in the field `addr`, in tracepoints' data."""

from __future__ import annotations

import dataclasses

import numpy as np

from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I32, I64, U64
from perf_offcpu.model.mappings import NO_MAP, find_mappings
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Recording, Samples
from perf_offcpu.symbolize.symbolizer import SymbolizeOptions, symbolize

_KERNEL_HALF = np.uint64(1 << 63)


@dataclasses.dataclass(frozen=True, slots=True)
class Addresses:
    """n addresses, each in the space of a process; those of the upper half are the kernel's in any.

    Args:
        space: int32[n], rows in `Recording.spaces`; ip: uint64[n].
    """

    space: I32
    ip: U64

    def unique(self) -> Addresses:
        """Each once, the kernel's without their space, in order."""
        space = np.where(self.ip >= _KERNEL_HALF, np.int32(-1), self.space)
        order = np.lexsort((self.ip, space))
        space, ip = space[order], self.ip[order]
        first = np.ones(len(ip), np.bool_)
        first[1:] = (space[1:] != space[:-1]) | (ip[1:] != ip[:-1])
        return Addresses(space[first], ip[first])

    def rows_of(self, space: I32, ip: U64) -> I64:
        """int64[m]: where addresses are among these, which are `unique`; -1 for none."""
        places = {
            pair: row for row, pair in enumerate(zip(self.space.tolist(), self.ip.tolist(), strict=True))
        }
        spaces = np.where(ip >= _KERNEL_HALF, np.int32(-1), space).tolist()
        found = [places.get(pair, -1) for pair in zip(spaces, ip.tolist(), strict=True)]
        return np.array(found, np.int64)


def symbolize_with(recording: Recording, options: SymbolizeOptions, wanted: Addresses) -> tuple[Profile, I32]:
    """As `symbolize`, and name some addresses more.

    Returns:
        (profile, frames): int32[n], the row in `profile.frames` of each address, -1 where nothing is mapped.
    """
    kernel = wanted.ip >= _KERNEL_HALF
    maps = find_mappings(recording.maps, recording.spaces, wanted.space, wanted.ip)
    known = np.flatnonzero(kernel | (maps != NO_MAP))
    count, chains = len(recording.samples), recording.callchains
    marker = np.where(kernel, np.uint64(CallchainContext.KERNEL), np.uint64(CallchainContext.USER))
    words = np.stack([marker[known], wanted.ip[known]], axis=1).reshape(-1)
    extra = Samples.filled(
        len(known),
        space=wanted.space[known],
        ip=wanted.ip[known],
        cpumode=np.where(kernel[known], CpuMode.KERNEL, CpuMode.USER),
        callchain=np.arange(len(known)) + len(chains),
    )
    profile = symbolize(
        recording.replaced(
            samples=Samples.concat([recording.samples, extra]),
            callchains=Ragged.concat([chains, Ragged(np.arange(len(known) + 1, dtype=np.int64) * 2, words)]),
        ),
        options,
    )
    frames = np.full(len(wanted.ip), -1, np.int32)
    frames[known] = _outermost(profile, profile.samples.stack[count:])
    return profile.select(np.arange(count)), frames


def _outermost(profile: Profile, stack: I32) -> I32:
    """The frames of stacks of one address: the function itself, not what is inlined in it."""
    parent, frame = np.append(profile.stacks.parent, -1), np.append(profile.stacks.frame, -1)
    while (deeper := parent[stack] >= 0).any():
        stack = np.where(deeper, parent[stack], stack)
    return frame[stack].astype(np.int32)
