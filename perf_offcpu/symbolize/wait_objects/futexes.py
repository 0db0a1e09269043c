# SPDX-License-Identifier: Apache-2.0
"""Name futexes: by the variable that they are in, or by the kind of lock and the function that takes it.

ledger_lock in bank                      a variable of an executable or library
accounts+0x28 in bank                    an array or structure, and where in it
shared /dev/shm/queue+0x40               memory that processes share
lock heap 0x55d0c8a012c0 (via transfer)  other memory: TRANSFER is the function that takes the lock
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from perf_offcpu.model.columns import I32, U16
from perf_offcpu.model.profile import ObjectFact, Profile
from perf_offcpu.model.recording import Recording
from perf_offcpu.symbolize.demangle import demangle
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.wait_objects.rows import ObjectRow
from perf_offcpu.symbolize.wait_objects.variables import Variable, find_variables
from perf_offcpu.text import SYMBOL_SUFFIX, basename, frame_label


class Noun(NamedTuple):
    """Describes a kind of lock: its functions, and the bytes of its structure on 64-bit machines."""

    functions: re.Pattern[str]
    size: int


_NOUNS: Final = {
    "thread": Noun(re.compile(r"_*pthread_\w*join\w*"), 4),
    "barrier": Noun(re.compile(r"_*pthread_barrier_\w+"), 32),
    "rwlock": Noun(re.compile(r"_*pthread_rwlock_\w+"), 56),
    "lock": Noun(re.compile(r"_*(GI_+)?(_*pthread_mutex_\w+|lll_\w*lock\w*)|mtx_\w*lock"), 40),
    "condition": Noun(re.compile(r"_*pthread_cond_\w+|cnd_\w*wait"), 48),
    "semaphore": Noun(re.compile(r"sem_\w*wait|__new_sem_\w+|_*do_futex_wait\w*"), 32),
}
"""Kind → functions; in a stack the match next to the leaf counts: pthread_cond_wait() ends by taking a mutex."""
_UNNAMED: Final = "futex"
_NOUN_OF_FACT: Final = {ObjectFact.THREAD: "thread", ObjectFact.MUTEX: "lock", ObjectFact.RWLOCK: "rwlock"}
_OTHER_NOUN: Final = Noun(re.compile(r"(?!)"), 4)
_BELOW: Final = re.compile(
    r"_*futex\w*|_*syscall|__gthread_.*|<?(std|core|alloc|parking_lot|parking_lot_core|lock_api|__cxxabiv1)::.*"
    r"|(runtime|sync|internal/.*)\.[^/]*|Unsafe_Park|Monitor::.*|Mutex::.*|PlatformMonitor::.*|Parker::.*"
    r"|ObjectMonitor::.*|PyThread_\w+|_?PyMutex_\w+|_?PyEvent_\w+|take_gil|_?PySemaphore_\w+|_?PyParkingLot_\w+"
)
"""Functions of runtimes that take locks for the program."""
_LIBRARIES: Final = re.compile(r"(ld|libc|libpthread|libstdc\+\+|libc\+\+|libgcc_s)[-.].*|\[v(dso|syscall)\]")
_ANONYMOUS: Final = "/dev/zero (deleted)"  # the kernel's name of shared memory without a file, which processes inherit
_SHARED: Final = re.compile(r"\+0x[0-9a-f]+$")


class FutexName(NamedTuple):
    """Holds the name of a futex, and the name that the next run gives it, too: without the address."""

    text: str
    stable: str
    is_shared: bool  # True if it is in memory that several processes can map under this name


def futex_names(
    profile: Profile,
    recording: Recording,
    objects: Mapping[int, ObjectRow],
    facts: U16,
    row: I32,
    options: SymbolizeOptions,
) -> dict[int, FutexName]:
    """Return row in the recording's objects → name.

    Args:
        profile: of the recording.
        objects: the futexes by row.
        facts: uint16[objects of the recording], ObjectFact.
        row: int32[samples], the object of each sample.
    """
    rows = np.array(sorted(objects), np.int64)
    space, stack = _usual(rows, row, recording.samples.space), _usual(rows, row, profile.samples.stack)
    elsewhere = np.array([_is_elsewhere(objects[number].place) for number in rows.tolist()], np.bool_)
    addresses = recording.objects.address[rows]
    variables = find_variables(recording, np.where(elsewhere, -1, space).astype(np.int32), addresses, options.search())
    names = [variable.symbol if variable else "" for variable in variables]
    if options.demangle:
        names = demangle(names)
    callers = _Callers(profile)
    result = {}
    for index, number in enumerate(rows.tolist()):
        noun, function = callers.of(int(stack[index]))
        if noun == _UNNAMED:
            noun = next((name for fact, name in _NOUN_OF_FACT.items() if facts[number] & fact), noun)
        variable = variables[index]
        if variable is not None:
            variable = variable._replace(symbol=SYMBOL_SUFFIX.sub("", names[index]))
        file = recording.strings[variable.dso] if variable else ""
        result[number] = _name(objects[number], variable, file, noun, function)
    return result


def _name(object_row: ObjectRow, variable: Variable | None, file: str, noun: str, function: str) -> FutexName:
    via = f" (via {function})" if function else ""
    if variable and variable.symbol:
        whole = variable.size <= _NOUNS.get(noun, _OTHER_NOUN).size
        offset = "" if whole or not variable.offset else f"+{variable.offset:#x}"
        text = f"{variable.symbol}{offset} in {_leaf(file)}"
        return FutexName(text, text, is_shared=False)
    if _SHARED.search(object_row.place):
        text = f"shared {object_row.place.replace(_ANONYMOUS, 'memory')}"
        return FutexName(text, text, is_shared=True)
    if variable:
        text = f"{noun} in {_leaf(file)}+{variable.offset:#x}{via}"
        return FutexName(text, text, is_shared=False)
    where = f"{noun} {object_row.place}".rstrip()
    if object_row.place.startswith("/"):
        where = f"{noun} in {_leaf(object_row.place)}"
    return FutexName(f"{where} {object_row.address:#x}{via}", f"{where}{via}", is_shared=False)


def _is_elsewhere(place: str) -> bool:
    """Return True if `place` names memory without variables of a file: heap, stack, shared memory."""
    return place in ("heap", "stack") or bool(_SHARED.search(place))


def _leaf(path: str) -> str:
    return path.rpartition("/")[2]


def _usual(rows: np.ndarray[tuple[int], np.dtype[np.int64]], row: I32, values: I32) -> I32:
    """Return int32[rows]: the most frequent value >= 0 in samples of object rows[i]; -1 if no sample has one. `row`
    (object) and `values`: int32[samples]."""
    places = np.flatnonzero((row >= 0) & (values >= 0))
    keys, counts = np.unique(row[places].astype(np.int64) << 32 | values[places], return_counts=True)
    order = np.lexsort((counts, keys >> 32))
    owner, value = (keys >> 32)[order], (keys & 0xFFFFFFFF)[order]
    last = np.searchsorted(owner, rows, side="right") - 1
    is_owner = (last >= 0) & (np.append(owner, -1)[last] == rows)
    return np.where(is_owner, np.append(value, -1)[last], -1).astype(np.int32)


class _Callers:
    """Finds the kind of lock and the function that takes it in stacks of a profile."""

    def __init__(self, profile: Profile) -> None:
        self._profile, self._is_kernel = profile, profile.frames.is_kernel()
        self._known: dict[int, tuple[str, str]] = {-1: (_UNNAMED, "")}

    def of(self, stack: int) -> tuple[str, str]:
        """Return (noun of the lock, function that takes it) of a row of stacks; the function is "" if unknown."""
        if stack not in self._known:
            self._known[stack] = self._walk(stack)
        return self._known[stack]

    def _walk(self, stack: int) -> tuple[str, str]:
        stacks, frames, strings = self._profile.stacks, self._profile.frames, self._profile.strings
        noun = ""
        while stack >= 0:
            frame, stack = int(stacks.frame[stack]), int(stacks.parent[stack])
            if self._is_kernel[frame]:
                continue
            symbol = SYMBOL_SUFFIX.sub("", strings[int(frames.symbol[frame])])
            dso = strings[int(frames.dso[frame])]
            means = next((name for name, row in _NOUNS.items() if row.functions.fullmatch(symbol)), "")
            noun = noun or means
            if means or _BELOW.fullmatch(symbol) or _LIBRARIES.fullmatch(basename(dso)):
                continue
            return noun or _UNNAMED, frame_label(symbol, dso)
        return noun or _UNNAMED, ""
