# SPDX-License-Identifier: Apache-2.0
"""The vDSO: the code that the kernel maps into every process, and that is in no file.

The image is taken from this process's own memory; it is the one of the running kernel. A recording of
another kernel has another one, told by its build-id.
"""

from __future__ import annotations

import os
from typing import Final

from perf_offcpu.errors import FormatError
from perf_offcpu.objects.elf.functions import ElfFile, read_elf_symbols
from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.elf.source import BytesSource

NAME: Final = "[vdso]"
_MAX_BYTES: Final = 1 << 20


def vdso_image(pid: str = "self") -> bytes:
    """The bytes of the vDSO as a process has it mapped, a 64-bit ELF shared object for 64-bit processes.

    Raises:
        OSError: the process's memory cannot be read.
        FormatError: it has no vDSO.
    """
    start, end = _range(f"/proc/{pid}/maps")
    fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, min(end - start, _MAX_BYTES), start)
    finally:
        os.close(fd)


def load_vdso() -> ElfFile:
    """The functions of the running kernel's vDSO, for 64-bit processes on a 64-bit kernel.

    Raises:
        OSError, FormatError: as `vdso_image`.
    """
    return read_elf_symbols(ElfImage(BytesSource(vdso_image()), NAME))


def _range(maps: str) -> tuple[int, int]:
    with open(maps, "rb") as lines:
        for line in lines:
            if line.rstrip().endswith(NAME.encode()):
                start, end = line.split(b" ", 1)[0].split(b"-")
                return int(start, 16), int(end, 16)
    raise FormatError(maps, NAME, "this process has no vDSO")
