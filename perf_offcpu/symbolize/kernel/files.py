# SPDX-License-Identifier: Apache-2.0
"""Where the recorded kernel's symbols lie: kallsyms, vmlinux and module files, best first.

    --kallsyms, --vmlinux          what the user gives; a vmlinux of another build-id is refused
    SYMFS/proc/kallsyms            what `archive` packed
    /proc/kallsyms                 if this kernel is the recorded one
    DIR/.build-id/ab/cd…/kallsyms  perf's cache of the recorded kernel
    vmlinux                        with the recorded build-id, where perf and distributions keep it

A vmlinux was linked for a place of its own; how far the recorded kernel lay from there, KASLR included, is
told by the recorded address of `_text`, the kernel map's reference symbol.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import field
from typing import Final

import numpy as np

from perf_offcpu.abi import elf
from perf_offcpu.cache import DiskCache
from perf_offcpu.errors import FormatError, UsageError
from perf_offcpu.objects.elf.functions import ElfFile, elf_build_id, load_elf_symbols
from perf_offcpu.objects.search import Search, by_build_id, debug_by_build_id
from perf_offcpu.structs import frozen
from perf_offcpu.symbolize.kernel.kallsyms import LIVE, Kallsyms, load_kallsyms

_MAX_RELEASE: Final = 128


@frozen
class KernelSources:
    """What the user says of the kernel's symbols.

    Args:
        kallsyms: a file in the form of /proc/kallsyms, of the recorded kernel; None: look for one.
        vmlinux: an ELF file of it; None: look for one.
        search: where to look.
        cache: where tables are kept; None: nowhere.
        is_other: kallsyms, vmlinux and SYMFS/proc/kallsyms are of another kernel than this, and not used.
    """

    kallsyms: str | None = None
    vmlinux: str | None = None
    search: Search = field(default_factory=Search)
    cache: DiskCache | None = None
    is_other: bool = False


def given_kallsyms(path: str) -> Kallsyms:
    """The file of --kallsyms.

    Raises:
        UsageError: it cannot be read, or holds no function.
        FormatError: it is damaged.
    """
    try:
        found = load_kallsyms(path)
    except OSError as problem:
        raise UsageError(f"--kallsyms {path}: {problem.strerror}") from None
    if not len(found.symbols) and not found.hidden:
        raise UsageError(
            f"--kallsyms {path}: no line of it names a function of a kernel, as /proc/kallsyms does"
        )
    return found


def given_vmlinux(path: str, build_id: bytes) -> ElfFile:
    """The file of --vmlinux.

    Raises:
        UsageError: it cannot be read, or is of another kernel than the recorded one.
    """
    try:
        found = load_elf_symbols(path)
    except (OSError, FormatError) as problem:
        raise UsageError(f"--vmlinux {path}: {getattr(problem, 'strerror', None) or problem}") from None
    if build_id and found.build_id and found.build_id != build_id:
        other = f"it has build-id {found.build_id.hex()}, the recorded kernel {build_id.hex()}"
        raise UsageError(f"--vmlinux {path}: {other}")
    return found


def find_kallsyms(
    build_id: bytes, search: Search, *, is_running: bool, with_symfs: bool = True
) -> tuple[Kallsyms | None, str, bool]:
    """The best kallsyms of the recorded kernel: (itself, its path, whether addresses were hidden in others);
    (None, "", …) if there is none."""
    hidden = False
    for path in _kallsyms_paths(build_id, search, is_running, with_symfs):
        try:
            found = load_kallsyms(path)
        except (OSError, FormatError):
            continue
        if not found.hidden:
            return found, path, False
        hidden = True
    return None, "", hidden or is_running


def _kallsyms_paths(build_id: bytes, search: Search, is_running: bool, with_symfs: bool) -> Iterator[str]:
    if search.symfs and with_symfs:
        yield f"{search.symfs}/proc/kallsyms"
    if is_running:
        yield LIVE
    if len(build_id) > 1:
        for root in filter(None, (search.symfs, search.buildid_dir)):
            yield by_build_id(root, build_id, "/kallsyms")


def find_vmlinux(build_id: bytes, release: str, search: Search) -> str | None:
    """The path of an ELF file of the recorded kernel, known by its build-id; None if there is none."""
    if not build_id:
        return None
    for path in _vmlinux_paths(build_id, release, search):
        try:
            if elf_build_id(path) == build_id:
                return path
        except (OSError, FormatError):
            continue
    return None


def _vmlinux_paths(build_id: bytes, release: str, search: Search) -> Iterator[str]:
    yield from debug_by_build_id(build_id, search)
    for root in filter(None, (search.symfs, search.buildid_dir)):
        yield by_build_id(root, build_id, "/vmlinux")
        yield by_build_id(root, build_id, "/elf")
    if not release or "/" in release or len(release) > _MAX_RELEASE or not release.isprintable():
        return
    for path in (
        f"/boot/vmlinux-{release}",
        f"/usr/lib/debug/boot/vmlinux-{release}",
        f"/usr/lib/debug/lib/modules/{release}/vmlinux",
        f"/lib/modules/{release}/build/vmlinux",
    ):
        yield search.symfs + path


def linked_at(vmlinux: ElfFile) -> int | None:
    """The address of `_text`, where a vmlinux was linked to lie: its first code; None if it has none."""
    code = vmlinux.loads[(vmlinux.loads["p_flags"] & np.uint64(elf.SegmentFlag.X)) != 0]
    return int(code["p_vaddr"][0]) if len(code) else None


def release_of(text: str) -> str:
    """A recorded kernel release, or this one's."""
    return text or os.uname().release
