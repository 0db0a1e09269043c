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
    with open("/proc/self/maps", "rb") as maps:
        found = [line for line in maps if line.rstrip().endswith(NAME.encode())]
    if not found:
        raise FormatError("/proc/self/maps", NAME, "this process has no vDSO")
    start, end = (int(word, 16) for word in found[0].split(b" ", 1)[0].split(b"-"))
    fd = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, min(end - start, _MAX_BYTES), start)
    finally:
        os.close(fd)
