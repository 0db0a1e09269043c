# SPDX-License-Identifier: Apache-2.0
"""Name futexes: by the variable that they are in, or by the kind of lock and the function that takes it.

ledger_lock in bank                      a variable of an executable or library
accounts+0x28 in bank                    an array or structure, and where in it
shared /dev/shm/queue+0x40               memory that processes share
lock heap 0x55d0c8a012c0 (via transfer)  other memory: TRANSFER is the function that takes the lock

A recording has executable mappings only. Its file puts .data and .bss at fixed distances from its code, in
executables at fixed addresses, PIE and shared objects alike: the mapping of the code next below an address
tells the file and where it was loaded, the program headers of the file how far its data reach. The rules for
variables are those of functions (`objects.symtab`), with the roles exchanged: data objects have names, and
functions only bound them. Labels without a type (`__bss_start`, `_edata`) name no variable. Variables of
threads (.tdata, .tbss) lie elsewhere in each thread and are left out by their type."""

import posixpath
import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final, NamedTuple

import numpy as np

from perf_offcpu.abi.elf import SectionType
from perf_offcpu.cache import cache_name
from perf_offcpu.errors import FormatError
from perf_offcpu.model.columns import I32, U16, U64, distinct, group
from perf_offcpu.model.profile import ObjectFact, Profile
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects.elf.headers import Rows
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.files import Refused, open_dso
from perf_offcpu.objects.functions import file_offset_to_vaddr, listed_symbols
from perf_offcpu.objects.perf_map import is_jit_memory
from perf_offcpu.objects.search import Search, open_debug
from perf_offcpu.objects.symtab import NO_ADDRESS, UNTYPED, VERSION, SymbolTable, join
from perf_offcpu.symbolize.demangle import demangle
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.wait_objects.rows import ObjectRow
from perf_offcpu.text import SYMBOL_SUFFIX, basename, frame_label


class Noun(NamedTuple):
    """Describes a kind of lock: its functions, and the bytes of its structure on 64-bit machines."""

    functions: re.Pattern[str]
    size: int


_NOUNS: Final = {
    "thread": Noun(re.compile(r"_*pthread_\w*join\w*"), 4),
    "barrier": Noun(re.compile(r"_*pthread_barrier_\w+"), 32),
    "rwlock": Noun(re.compile(r"_*pthread_rwlock_\w+"), 56),
    "lock": Noun(re.compile(r"_*(GI_+)?(_*pthread_mutex_\w+|lll_\w*lock\w*)|mtx_\w*lock|g_(rec_)?mutex_lock\w*"), 40),
    "condition": Noun(re.compile(r"_*pthread_cond_\w+|cnd_\w*wait|g_cond_wait\w*"), 48),
    "semaphore": Noun(re.compile(r"sem_\w*wait|__new_sem_\w+|_*do_futex_wait\w*"), 32),
}
"""Kind → functions; in a stack the match next to the leaf counts: pthread_cond_wait() ends by taking a mutex."""
_UNNAMED: Final = "futex"
_NOUN_OF_FACT: Final = {ObjectFact.THREAD: "thread", ObjectFact.MUTEX: "lock", ObjectFact.RWLOCK: "rwlock"}
_OTHER_NOUN: Final = Noun(re.compile(r"(?!)"), 4)
_BELOW: Final = re.compile(
    r"_*futex\w*|_*syscall|__gthread_.*|<?(std|core|alloc|parking_lot|parking_lot_core|lock_api|crossbeam_\w+|__cxxabiv1)::.*"
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
    """Return row in the recording's objects → name, of its futexes. `profile`: of the recording. `objects`: row →
    futex. `facts`: uint16[objects of the recording], ObjectFact. `row`: int32[samples], object of each sample or -1."""
    rows = np.array(sorted(objects), np.int64)
    space, stack = _usual(rows, row, recording.samples.space), _usual(rows, row, profile.samples.stack)
    places = [objects[number].place for number in rows.tolist()]
    # Heap, stack and shared memory have no variables of a file.
    elsewhere = np.array([place in ("heap", "stack") or bool(_SHARED.search(place)) for place in places], np.bool_)
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


def _name(object_row: ObjectRow, variable: "Variable | None", file: str, noun: str, function: str) -> FutexName:
    if object_row.name:  # a lock of a JVM
        return FutexName(object_row.name, object_row.name, is_shared=False)
    via = f" (via {function})" if function else ""
    if variable and variable.symbol:
        is_lock_alone = variable.size <= _NOUNS.get(noun, _OTHER_NOUN).size
        offset = "" if is_lock_alone or not variable.offset else f"+{variable.offset:#x}"
        text = f"{variable.symbol}{offset} in {posixpath.basename(file)}"
        return FutexName(text, text, is_shared=False)
    if _SHARED.search(object_row.place):
        text = f"shared {object_row.place.replace(_ANONYMOUS, 'memory')}"
        return FutexName(text, text, is_shared=True)
    if variable:
        text = f"{noun} in {posixpath.basename(file)}+{variable.offset:#x}{via}"
        return FutexName(text, text, is_shared=False)
    where = f"{noun} {object_row.place}".rstrip()
    if object_row.place.startswith("/"):
        where = f"{noun} in {posixpath.basename(object_row.place)}"
    return FutexName(f"{where} {object_row.address:#x}{via}", f"{where}{via}", is_shared=False)


def _usual(rows: np.ndarray[tuple[int], np.dtype[np.int64]], row: I32, values: I32) -> I32:
    """Return int32[rows]: the most frequent of `values` (int32[samples]; -1 does not count) in the samples of each
    object in `rows`, sorted; -1 none. `row`: int32[samples], row of each sample's object; -1 none."""
    places = np.flatnonzero((row >= 0) & (values >= 0))
    first, pair_of_sample = group(row[places], values[places])
    first = first[np.lexsort((np.bincount(pair_of_sample), row[places[first]]))]
    owner, value = row[places[first]], values[places[first]]
    last = np.searchsorted(owner, rows, side="right") - 1
    is_owner = (last >= 0) & (np.append(owner, -1)[last] == rows)
    return np.where(is_owner, np.append(value, -1)[last], -1).astype(np.int32)


class _Callers:
    """Finds the kind of lock and the function that takes it in stacks of a profile."""

    def __init__(self, profile: Profile) -> None:
        self._profile, self._is_kernel = profile, profile.frames.is_kernel()
        self._known: dict[int, tuple[str, str]] = {-1: (_UNNAMED, "")}

    def of(self, stack: int) -> tuple[str, str]:
        """Return (kind of lock, a key of _NOUNS or _UNNAMED; function that takes it, "" unknown) of a row of stacks."""
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


KIND: Final = f"variables{VERSION}"  # kind of cache file


def variables_of(image: ElfImage, search: Search) -> SymbolTable:
    """Return the variables of an open file, or of its debug file, by virtual address in the file. Raises OSError: it
    cannot be read; FormatError: a symbol table is damaged."""
    with ExitStack() as stack:
        has_own = image.section_of_type(SectionType.SYMTAB) is not None
        debug = None if has_own else open_debug(image, search, b".symtab", stack)
        identities = image.source.identity, debug.source.identity if debug else ()
        name = cache_name(KIND, image.build_id, *identities)
        columns = search.cache.read(name) if search.cache else None
        table = None if columns is None else SymbolTable.from_columns(columns)
        if table is None:
            table = _read_variables(image, debug or image)
            if search.cache:
                search.cache.write(name, table.columns())
        return table


def _read_variables(image: ElfImage, full: ElfImage) -> SymbolTable:
    tables = (full, full.section_of_type(SectionType.SYMTAB)), (image, image.section_of_type(SectionType.DYNSYM))
    rows, strings = join(listed_symbols(elf_file, table) for elf_file, table in tables if table is not None)
    is_variable = (rows.code == 0) & (rows.rank < UNTYPED)
    return SymbolTable(rows.with_columns(code=is_variable.astype(rows.code.dtype)), strings)


class Variable(NamedTuple):
    """Describes a place in the data of a file: the variable that covers it, if any."""

    dso: int  # string: path of the file
    symbol: str  # as the file spells it; "" for a place that no symbol covers
    size: int  # of the variable, bytes
    offset: int  # from the start of the variable; without one, the address as in the file


class _File(NamedTuple):
    loads: Rows
    table: SymbolTable


def find_variables(recording: Recording, spaces: I32, addresses: U64, search: Search) -> list[Variable | None]:
    """Return the variable at each of n addresses; None where it is not in the data of a known file. `spaces`: int32[n],
    rows in the recording's spaces; -1 unknown."""
    maps, variables = recording.maps, list[Variable | None]()
    rows = _maps_below(recording, spaces, addresses)
    files: dict[int, _File | None] = {}
    for row, address in zip(rows.tolist(), addresses.tolist(), strict=True):
        dso = int(maps.dso[row]) if row >= 0 else -1
        if dso not in files:
            files[dso] = _read(recording, dso, search) if dso >= 0 else None
        file, variable = files[dso], None
        if file is not None and (place := _address_in(file.loads, recording, row, address)) is not None:
            variable = _variable(file, place, int(recording.dsos.path[dso]))
        variables.append(variable)
    return variables


def _maps_below(recording: Recording, spaces: I32, addresses: U64) -> I32:
    """Return int32[n]: row in maps of the last mapping of spaces[i] that begins at or below addresses[i]; -1 none."""
    maps = recording.maps
    row = np.full(len(addresses), -1, np.int32)
    for space in distinct(spaces[spaces >= 0]).tolist():
        low, high = (int(np.searchsorted(maps.space, space, side)) for side in ("left", "right"))
        rows = np.flatnonzero(spaces == space)
        place = np.searchsorted(maps.start[low:high], addresses[rows], side="right") - 1 + low
        row[rows] = np.where(place >= low, place, -1)
    return row


def _read(recording: Recording, dso: int, search: Search) -> _File | None:
    if is_jit_memory(recording.strings[int(recording.dsos.path[dso])]):
        return None
    try:
        with ExitStack() as stack:
            image = open_dso(recording, dso, search, stack)
            return _File(image.loads, variables_of(image, search))
    except (Refused, FormatError, OSError):
        return None  # the functions of the file count it as a loss


def _address_in(loads: Rows, recording: Recording, row: int, address: int) -> int | None:
    """Return the file's virtual address for an address of a process, by map `row`; None outside of all segments."""
    maps = recording.maps
    code = int(file_offset_to_vaddr(loads, maps.pgoff[row : row + 1])[0])
    if code == int(NO_ADDRESS):
        return None
    place = address - int(maps.start[row]) + code
    ends = zip(loads["p_vaddr"].tolist(), loads["p_memsz"].tolist(), strict=True)
    return place if any(start <= place < start + size for start, size in ends) else None


def _variable(file: _File, address: int, dso: int) -> Variable:
    row = int(file.table.lookup(np.array([address], np.uint64))[0])
    if row < 0:
        return Variable(dso, "", 0, address)
    start, end = int(file.table.start[row]), int(file.table.end[row])
    return Variable(dso, file.table.name(row), end - start, address - start)
