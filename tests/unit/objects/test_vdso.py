# SPDX-License-Identifier: Apache-2.0
"""The vDSO of the running kernel."""

from __future__ import annotations

import io

import numpy as np
from elftools.elf.elffile import ELFFile

from perf_offcpu.objects.elf.image import ElfImage
from perf_offcpu.objects.elf.source import Source
from perf_offcpu.objects.files import VDSO, vdso_image
from perf_offcpu.objects.functions import file_offset_to_vaddr, symbols_of


def test_its_exported_functions_are_named_at_their_addresses() -> None:
    elf = symbols_of(ElfImage(Source(VDSO, vdso_image())))
    dynsym = ELFFile(io.BytesIO(vdso_image())).get_section_by_name(".dynsym")
    functions = {s.name: s for s in dynsym.iter_symbols() if s["st_info"]["type"] == "STT_FUNC"}
    assert any("clock_gettime" in name for name in functions)
    for symbol in functions.values():
        inside = symbol["st_value"] + symbol["st_size"] - 1
        row = int(elf.symbols.lookup(np.array([inside], np.uint64))[0])
        assert functions[elf.symbols.name(row)]["st_value"] == symbol["st_value"]


def test_its_first_page_is_mapped_from_offset_0_and_it_has_a_build_id() -> None:
    elf = symbols_of(ElfImage(Source(VDSO, vdso_image())))
    assert file_offset_to_vaddr(elf.loads, np.array([0x40], np.uint64)).tolist() == [
        int(elf.loads["p_vaddr"][0]) + 0x40
    ]
    assert len(elf.build_id) >= 8
