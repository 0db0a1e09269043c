# SPDX-License-Identifier: Apache-2.0
"""Locks by the variable that they are in, in programs that gcc made; `nm` says where the variables are."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from builders.compiled import addresses, build
from builders.recording import BASE, USER, S, comm, event, side, write
from builders.wait_objects import COUNTERS, WAITS, described, thing, wait

from perf_offcpu.abi.elf import SegmentFlag
from perf_offcpu.abi.records import RecordType
from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.decode.load import load_recording
from perf_offcpu.objects.elf.image import open_elf
from perf_offcpu.symbolize.symbolizer import symbolize

CLOCK = event("cpu-clock", (1,), BASE | S.CALLCHAIN)
SOURCE = """
#include <pthread.h>
#include <stdlib.h>
pthread_mutex_t ledger_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t table;
struct { long a[5]; pthread_mutex_t m; } accounts[4];
__thread long own;
namespace_line
int transfer(void) { return pthread_mutex_lock(&ledger_lock); }
int main(void) { own = (long)malloc(9);
  return transfer() + pthread_rwlock_rdlock(&table) + !accounts[1].a[0]; }
"""


def compiled(directory: Path, *options: str, language: str = "c") -> Path:
    extra = "namespace bank { long total[4]; }" if language == "c++" else ""
    source = directory / "x.c"
    source.write_text(SOURCE.replace("namespace_line", extra))
    command = ["gcc", "-g", "-O1", "-x", language, *options, "-o", "bank", "x.c", "-lpthread"]
    subprocess.run(command, cwd=directory, check=True, timeout=60)
    return directory / "bank"


def names(program: Path, futexes: list[int], bias: int, place: str = "", chain: tuple[int, ...] = ()) -> list[str]:
    """The names of futexes at addresses as in the file, in a process that has it mapped at `bias`."""
    with open_elf(str(program)) as image:
        (code,) = image.loads[(image.loads["p_flags"] & np.uint64(SegmentFlag.X)) != 0]
        build_id = image.build_id
    offset, vaddr, size = (int(code[f"p_{name}"]) for name in ("offset", "vaddr", "filesz"))
    start, pgoff = bias + vaddr - offset % 4096, offset - offset % 4096
    mapping = side(
        CLOCK, RecordType.MMAP2, 2 | 1 << 14, pid=10, tid=10, addr=start, len=-(-size // 4096) * 4096 + 4096,
        pgoff=pgoff, build_id_size=len(build_id), reserved_1=0, reserved_2=0, build_id=build_id.ljust(20, b"\0"),
        prot=5, flags=2, filename=str(program).encode(),
    )  # fmt: skip
    objects = [thing(at, ObjectKind.FUTEX, address=bias + futex, place=place) for at, futex in enumerate(futexes, 1)]
    stack = (USER, *(bias + address for address in chain)) if chain else ()
    waits = [wait(one["id"], time=100 + one["id"], chain=stack) for one in objects]
    records = [comm(CLOCK, 10, 10, "bank"), mapping, described(*objects), *waits]
    profile = symbolize(load_recording(write(program.with_suffix(".data"), [CLOCK, WAITS, COUNTERS], records)))
    profile.check()
    return [profile.strings[profile.objects.name[row]] for row in profile.samples.object.tolist()]


LAYOUTS = {
    "pie": (("-pie", "-fPIE"), 0x55D0C8A00000),
    "not pie": (("-no-pie",), 0),
    "library": (("-shared", "-fPIC"), 0x7F1200000000),
    "prelinked": (("-shared", "-fPIC", "-Wl,-Ttext-segment=0x40000000"), 0x7F1200000000),
    "static": (("-static", "-no-pie"), 0),
    "clang's order": (("-Wl,-z,noseparate-code", "-pie", "-fPIE"), 0x55D0C8A00000),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_locks_are_named_by_their_variables(layout: str, tmp_path: Path) -> None:
    options, bias = LAYOUTS[layout]
    program = compiled(tmp_path, *options)
    known = addresses(program)
    places = [known["ledger_lock"], known["table"] + 12, known["accounts"] + 2 * 80 + 40, known["accounts"]]
    assert names(program, places, bias) == [
        "ledger_lock in bank", "table+0xc in bank", "accounts+0xc8 in bank", "accounts in bank",
    ]  # fmt: skip


@pytest.mark.parametrize("place", ["", "/usr/bin/bank"])
def test_outside_of_the_data_there_is_no_variable(place: str, tmp_path: Path) -> None:
    program = compiled(tmp_path, "-pie", "-fPIE")
    known, bias = addresses(program), 0x55D0C8A00000
    (name,) = names(program, [known["_end"] + 0x10000], bias, place)
    assert name == f"futex{' in bank' if place else ''} {bias + known['_end'] + 0x10000:#x}"


def test_a_label_without_type_names_no_variable(tmp_path: Path) -> None:
    """A stripped program has `__bss_start` in .dynsym where it is linked so; the place stays a number."""
    program = compiled(tmp_path, "-pie", "-fPIE", "-rdynamic")
    known, bias = addresses(program), 0x55D0C8A00000
    subprocess.run(["strip", program], check=True)
    assert names(program, [known["ledger_lock"]], bias) == ["ledger_lock in bank"], "in .dynsym"
    assert names(program, [known["table"]], bias) == [f"futex in bank+{known['table']:#x}"]


def test_variables_of_cpp_are_demangled_and_the_heap_has_none(tmp_path: Path) -> None:
    program = compiled(tmp_path, "-no-pie", language="c++")
    known = addresses(program)
    assert names(program, [known["_ZN4bank5totalE"] + 8], 0) == ["bank::total+0x8 in bank"]
    assert names(program, [known["ledger_lock"]], 0, "heap") == [f"futex heap {known['ledger_lock']:#x}"]


def test_other_builds_name_nothing(tmp_path: Path) -> None:
    program = compiled(tmp_path, "-no-pie")
    address = addresses(program)["ledger_lock"]
    assert names(program, [address], 0) == ["ledger_lock in bank"]
    data = program.with_suffix(".data").read_bytes()
    compiled(tmp_path, "-no-pie", "-O2", "-DOTHER", "-Wl,--build-id=0x1234567890123456789012345678901234567890")
    program.with_suffix(".data").write_bytes(data)
    profile = symbolize(load_recording(program.with_suffix(".data")))
    assert profile.strings[int(profile.objects.name[0])] == f"futex {address:#x}"


@pytest.mark.parametrize(
    ("function", "noun"), [("pthread_mutex_lock", "lock"), ("__new_sem_wait_slow64.constprop.0", "semaphore")]
)
def test_the_caller_of_the_lock_function_names_a_lock_on_the_heap(function: str, noun: str, tmp_path: Path) -> None:
    """The stack ends in a lock function, here one of this name in the program itself."""
    source = tmp_path / "x.c"
    source.write_text(
        f'int take(void) __asm__("{function}");\n'
        'int __attribute__((noinline)) take(void) { __asm__("nop"); return 1; }\n'
        "int __attribute__((noinline)) transfer(void) { return take() + 1; }\n"
        "int main(void) { return transfer() + 1; }\n"
    )
    program = build(source, tmp_path / "bank", "-O1", "-no-pie")
    known = addresses(program)
    chain = (known[function] + 1, known["transfer"] + 5, known["main"] + 5)
    assert names(program, [0x99990], 0, "heap", chain) == [f"{noun} heap 0x99990 (via transfer)"]
