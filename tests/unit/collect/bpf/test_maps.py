# SPDX-License-Identifier: Apache-2.0
"""What user space knows of the BPF program without running it: the shared header, stacks, kernel facts."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from perf_offcpu.abi import offcpu
from perf_offcpu.abi.counters import BUDGET
from perf_offcpu.abi.machine import MACHINES
from perf_offcpu.collect.bpf.config import MODES
from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.bpf.kernel.facts import explore
from perf_offcpu.collect.bpf.maps import UserStacks
from perf_offcpu.collect.system.btf import Btf
from perf_offcpu.errors import CapabilityError
from perf_offcpu.resources import bpf_dir

HEADER = bpf_dir() / "off_cpu.h"


def test_lines_of_c_fit_into_100_columns() -> None:
    sources = [path for path in HEADER.parent.rglob("*") if path.suffix in (".c", ".h")]
    lines = [(path.name, line) for path in sources for line in path.read_text().splitlines()]
    assert len(sources) > 10 and [line for line in lines if len(line[1].expandtabs(8)) > 100] == []


def test_structures_are_laid_out_as_the_compiler_does() -> None:
    structs = read_header(HEADER).structs
    assert len(structs) > 10 and structs["stack"]["ips"].shape == (127,)
    types = [f"typedef __{sign}{bits} {sign}{bits};" for sign in "us" for bits in (8, 16, 32, 64)]
    checks = []
    for name, dtype in structs.items():
        checks.append(f'_Static_assert(sizeof(struct offcpu_{name}) == {dtype.itemsize}, "{name}");')
        for member, (type_, offset, *_) in (dtype.fields or {}).items():
            place = f"__builtin_offsetof(struct offcpu_{name}, {member}) == {offset}"
            size = f"sizeof(((struct offcpu_{name} *)0)->{member}) == {type_.itemsize}"
            checks.append(f'_Static_assert({place} && {size}, "{name}.{member}");')
    source = "\n".join(["#include <linux/types.h>", *types, f'#include "{HEADER}"', *checks])
    command = ["gcc", "-fsyntax-only", "-x", "c", "-"]
    done = subprocess.run(command, input=source, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_task_that_waits_has_room_for_the_registers_of_each_architecture() -> None:
    (words,) = read_header(HEADER).structs["last"]["regs"].shape
    assert words == max(row.words.number for row in MACHINES.values())


def test_enumerators_count_from_zero() -> None:
    enums = read_header(HEADER).enums
    assert enums["counter"][0] == "samples" and enums["counter"][-1] == "counters"
    assert enums["target"] == ("target_active", "target_armed")


def test_padding_comments_and_constants_of_a_header(tmp_path: Path) -> None:
    path = tmp_path / "h"
    path.write_text(
        "#define OFFCPU_N 3 /* how many */\n"
        "struct offcpu_a {\n\tu8 a;\t/* u64 hidden; */\n\tu32 b;\n\tu16 c[OFFCPU_N];\n\tu64 d;\n};\n"
    )
    (dtype,) = read_header(path).structs.values()
    assert [dtype.fields[name][1] for name in "abcd"] == [0, 4, 8, 16]  # type: ignore[index]
    assert dtype.itemsize == 24


def test_the_extension_in_c_is_the_table() -> None:
    struct, table = read_header(HEADER).structs["extension"], offcpu.EXTENSION.dtype("<")
    assert struct.descr == table.descr and struct.itemsize == 8 * offcpu.EXTENSION_WORDS


def test_the_header_agrees_with_the_payload_format() -> None:
    defines = re.findall(r"#define OFFCPU_(\w+) (0x\w+|\d+)", HEADER.read_text())
    number = {name: int(value, 0) for name, value in defines}
    kind, flag, lost = offcpu.Kind, offcpu.WaitFlag, offcpu.Lost
    expected = {
        "MAGIC": offcpu.EXTENSION_MAGIC, "VERSION": offcpu.EXTENSION_VERSION, "KIND_WAIT": kind.WAIT,
        "KIND_SUM": kind.SUM, "KIND_BEGAN_BEFORE": kind.BEGAN_BEFORE, "PREEMPTED_WAIT": flag.PREEMPTED,
        "WAKER_INTERRUPT": flag.WAKER_INTERRUPT, "YIELDED": flag.YIELDED, "THROTTLED_WAIT": flag.THROTTLED,
        "BEGAN_BEFORE": flag.BEGAN_BEFORE, "LOST_USER_STACK": lost.USER_STACK, "LOST_KERNEL_STACK": lost.KERNEL_STACK,
        "LOST_USER_CUT": lost.USER_STACK_CUT, "LOST_KERNEL_CUT": lost.KERNEL_STACK_CUT,
    }  # fmt: skip
    assert {name: number[name] for name in expected} == expected


def test_every_mode_of_a_thread_has_a_bucket_and_a_field_in_the_file() -> None:
    modes = read_header(HEADER).enums["mode"]
    assert set(MODES.values()) < set(modes)
    written = {field.name.removesuffix("_ns") for field in BUDGET.fields} - {"pid", "tid", "begin", "end"}
    assert written == set(modes) - {"dead", "modes"} | {"switches"}
    assert len(modes) <= read_header(HEADER).structs["budget"]["ns"].shape[0]


@pytest.fixture
def stacks() -> UserStacks:
    entries = np.zeros(3, read_header(HEADER).structs["stack"])
    for entry, frames in zip(entries, ([1, 2, 3], [], [4, 5]), strict=True):
        entry["nr"], entry["ips"][: len(frames)] = len(frames), frames
    return UserStacks.pack(np.array([30, 2**64 - 1, 10], np.uint64), entries)


def test_stacks_are_kept_by_hash(stacks: UserStacks) -> None:
    assert stacks.hashes.tolist() == [10, 30, 2**64 - 1] and stacks.offsets.tolist() == [0, 2, 5, 5]
    assert stacks.ips.tolist() == [4, 5, 1, 2, 3]
    offsets, ips = UserStacks(stacks.hashes[:0], stacks.offsets[:1], stacks.ips[:0]).find(np.array([7, 0], np.uint64))
    assert (offsets.tolist(), ips.tolist()) == ([0, 0, 0], [])


@pytest.mark.parametrize(("hashes", "frames"), [
    ([], []),
    ([30], [[1, 2, 3]]),
    ([10, 30, 10], [[4, 5], [1, 2, 3], [4, 5]]),
    ([0, 11, 2**64 - 2], [[], [], []]),  # before, between and behind the known ones
    ([2**64 - 1, 30, 0, 10], [[], [1, 2, 3], [], [4, 5]]),
])  # fmt: skip
def test_stacks_are_found_in_the_order_asked(stacks: UserStacks, hashes: list[int], frames: list[list[int]]) -> None:
    offsets, ips = stacks.find(np.array(hashes, np.uint64))
    assert [ips[a:b].tolist() for a, b in zip(offsets, offsets[1:], strict=False)] == frames
    assert len(offsets) == len(hashes) + 1 and offsets[-1] == len(ips)


def test_a_kernel_without_the_tracepoint_is_too_old() -> None:
    empty = bytes.fromhex("9feb0100180000000000000000000000000000000100000000")
    with pytest.raises(CapabilityError, match=r"lacks the tracepoint sched_switch in its BTF: boot Linux 5\.15"):
        explore(Btf(empty))
