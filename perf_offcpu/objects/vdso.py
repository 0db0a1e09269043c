# SPDX-License-Identifier: Apache-2.0
"""Read the vDSO: code that the kernel maps into every process, without a file.

The image is taken from the memory of this process; it is that of the running kernel. The recorded build-id
tells if a recording was made with the same.
"""

from __future__ import annotations

import os
from typing import Final

from perf_offcpu.errors import FormatError

NAME: Final = "[vdso]"
_MAX_BYTES: Final = 1 << 20


def vdso_image() -> bytes:
    """Return the bytes of the vDSO of this process: a 64-bit ELF shared object for a 64-bit process.

    Raises:
        OSError: the memory of the process cannot be read.
        FormatError: the process has no vDSO.
    """
    start, end = _mapped_range()
    fd = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, min(end - start, _MAX_BYTES), start)
    finally:
        os.close(fd)


def _mapped_range() -> tuple[int, int]:
    with open("/proc/self/maps", "rb") as lines:
        for line in lines:
            if line.rstrip().endswith(NAME.encode()):
                start, end = line.split(b" ", 1)[0].split(b"-")
                return int(start, 16), int(end, 16)
    raise FormatError("/proc/self/maps", NAME, "this process has no vDSO")
