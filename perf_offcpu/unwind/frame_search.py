# SPDX-License-Identifier: Apache-2.0
"""Find the frame pointer of a function that keeps one (x86-64), where the registers of the thread are not known.

Of a thread that another process looks at while it sleeps, only stack pointer and program counter are known. Where the
frame rule is `rbp + 16`, the frame record is searched among the words above the stack pointer: the saved frame pointer
of the caller, then the return address, which follows a call. Records of callers link to each other; words that earlier
calls left behind link to them, too, but lie below the record that belongs to the same caller:

    R1 → R2 → R3 → …      frames of the thread, R1 of the function that is searched for
    stale → R2            left behind in the local variables of that function

So of the records that link to one, only the highest counts. The call before the return address must lead to the
function, as far as the instruction tells. Of several records, as of a recursion, the lowest is that of the function.
The frames after it are kept only if the walk from there ends at a root, or at the end of the copy of the stack."""

from collections.abc import Callable
from typing import Final

import numpy as np

from perf_offcpu.model.columns import I32, I64, U64, Bool
from perf_offcpu.model.lookup import NO_MAP, find_mappings
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects.symtab import NO_ADDRESS

RECORD: Final = np.uint64(16)  # bytes of a record, and the offset of the CFA from the frame pointer
_LEAST: Final = 1 << 16  # addresses below are no code
_CODE_END: Final = 1 << 47
_WORD: Final = 8

CallReader = Callable[[int, U64], tuple[Bool, U64]]
"""Function of a dso and file offsets uint64[n]. Returns bool[n], True if a call instruction ends there, and uint64[n],
the address in the file that it calls, NO_ADDRESS for another file's, or if the instruction does not tell."""
EntryReader = Callable[[int, int], tuple[int, frozenset[int]]]
"""(address space, code address) → (dso, addresses in the file at which the function of the code may begin)."""


class FrameSearch:
    """Search copies of stacks for frame records. `calls`: reads call instructions in files."""

    def __init__(self, recording: Recording, calls: CallReader) -> None:
        self._recording, self._calls = recording, calls
        self._known: dict[tuple[int, int], tuple[int, int]] = {}  # (space, address) → dso of a call or -1, its target

    def frame_pointer(self, space: int, words: U64, base: int, sp: int, pc: int, entries_of: EntryReader) -> int:
        """Return the frame pointer of the function with the address `pc`, whose part of the stack begins at `sp`; 0 if
        none is found. `words`: the copy of the stack, from the address `base` on. `space`: the address space.
        `entries_of`: finds the begins of functions."""
        first = max(0, (sp - base) // _WORD)
        top = base + _WORD * len(words)
        saved, back = words[first:-1].astype(np.uint64), words[first + 1 :]
        places = np.uint64(base) + np.uint64(_WORD) * np.arange(first, first + len(back), dtype=np.uint64)
        likely = (back >= _LEAST) & (back < _CODE_END) & ((back < base) | (back >= top))
        dsos, targets = self._calls_before(space, back[likely])
        has_call = dsos >= 0
        places, saved = places[likely][has_call], saved[likely][has_call]
        dsos, targets = dsos[has_call], targets[has_call]
        if not len(places):
            return 0
        row = np.minimum(np.searchsorted(places, saved), len(places) - 1)
        links = (places[row] == saved) & (saved > places)
        highest = np.full(len(places), -1)
        highest[row[links]] = np.flatnonzero(links)  # the last one of each is kept
        is_main = ~links | (highest[row] == np.arange(len(places)))
        dso, entries = entries_of(space, pc)
        leads_here = (dsos == dso) & np.isin(targets, list(entries))
        for fitting in (is_main & leads_here, is_main & (targets == NO_ADDRESS)):
            if fitting.any():
                return int(places[fitting][0])
        return 0

    def _calls_before(self, space: int, addresses: U64) -> tuple[I64, U64]:
        """Return (int64[n]: dso of the call before each address, or -1; uint64[n]: its target, or NO_ADDRESS)."""
        new = np.array(sorted({word for word in addresses.tolist() if (space, word) not in self._known}), np.uint64)
        if len(new):
            self._look_up(space, new)
        entries = [self._known[space, address] for address in addresses.tolist()]
        return np.array([dso for dso, _ in entries], np.int64), np.array([target for _, target in entries], np.uint64)

    def _look_up(self, space: int, addresses: U64) -> None:
        recording, maps = self._recording, self._recording.maps
        spaces: I32 = np.full(len(addresses), space, np.int32)
        rows = find_mappings(maps, recording.spaces, spaces, addresses - np.uint64(1))
        for row in sorted(set(rows.tolist())):
            words = addresses[rows == row]
            dso, calls = -1, (np.zeros(len(words), np.bool_), np.zeros(len(words), np.uint64))
            if row != NO_MAP:
                dso = int(maps.dso[row])
                calls = self._calls(dso, words - maps.start[row] + maps.pgoff[row])
            for address, is_call, target in zip(words.tolist(), calls[0].tolist(), calls[1].tolist(), strict=True):
                self._known[space, address] = dso if is_call else -1, target
