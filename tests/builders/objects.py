# SPDX-License-Identifier: Apache-2.0
"""Recordings of one dso, to find its file as symbolization does."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perf_offcpu.losses import LossCause
from perf_offcpu.model.columns import Strings
from perf_offcpu.model.recording import Dsos, Maps, Meta, Recording, Spaces
from perf_offcpu.objects.elf.image import open_elf
from perf_offcpu.objects.files import _ALLOWANCE_NS, Refused, find_dso
from perf_offcpu.objects.functions import ElfFile
from perf_offcpu.objects.search import Search
from perf_offcpu.objects.symtab import SymbolTable


def elf_build_id(path: str) -> bytes:
    """Return the GNU build-id of an ELF file, b"" if it has none."""
    with open_elf(path) as image:
        return image.build_id


def names_of(table: SymbolTable) -> list[str]:
    return [*map(table.name, range(len(table)))]


def names_at(table: SymbolTable, *addresses: int) -> list[str]:
    """Return the symbol that covers each address, "" where there is none."""
    return [table.name(row) if row >= 0 else "" for row in table.lookup(np.array(addresses, np.uint64)).tolist()]


class Found(NamedTuple):
    """The functions of an object, or the cause why there are none."""

    elf: ElfFile | None
    cause: LossCause | None


def recording_of_dso(
    name: str, build_id: bytes = b"", pids: Sequence[int] = (), changed_after_ns: int = 0
) -> Recording:
    """Return a recording in which processes had an object mapped, dso 0. `changed_after_ns` is the time, with the usual
    allowance, at which the recording was complete; 0 unknown."""
    strings, number = Strings(), len(pids)
    ids = strings.intern(name), strings.intern(build_id.hex())
    complete_ns = changed_after_ns - _ALLOWANCE_NS
    return Recording(
        strings=strings, dsos=Dsos.filled(1, path=np.array(ids[:1]), build_id=np.array(ids[1:])),
        spaces=Spaces.filled(number, pid=np.array(pids)),
        maps=Maps.filled(number, space=np.arange(number), dso=np.zeros(number)),
        meta=Meta(wall_clock_ns=complete_ns, last_ns=1, wall_clock_at_ns=1) if changed_after_ns else Meta(),
    )  # fmt: skip


def find_object(
    name: str, build_id: bytes = b"", search: Search | None = None, pids: Sequence[int] = (), changed_after_ns: int = 0
) -> Found:
    recording = recording_of_dso(name, build_id, pids, changed_after_ns)
    try:
        return Found(find_dso(recording, 0, search or Search()), None)
    except Refused as problem:
        return Found(None, problem.cause)
