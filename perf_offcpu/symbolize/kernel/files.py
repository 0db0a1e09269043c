# SPDX-License-Identifier: Apache-2.0
"""Find the symbols of the recorded kernel: kallsyms, vmlinux and module files, best first.

    --kallsyms, --vmlinux          files that the user gives; a vmlinux of another build-id is refused
    SYMFS/proc/kallsyms            packed by `archive`
    /proc/kallsyms                 if this kernel is the recorded one
    DIR/.build-id/ab/cd…/kallsyms  perf's cache of the recorded kernel
    vmlinux                        with the recorded build-id, where perf and distributions keep it

A vmlinux was linked for an address of its own. The recorded address of `_text`, the reference symbol of the
kernel map, tells the distance of the recorded kernel from there, KASLR included.

Reading and parsing /proc/kallsyms takes 0.1 s, a third of a report on a small recording. The table that was
parsed holds as long as this boot, for the same user, while /proc/kallsyms shows addresses (its first lines
are compared: kernel.kptr_restrict and capabilities decide) and the same modules are loaded.

Symbols that come and go without a trace are left out of the kept table: BPF programs, probes and trampolines.
So addresses without a name in it must be looked up in /proc/kallsyms itself."""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import numpy as np

from perf_offcpu.build_ids import kernel_build_id
from perf_offcpu.cache import Array, DiskCache, cache_name
from perf_offcpu.errors import FormatError, UsageError
from perf_offcpu.objects.elf.image import open_elf
from perf_offcpu.objects.functions import ElfFile, load_elf_symbols, symbols_of
from perf_offcpu.objects.search import Search, by_build_id, debug_by_build_id
from perf_offcpu.objects.symtab import NO_ADDRESS, VERSION, SymbolTable
from perf_offcpu.symbolize.kernel.kallsyms import LIVE, REFERENCES, Kallsyms, load_kallsyms

KIND: Final = f"kallsyms{VERSION}"  # kind of cache file
_PASSING: Final = ("[bpf]", "[__builtin__")
_HEAD: Final = 4096


def running_kallsyms(cache: DiskCache | None) -> Kallsyms:
    """Return symbols of the running kernel, maybe from the cache. Raises OSError, FormatError as `load_kallsyms`."""
    state = None if cache is None else _state()
    if cache is None or state is None:
        return load_kallsyms()
    name = cache_name(KIND, kernel_build_id(), *state)
    if kept := _from_columns(cache.read(name) or {}):
        return kept
    kallsyms = load_kallsyms()
    if not kallsyms.hidden and _state() == state:
        cache.write(name, _lasting_columns(kallsyms))
    return kallsyms


def _state() -> tuple[object, ...] | None:
    """Return a key (boot, user, first lines, modules) that changes whenever the lasting symbols of /proc/kallsyms may
    have changed; None if a part of it cannot be read."""
    modules, nodes = list[list[bytes]](), list[tuple[str, int]]()
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            boot = file.read()
        with open(LIVE, "rb", buffering=0) as file:  # direct: /proc/kallsyms, of which the head is read
            head = file.read(_HEAD)
        with suppress(FileNotFoundError), open("/proc/modules", "rb") as file:  # a kernel without modules
            modules = [line.split() for line in file]
        with suppress(FileNotFoundError):
            # A module that was loaded again has another inode, even if it is at the same address.
            nodes = sorted((entry.name, entry.inode()) for entry in os.scandir("/sys/module"))
    except OSError:
        return None
    loaded = sorted((words[0], words[1], *words[4:6]) for words in modules)  # without use counts
    return boot, os.geteuid(), head, loaded, nodes


def _lasting_columns(kallsyms: Kallsyms) -> dict[str, Array]:
    """Return the columns of a table for the cache, without symbols that come and go (of BPF, ftrace and kprobes)."""
    passing = [row for row, name in enumerate(kallsyms.modules) if name.startswith(_PASSING)]
    rows = np.flatnonzero(~np.isin(kallsyms.module, passing))
    addresses = [kallsyms.references.get(name, int(NO_ADDRESS)) for name in REFERENCES]
    return {
        **kallsyms.symbols.take(rows).columns(),
        "module": kallsyms.module[rows],
        "modules": np.frombuffer("\0".join(kallsyms.modules).encode(errors="surrogateescape"), np.uint8),
        "references": np.array(addresses, np.uint64),
    }


def _from_columns(columns: dict[str, Array]) -> Kallsyms | None:
    """Return the table that `_lasting_columns` made these columns of; None if they do not fit together."""
    table, module = SymbolTable.from_columns(columns), columns.get("module")
    addresses, text = columns.get("references"), columns.get("modules")
    if table is None or module is None or addresses is None or text is None:
        return None
    modules = tuple(text.tobytes().decode(errors="surrogateescape").split("\0"))
    if len(module) != len(table) or (len(module) and int(module.max()) >= len(modules)):
        return None
    named = zip(REFERENCES, addresses.tolist(), strict=False)
    references = {name: address for name, address in named if address != NO_ADDRESS}
    return Kallsyms(table, module, modules, references, is_partial=True)


_MAX_RELEASE: Final = 128


def given_kallsyms(path: str) -> Kallsyms:
    """Read the file of --kallsyms; raise UsageError if it cannot be read or holds no function."""
    try:
        kallsyms = load_kallsyms(path)
    except OSError as problem:
        raise UsageError(f"--kallsyms {path}: {problem.strerror}") from None
    if not len(kallsyms.symbols) and not kallsyms.hidden:
        raise UsageError(f"--kallsyms {path}: no line of it names a function of a kernel, as /proc/kallsyms does")
    return kallsyms


def given_vmlinux(path: str, build_id: bytes, search: Search) -> ElfFile:
    """Read the functions of the file of --vmlinux; raise UsageError if it cannot be read, or is of another kernel."""
    try:
        elf_symbols = load_elf_symbols(path, search)
    except (OSError, FormatError) as problem:
        raise UsageError(f"--vmlinux {path}: {getattr(problem, 'strerror', None) or problem}") from None
    if build_id and elf_symbols.build_id and elf_symbols.build_id != build_id:
        mismatch = f"it has build-id {elf_symbols.build_id.hex()}, the recorded kernel {build_id.hex()}"
        raise UsageError(f"--vmlinux {path}: {mismatch}")
    return elf_symbols


def find_kallsyms(
    build_id: bytes, search: Search, *, is_running: bool, in_symfs: bool
) -> tuple[Kallsyms | None, str, bool]:
    """Find the best kallsyms of the recorded kernel. `is_running`: the running kernel is the recorded one. `in_symfs`:
    SYMFS/proc/kallsyms is its table. Return (kallsyms, its path, False), or (None, "", True if it hides addresses)."""
    hidden = is_running
    for path in _kallsyms_paths(build_id, search, is_running, in_symfs):
        try:
            kallsyms = running_kallsyms(search.cache) if path == LIVE else load_kallsyms(path)
        except (OSError, FormatError):
            continue
        if not kallsyms.hidden:
            return kallsyms, path, False
        hidden = True
    return None, "", hidden


def _kallsyms_paths(build_id: bytes, search: Search, is_running: bool, in_symfs: bool) -> Iterator[str]:
    if search.symfs and in_symfs:
        yield f"{search.symfs}/proc/kallsyms"
    if is_running:
        yield LIVE
    if len(build_id) > 1:
        for root in filter(None, (search.symfs, search.buildid_dir)):
            yield by_build_id(root, build_id, "/kallsyms")


def find_vmlinux(build_id: bytes, release: str, search: Search) -> ElfFile | None:
    """Read the functions of a vmlinux with the build-id of the recorded kernel; None if none is found. `release`: of
    the recorded kernel; if "", that of the running kernel is tried."""
    for path in _vmlinux_paths(build_id, release or os.uname().release, search) if build_id else ():
        with suppress(OSError, FormatError), open_elf(path, search.cache) as image:
            if image.build_id == build_id:
                return symbols_of(image, search)
    return None


def _vmlinux_paths(build_id: bytes, release: str, search: Search) -> Iterator[str]:
    yield from debug_by_build_id(build_id, search)
    for root in filter(None, (search.symfs, search.buildid_dir)):
        yield by_build_id(root, build_id, "/vmlinux")
        yield by_build_id(root, build_id, "/elf")
    if "/" in release or len(release) > _MAX_RELEASE or not release.isprintable():
        return
    places = [f"/boot/vmlinux-{release}", f"/lib/modules/{release}/vmlinux"]
    for path in (
        places[0],
        *(root + place for root in search.debug_roots for place in places),
        f"/lib/modules/{release}/build/vmlinux",
    ):
        yield search.symfs + path
