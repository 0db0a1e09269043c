# SPDX-License-Identifier: Apache-2.0
"""Gather the files that name the addresses of a recording, for another machine or a later day.

    .build-id/ab/cdef…            link to the directory of that build
    usr/bin/app/abcdef…/elf       the object; debug: its debug file
    [vdso]/…/vdso, [kernel.kallsyms]/…/kallsyms
    usr/bin/old                   an object without a build-id, under its path
    tmp/perf-123.map              the perf map of a process

This is perf's build-id cache (tools/perf/util/build-id.c): perf and perf-offcpu read it as --buildid-dir, perf-offcpu
also as --symfs. Objects are taken only if addresses of the recording lie in them and they are the recorded ones."""

import contextlib
import os
import shutil
import tarfile
from contextlib import ExitStack
from dataclasses import field
from typing import IO, Final, cast

from perf_offcpu import losses
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.directories import Directory
from perf_offcpu.errors import FormatError
from perf_offcpu.files import FileRefusedError, is_mostly_holes
from perf_offcpu.losses import Losses
from perf_offcpu.model.columns import distinct
from perf_offcpu.model.lookup import KERNEL_DSO, NO_MAP, find_mappings
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects.elf.headers import Source
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.files import VDSO, Refused, open_dso, pids_of_dso, refusal
from perf_offcpu.objects.perf_map import PerfMaps, is_jit_memory
from perf_offcpu.objects.search import DELETED, open_debug
from perf_offcpu.structs import mutable
from perf_offcpu.symbolize.kernel.kallsyms import kallsyms_text
from perf_offcpu.symbolize.kernel.names import KernelNames
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import locations_of

_BLOCK: Final = 1 << 20


class DirectoryStore:
    """Stores files below the directory `root`, as perf's build-id cache; links stay, files are replaced and appear
    whole. Nothing is written through links (`directories.Directory`). The root is private."""

    def __init__(self, root: str) -> None:
        self.root = root

    def has(self, name: str) -> bool:
        """Return True if the store has a file with this path."""
        with contextlib.suppress(FileNotFoundError), self._directory_of(name) as directory:
            return directory.status(os.path.basename(name)) is not None
        return False

    def add(self, name: str, source: Source) -> None:
        """Write a file with the content of `source` at path `name`; raise OSError if reading or writing fails."""
        with (
            self._directory_of(name, make=True) as directory,
            directory.replacing(os.path.basename(name), 0o644) as file,
        ):
            shutil.copyfileobj(_SourceFile(source), file, _BLOCK)

    def link(self, name: str, target: str) -> None:
        """Add a symbolic link `name` → `target`, unless there is one of this name."""
        with self._directory_of(name, make=True) as directory, contextlib.suppress(FileExistsError):
            directory.link(os.path.basename(name), target)

    def _directory_of(self, name: str, *, make: bool = False) -> Directory:
        with Directory.private(self.root, make=make) as root:
            return root.subdirectory(os.path.dirname(name), make=make)


class TarStore:
    """Stores files below `prefix` in a tar archive, without owners and times: equal symbols give equal bytes."""

    def __init__(self, archive: tarfile.TarFile, prefix: str) -> None:
        self._archive, self._prefix, self._names = archive, prefix, set[str]()

    def has(self, name: str) -> bool:
        """Return True if the store has a file with this path."""
        return name in self._names

    def add(self, name: str, source: Source) -> None:
        """Add a file with the content of `source` at path `name`; raise OSError if reading or writing fails."""
        self._names.add(name)
        info = tarfile.TarInfo(f"{self._prefix}/{name}")
        info.size = source.size
        self._archive.addfile(info, cast(IO[bytes], _SourceFile(source)))

    def link(self, name: str, target: str) -> None:
        """Add a symbolic link `name` → `target`, unless there is one of this name."""
        if name not in self._names:
            self._names.add(name)
            info = tarfile.TarInfo(f"{self._prefix}/{name}")
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
            self._archive.addfile(info)


class _SourceFile:
    """Reads a source as a file object; zeros take the place of bytes that a file has lost since it was opened."""

    def __init__(self, source: Source) -> None:
        self._source, self._offset = source, 0

    def read(self, size: int = _BLOCK, /) -> bytes:
        size = min(size, self._source.size - self._offset)
        data = self._source.read(self._offset, size).ljust(size, b"\0")
        self._offset += size
        return data


@mutable
class Saved:
    """Counts the files that were saved, and lists the files that could not be saved."""

    files: int = 0  # number of files added
    size: int = 0  # bytes of these
    missing: dict[str, str] = field(default_factory=dict)  # name → reason why it could not be saved


class SymbolSaver:
    """Saves the files that a report with `options` would read to name addresses. `debug`: debug files, too."""

    def __init__(
        self, recording: Recording, store: DirectoryStore | TarStore, options: SymbolizeOptions, *, debug: bool = True
    ) -> None:
        self.recording, self.store, self.options, self.debug = recording, store, options, debug
        self.search = options.search()
        self.perf_maps = PerfMaps(recording, self.search.symfs, force=options.force)
        self.saved = Saved()

    def save(self) -> Saved:
        """Save all files; return their number and bytes, and the missing ones."""
        _, locations, _, _ = locations_of(self.recording)
        rows = find_mappings(self.recording.maps, self.recording.spaces, locations.space, locations.lookup)
        for dso in distinct(self.recording.maps.dso[rows[rows != NO_MAP]]).tolist():
            self._save_dso(dso)
        if bool((locations.cpumode == CpuMode.KERNEL).any()):
            self._save_kernel()
        return self.saved

    def _save_dso(self, dso: int) -> None:
        dsos = self.recording.dsos
        path = self.recording.strings[int(dsos.path[dso])]
        if path.startswith(KERNEL_DSO) or (dsos.cpumode[dso] == CpuMode.KERNEL and path.startswith("[")):
            return  # kallsyms has both
        if is_jit_memory(path):
            self._save_perf_maps(pids_of_dso(self.recording, dso))
            return
        try:
            with ExitStack() as stack:
                self._save_object(path.removesuffix(DELETED), open_dso(self.recording, dso, self.search, stack), stack)
        except (OSError, FormatError, Refused) as problem:
            self.saved.missing[path] = getattr(problem, "strerror", None) or str(problem)

    def _save_object(self, path: str, image: ElfImage, stack: ExitStack) -> None:
        build_id = image.build_id.hex()
        if not build_id:
            if refusal(path) is None:
                self._add(path.lstrip("/"), image.source)
            return
        directory = f"{_relative(path)}/{build_id}"
        self._add(f"{directory}/{'vdso' if path == VDSO else 'elf'}", image.source)
        self._link(build_id, directory)
        if self.debug and path != VDSO:
            wanted = b".symtab" if image.section_named(b".debug_info") else b".debug_info"
            debug = None if image.section_named(wanted) else open_debug(image, self.search, wanted, stack)
            if debug is not None:
                self._add(f"{directory}/debug", debug.source)

    def _save_perf_maps(self, pids: list[int]) -> None:
        for pid in pids:
            text = self.perf_maps.text_of(pid)
            if isinstance(text, bytes):
                self._add(f"tmp/perf-{pid}.map", Source(f"perf-{pid}.map", text))
            elif text != losses.NO_PERF_MAP:
                self.saved.missing[f"tmp/perf-{pid}.map"] = text.text

    def _save_kernel(self) -> None:
        names = KernelNames(self.recording, self.recording.strings.copy(), self.options, Losses(), None)
        if not names.kallsyms_path:
            self.saved.missing[KERNEL_DSO] = "there are no symbols of the recorded kernel here"
            return
        build_id = names.build_id.hex()
        directory = f"{KERNEL_DSO}/{build_id}" if build_id else "proc"
        text = kallsyms_text(names.kallsyms_path)  # at once: the file of the kernel has no size and changes
        self._add(f"{directory}/kallsyms", Source(names.kallsyms_path, text))
        if build_id:
            self._link(build_id, directory)

    def _add(self, name: str, source: Source) -> None:
        if source.fd >= 0 and is_mostly_holes(os.fstat(source.fd)):
            raise FileRefusedError(source.path, "it consists of holes, which would be written out")
        if not self.store.has(name):
            self.store.add(name, source)
            self.saved.files += 1
            self.saved.size += source.size

    def _link(self, build_id: str, directory: str) -> None:
        if len(build_id) > 2:
            self.store.link(f".build-id/{build_id[:2]}/{build_id[2:]}", f"../../{directory}")


def _relative(path: str) -> str:
    """Return the directory of an object in the store: its path, or `other/NAME` if that is no fit path (`refusal`)."""
    if path == VDSO or refusal(path) is None:
        return path.lstrip("/")
    return f"other/{os.path.basename(path) or 'object'}".replace("..", "__")
