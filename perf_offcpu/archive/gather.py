# SPDX-License-Identifier: Apache-2.0
"""Gathering what names the addresses of a recording, for another machine or a later day.

    .build-id/ab/cdef…            link to the directory of that build
    usr/bin/app/abcdef…/elf       the object; debug: its debug file
    [vdso]/…/vdso, [kernel.kallsyms]/…/kallsyms
    usr/bin/old                   an object without a build-id, under its path
    tmp/perf-123.map              the map of code that a program made

This is perf's build-id cache (tools/perf/util/build-id.c): both tools read it as --buildid-dir, this one as
--symfs too. Objects are taken only if addresses of the recording lie in them, and only if they are the
recorded ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import field
from typing import Final, Protocol

import numpy as np

from perf_offcpu.abi.records import CpuMode
from perf_offcpu.errors import FormatError
from perf_offcpu.losses import Losses
from perf_offcpu.model.mappings import KERNEL_DSO, NO_MAP, find_mappings
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects import vdso
from perf_offcpu.objects.debug_files import open_debug
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.elf.source import Source, open_regular
from perf_offcpu.objects.files import Refused, open_object, refusal
from perf_offcpu.objects.origin import pids_of_dso, recorded_until
from perf_offcpu.objects.perf_map import is_jit_memory, perf_map_paths
from perf_offcpu.objects.search import DELETED, Search
from perf_offcpu.structs import mutable
from perf_offcpu.symbolize.kernel.files import KernelSources
from perf_offcpu.symbolize.kernel.kallsyms import MAX_BYTES
from perf_offcpu.symbolize.kernel.names import KernelNames
from perf_offcpu.symbolize.symbolizer import locations_of

_BLOCK: Final = 1 << 20


class Store(Protocol):
    """Where files go: a directory or an archive."""

    def has(self, name: str) -> bool:
        """Whether a file of that name is there already."""

    def add(self, name: str, size: int, blocks: Iterator[bytes]) -> None:
        """Put a file there.

        Args:
            name: relative, without `..`.
            size: of all blocks together.
        """

    def link(self, name: str, target: str) -> None:
        """Put a symbolic link there, unless there is one."""


@mutable
class Saved:
    """What became of the objects.

    Args:
        files, size: number of files put there, and their bytes.
        missing: name → why it could not be had.
    """

    files: int = 0
    size: int = 0
    missing: dict[str, str] = field(default_factory=dict)


class SymbolSaver:
    """Puts what a recording needs into a store.

    Args:
        recording: whose addresses are to be named.
        store: where files go.
        search: where they are looked for.
        kallsyms: the recorded kernel's, if the user has it; None: the running kernel's if it is that one.
        debug: debug files too.
    """

    def __init__(
        self,
        recording: Recording,
        store: Store,
        search: Search,
        kallsyms: str | None = None,
        *,
        debug: bool = True,
    ) -> None:
        self.recording, self.store, self.search = recording, store, search
        self.kallsyms, self.debug = kallsyms, debug
        self.missing: dict[str, str] = {}
        self.saved = Saved(missing=self.missing)

    def save(self) -> Saved:
        """Do it."""
        _, locations, _, _ = locations_of(self.recording)
        rows = find_mappings(self.recording.maps, self.recording.spaces, locations.space, locations.lookup)
        dsos = np.unique(self.recording.maps.dso[rows[rows != NO_MAP]]).tolist()
        for dso in dsos:
            self._save_dso(dso)
        if bool((locations.cpumode == CpuMode.KERNEL).any()):
            self._save_kernel()
        return self.saved

    def _save_dso(self, dso: int) -> None:
        strings, dsos = self.recording.strings, self.recording.dsos
        path, build_id = strings[int(dsos.path[dso])], bytes.fromhex(strings[int(dsos.build_id[dso])])
        if path.startswith(KERNEL_DSO) or (dsos.cpumode[dso] == CpuMode.KERNEL and path.startswith("[")):
            return  # kallsyms has both
        if is_jit_memory(path):
            self._save_maps(pids_of_dso(self.recording, dso))
            return
        try:
            with ExitStack() as stack:
                changed = recorded_until(self.recording.meta)
                pids = pids_of_dso(self.recording, dso)
                image = open_object(path, build_id, self.search, pids, stack, changed_after_ns=changed)
                self._save_object(path.removesuffix(DELETED), image, stack)
        except (OSError, FormatError, Refused) as problem:
            self.missing[path] = str(problem)

    def _save_object(self, path: str, image: ElfImage, stack: ExitStack) -> None:
        build_id = image.build_id.hex()
        if not build_id:
            if refusal(path) is None:
                self._put(path.lstrip("/"), image)
            return
        directory = f"{_relative(path)}/{build_id}"
        self._put(f"{directory}/{'vdso' if path == vdso.NAME else 'elf'}", image)
        self._link(build_id, directory)
        if self.debug and path != vdso.NAME:
            wanted = b".symtab" if image.section_named(b".debug_info") else b".debug_info"
            debug = None if image.section_named(wanted) else open_debug(image, self.search, wanted, stack)
            if debug is not None:
                self._put(f"{directory}/debug", debug)

    def _save_maps(self, pids: list[int]) -> None:
        """Maps of made code; who may be believed is decided again when they are read."""
        for pid in pids:
            for path in perf_map_paths(pid, self.search.symfs):
                try:
                    self._copy(f"tmp/perf-{pid}.map", path)
                    break
                except (OSError, FormatError) as problem:
                    self.missing[path] = str(problem)

    def _save_kernel(self) -> None:
        names = KernelNames(
            self.recording,
            self.recording.strings.copy(),
            KernelSources(kallsyms=self.kallsyms, search=self.search),
            Losses(),
        )
        if not names.kallsyms_path:
            self.missing[KERNEL_DSO] = "there are no symbols of the recorded kernel here"
            return
        build_id = names.build_id.hex()
        directory = f"{KERNEL_DSO}/{build_id}" if build_id else "proc"
        with open(names.kallsyms_path, "rb") as file:
            text = file.read(MAX_BYTES)  # at once: the kernel's own has no size and changes
        self._add(f"{directory}/kallsyms", len(text), iter([text]))
        if build_id:
            self._link(build_id, directory)

    def _put(self, name: str, image: ElfImage) -> None:
        self._add(name, image.source.size, _blocks(image.source))

    def _copy(self, name: str, path: str) -> None:
        fd = open_regular(path)
        try:
            source = Source(path, fd)
            self._add(name, source.size, _blocks(source))
        finally:
            os.close(fd)

    def _add(self, name: str, size: int, blocks: Iterator[bytes]) -> None:
        if not self.store.has(name):
            self.store.add(name, size, blocks)
            self.saved.files += 1
            self.saved.size += size

    def _link(self, build_id: str, directory: str) -> None:
        if len(build_id) > 2:
            self.store.link(f".build-id/{build_id[:2]}/{build_id[2:]}", f"../../{directory}")


def _relative(path: str) -> str:
    """A directory for an object in the store: its path, if that is a plain one, else its name only."""
    if path == vdso.NAME or refusal(path) is None:
        return path.lstrip("/")
    return f"other/{os.path.basename(path) or 'object'}".replace("..", "__")


def _blocks(source: Source) -> Iterator[bytes]:
    """Yield the bytes of a source, zeros where it has become shorter."""
    at = 0
    while at < source.size:
        size = min(_BLOCK, source.size - at)
        block = source.read(at, size) or bytes(size)
        yield block
        at += len(block)
