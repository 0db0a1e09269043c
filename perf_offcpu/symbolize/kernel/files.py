# SPDX-License-Identifier: Apache-2.0
"""Find the symbols of the recorded kernel: kallsyms, vmlinux and module files, best first.

    --kallsyms, --vmlinux          files that the user gives; a vmlinux of another build-id is refused
    SYMFS/proc/kallsyms            packed by `archive`
    /proc/kallsyms                 if this kernel is the recorded one
    DIR/.build-id/ab/cd…/kallsyms  perf's cache of the recorded kernel
    vmlinux                        with the recorded build-id, where perf and distributions keep it

A vmlinux was linked for an address of its own. The recorded address of `_text`, the reference symbol of the
kernel map, tells the distance of the recorded kernel from there, KASLR included.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from perf_offcpu.errors import FormatError, UsageError
from perf_offcpu.objects.elf.functions import ElfFile, load_elf_symbols, symbols_of
from perf_offcpu.objects.elf.image import open_elf
from perf_offcpu.objects.search import Search, by_build_id, debug_by_build_id
from perf_offcpu.symbolize.kernel.kallsyms import LIVE, Kallsyms, load_kallsyms
from perf_offcpu.symbolize.kernel.running import running_kallsyms

_MAX_RELEASE: Final = 128


def given_kallsyms(path: str) -> Kallsyms:
    """Read the file of --kallsyms; raise UsageError if it cannot be read or holds no function."""
    try:
        found = load_kallsyms(path)
    except OSError as problem:
        raise UsageError(f"--kallsyms {path}: {problem.strerror}") from None
    if not len(found.symbols) and not found.hidden:
        raise UsageError(
            f"--kallsyms {path}: no line of it names a function of a kernel, as /proc/kallsyms does"
        )
    return found


def given_vmlinux(path: str, build_id: bytes, search: Search) -> ElfFile:
    """Read the functions of the file of --vmlinux; raise UsageError if it is of another kernel."""
    try:
        found = load_elf_symbols(path, search)
    except (OSError, FormatError) as problem:
        raise UsageError(f"--vmlinux {path}: {getattr(problem, 'strerror', None) or problem}") from None
    if build_id and found.build_id and found.build_id != build_id:
        other = f"it has build-id {found.build_id.hex()}, the recorded kernel {build_id.hex()}"
        raise UsageError(f"--vmlinux {path}: {other}")
    return found


def find_kallsyms(
    build_id: bytes, search: Search, *, is_running: bool, in_symfs: bool
) -> tuple[Kallsyms | None, str, bool]:
    """Find the best kallsyms of the recorded kernel.

    Args:
        in_symfs: SYMFS/proc/kallsyms is of the recorded kernel.

    Returns:
        (kallsyms, its path, False), or (None, "", True if others had hidden addresses).
    """
    hidden = is_running
    for path in _kallsyms_paths(build_id, search, is_running, in_symfs):
        try:
            found = running_kallsyms(search.cache) if path == LIVE else load_kallsyms(path)
        except (OSError, FormatError):
            continue
        if not found.hidden:
            return found, path, False
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
    """Read the functions of an ELF file with the build-id of the recorded kernel; None if there is none.

    Args:
        release: of the recorded kernel; "" if none was recorded: the running kernel's.
    """
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
