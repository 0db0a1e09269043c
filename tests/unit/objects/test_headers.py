# SPDX-License-Identifier: Apache-2.0
"""Headers of ELF files from the cache: the same as from the file, and no pyelftools for them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from builders.elf import ElfBuilder, Sym

from perf_offcpu.cache import DiskCache
from perf_offcpu.errors import FormatError
from perf_offcpu.objects.elf import headers
from perf_offcpu.objects.elf.headers import Source
from perf_offcpu.objects.elf.image import ElfImage, open_elf


def content(bits: int = 64, order: str = "<") -> bytes:
    symbols = [Sym("f", 0x1000, 8)]
    return ElfBuilder(symbols, symbols, bits=bits, order=order, build_id=b"\x12" * 20).build()


@pytest.mark.parametrize(("bits", "order"), [(64, "<"), (64, ">"), (32, "<"), (32, ">")])
def test_the_second_time_the_file_is_not_parsed(
    bits: int, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = tmp_path / "program", DiskCache(str(tmp_path / "cache"))
    path.write_bytes(content(bits, order))
    with open_elf(str(path), cache) as first:
        pass
    monkeypatch.setattr(headers, "_parse", lambda _: pytest.fail("it was parsed again"))
    with open_elf(str(path), cache) as second:
        for name in ("bits", "order", "type", "machine", "build_id", "section_names"):
            assert getattr(second, name) == getattr(first, name)
        assert np.array_equal(second.sections, first.sections)
        assert np.array_equal(second.loads, first.loads)
    assert (second.order, second.build_id) == (order, b"\x12" * 20)


def test_an_image_in_memory_is_known_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, data = DiskCache(str(tmp_path)), content()
    first = ElfImage(Source("vdso", data), cache)
    with monkeypatch.context() as patch:
        patch.setattr(headers, "_parse", lambda _: pytest.fail("it was parsed again"))
        assert ElfImage(Source("vdso", bytes(data)), cache).build_id == first.build_id
    assert ElfImage(Source("vdso", content(32)), cache).bits != first.bits


def test_columns_that_are_no_headers_are_made_again(tmp_path: Path) -> None:
    good = headers.read_headers(Source("made", content()))
    assert headers._is_sound(good)
    for name in good:
        assert not headers._is_sound({key: good[key] for key in good if key != name})
        assert not headers._is_sound({**good, name: good[name].astype(np.float64)})
    for name in ("head", "sections", "segments"):
        assert not headers._is_sound({**good, name: good[name][:-1]})
    assert not headers._is_sound({**good, "head": np.array([3, 1, 3, 62], np.uint64)})


CODE = """
import sys
from perf_offcpu.cache import DiskCache
from perf_offcpu.objects.functions import load_elf_symbols
from perf_offcpu.objects.search import Search
elf = load_elf_symbols(sys.argv[1], Search(cache=DiskCache(sys.argv[2])))
print(elf.symbols.name(0), 'elftools' in sys.modules)
"""


def test_a_program_without_pyelftools_names_from_the_cache(tmp_path: Path) -> None:
    """Its import costs more than all else; a file that is not in the cache needs it."""
    path = tmp_path / "program"
    path.write_bytes(content())
    command = [sys.executable, "-c", CODE, str(path), str(tmp_path / "cache")]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert runs == ["f True\n", "f False\n"]


def test_more_headers_than_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "MAX_HEADERS", 3)
    with pytest.raises(FormatError, match="entries, more than 3"):
        ElfImage(Source("made", content()))


@pytest.mark.parametrize("error", [AssertionError("x"), KeyError("x"), RecursionError("x"), MemoryError()])
def test_errors_of_pyelftools_are_ours(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(headers, "_number", fail)
    with pytest.raises(FormatError, match=type(error).__name__):
        ElfImage(Source("made", content()))
