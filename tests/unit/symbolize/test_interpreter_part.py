# SPDX-License-Identifier: Apache-2.0
"""The part of CPython's interpreter that the compiler has put apart."""

import subprocess
from pathlib import Path

import pytest
from builders.compiled import build

from perf_offcpu.cache import DiskCache
from perf_offcpu.objects.elf.image import open_elf
from perf_offcpu.symbolize.interpreter_part import interpreter_part

SOURCE = """
__attribute__((cold, noinline)) int seldom(int number) { return number + 1; }
int NAME(int number)
{
    if (number == 100) number = seldom(7) + seldom(8);
    if (number == 1000) number = seldom(9) * seldom(10);
    if (number == 10000) number = seldom(11) - seldom(12);
    if (number == 7) number = seldom(13) | seldom(14);
    return number;
}
int main(int count, char **arguments) { return NAME(count); }
"""


@pytest.mark.parametrize("name", ["_PyEval_EvalFrameDefault", "another_function"])
def test_the_part_is_found_without_its_symbol(name: str, tmp_path: Path) -> None:
    (tmp_path / "part.c").write_text(SOURCE.replace("NAME", name))
    program, cache = tmp_path / "part", DiskCache(str(tmp_path / "kept"))
    build(tmp_path / "part.c", program, "-O2", "-rdynamic")
    symbols = subprocess.check_output(["nm", "-S", program], text=True).splitlines()
    start, size = next(line.split()[:2] for line in symbols if line.endswith(f" {name}.cold"))
    subprocess.run(["strip", program], check=True)
    part = [int(start, 16), int(start, 16) + int(size, 16)] if name.startswith("_Py") else [0, 0]
    with open_elf(str(program), None) as image:
        assert [interpreter_part(image, kept).tolist() for kept in (None, cache, cache)] == [part] * 3
