# SPDX-License-Identifier: Apache-2.0
"""Names of the registers that samples hold, by their bits in attr.sample_regs_user and sample_regs_intr.

arch/*/include/uapi/asm/perf_regs.h, as tools/perf/util/perf_regs.c prints them.
"""

from __future__ import annotations

_X86 = (
    *("AX", "BX", "CX", "DX", "SI", "DI", "BP", "SP", "IP", "FLAGS", "CS", "SS", "DS", "ES", "FS", "GS"),
    *(f"R{number}" for number in range(8, 16)),
)
_X86_VECTORS = {32 + 2 * number + half: f"XMM{number}" for number in range(16) for half in range(2)}
_ARM64 = (*(f"x{number}" for number in range(30)), "lr", "sp", "pc")
_NAMES = {
    "x86": dict(enumerate(_X86)) | _X86_VECTORS,
    "arm64": dict(enumerate(_ARM64)) | {46: "vg"},
}
_FAMILY = {"x86_64": "x86", "i386": "x86", "i686": "x86", "aarch64": "arm64"}


def register_names(arch: str, mask: int) -> list[str]:
    """The names of the registers of a mask, in the order in which samples hold them.

    Args:
        arch: as `uname -m` says it; of those that are not known here, names are `unknown`, as in perf.
    """
    names = _NAMES.get(_FAMILY.get(arch, arch), {})
    return [names.get(bit, "unknown") for bit in range(mask.bit_length()) if mask >> bit & 1]
