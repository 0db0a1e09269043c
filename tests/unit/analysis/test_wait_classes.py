# SPDX-License-Identifier: Apache-2.0
"""Wait classes by the kernel's functions, the system call and wrappers; of a real recording, exactly."""

from collections import Counter
from pathlib import Path

import pytest
from builders.examples import examples
from builders.profile import Code, ProfileBuilder, classes_of, kernel, stack

from perf_offcpu.abi.syscalls import syscall_number
from perf_offcpu.analysis.classes import wait_classes
from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import CLASSES, ClassRow, WaitClass, Work
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize
from perf_offcpu.tables import read_table

TESTS = Path(__file__).resolve().parents[2]
DATA = TESTS / "data"
FUTEX = 202
NONE, UNKNOWN = -1, -2
S, D, I = 1, 2, 0x402  # noqa: E741

COLOURS = "transparent grey darkgrey purple magenta red lightred lightblue blue green orange yellow brown".split()
"""What Firefox profiler can paint a category in (GraphColor in its src/types/profile.ts)."""


def class_of(path: list[str | Code], syscall: int = UNKNOWN, state: int = S, **columns: object) -> str:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    builder.sample("a", path, 5, syscall=syscall, state=state, **columns)  # type: ignore[arg-type]
    return classes_of(builder.build())[0]


def in_kernel(*functions: str) -> list[str | Code]:
    """Return a stack with these functions as its kernel part, leaf last."""
    return [
        "main", kernel("entry_SYSCALL_64_after_hwframe"), kernel("do_syscall_64"), *map(kernel, functions),
    ]  # fmt: skip


@pytest.mark.parametrize(("label", "functions"), examples("unit/analysis/stacks.txt", "kernel"))
def test_functions_of_the_kernel(label: str, functions: str) -> None:
    assert class_of(in_kernel(*functions.split(";"))) == label


@pytest.mark.parametrize(("label", "syscall", "state", "frames"), examples("unit/analysis/stacks.txt", "calls"))
def test_without_functions_of_the_kernel(label: str, syscall: str, state: str, frames: str) -> None:
    number = {"none": NONE, "?": UNKNOWN}.get(syscall) or syscall_number(syscall, "x86_64")
    assert class_of([*stack(frames)], number, {"S": S, "D": D, "I": I}[state]) == label


def test_libaios_io_destroy_waits_for_what_was_submitted() -> None:  # no function of the kernel says for what
    assert class_of(in_kernel("__x64_sys_io_destroy", "wait_for_completion"), syscall=207, state=D) == "disk"


def test_a_runnable_thread_waits_for_a_cpu() -> None:
    sleeping = in_kernel("__x64_sys_futex", "futex_wait")
    assert class_of(sleeping, FUTEX, S, flags=SampleFlag.PREEMPTED) == "runqueue"
    assert class_of(sleeping, FUTEX, 0) == "runqueue"
    assert class_of(sleeping, FUTEX, 0, flags=SampleFlag.PREEMPTED | SampleFlag.THROTTLED) == "throttled"
    assert classes_of(ProfileBuilder().sample("a", sleeping, 5, event="cpu-clock").build()) == ["other"], "no wait"


def syscall_name(path: list[str | Code], number: int, arch: str = "x86_64") -> str:
    waits = classify(ProfileBuilder(meta={"arch": arch}).sample("a", path, 5, syscall=number).build())
    return waits.syscall_names[waits.syscall[0]]


def test_names_of_system_calls() -> None:
    assert syscall_name([], FUTEX) == "futex" and syscall_name([], 98, "aarch64") == "futex"
    assert syscall_name([], 4000) == "4000" and syscall_name([], 3, "vax") == "3"
    assert syscall_name([], NONE) == syscall_name([], UNKNOWN) == ""
    assert syscall_name(in_kernel("__x64_sys_ppoll", "do_sys_poll"), UNKNOWN) == "ppoll"
    assert syscall_name(in_kernel("ksys_read.isra.0"), UNKNOWN) == "read"
    # 3 is read for a 32-bit program, close for others
    assert syscall_name(["main", kernel("do_fast_syscall_32"), kernel("ksys_read")], 3) == "read"
    assert syscall_name(in_kernel("ksys_read"), 3) == "close"


def test_the_known_workload() -> None:
    """Each thread of the workload's recording (10 rounds, waits under 1 ms summed) has its classes."""
    options = SymbolizeOptions(symfs=str(DATA / "demo.symfs"), kallsyms=str(DATA / "demo.kallsyms"))
    profile = symbolize(load_recording(DATA / "demo.data"), options)
    waits, samples = classify(profile), profile.samples
    found = Counter[tuple[str, str, str]]()
    labels = classes_of(profile)
    for row in profile.is_offcpu().nonzero()[0].tolist():
        comm, syscall = profile.strings[samples.comm[row]], waits.syscall_names[waits.syscall[row]]
        found[comm, labels[row], syscall] += int(samples.count[row])
    assert {key: count for key, count in found.items() if key[2]} == {
        **{(comm, "lock", "futex"): 1 for comm in WAITS_FOR_THE_START}, **{("cond-waiter", "lock", "futex"): 11},
        **{(f"locker-{x}", "lock", "futex"): 11 for x in "ab"},
        **{(f"locker-{x}", "sleep", "clock_nanosleep"): 20 for x in "ab"},
        **{(comm, "sleep", "clock_nanosleep"): 10 for comm in SLEEPERS},
        **{(comm, "sleep", "clock_nanosleep"): 1 for comm in ("short-sleeper", "waiter")},
        ("pipe-reader", "pipe", "read"): 10, ("stuck-reader", "pipe", "read"): 1, ("poller", "poll", "poll"): 10,
        ("syncer", "disk", "fsync"): 1,
    }  # fmt: skip


SLEEPERS = ("cond-signaler", "deep-sleeper", "pipe-writer", "sleeper")
WAITS_FOR_THE_START = (
    *SLEEPERS,
    *("burner", "pipe-reader", "poller", "short-sleeper", "stuck-reader", "syncer", "waiter"),
)


def test_rows_are_whole() -> None:
    assert [int(class_) for class_ in WaitClass] == list(range(len(WaitClass)))
    assert [heading for heading, _ in read_table(wait_classes.__file__)] == [class_.label for class_ in WaitClass]
    assert {class_.row.work for class_ in WaitClass} <= set(Work)
    assert CLASSES[-1] is WaitClass.OTHER and set(CLASSES) == set(WaitClass)
    colours = [class_.row.colour for class_ in WaitClass]
    assert set(colours) <= set(COLOURS) - {"yellow", "orange"}, "those are of code in user space and kernel"
    assert len(set(colours)) >= min(len(colours), 10), "take a colour that no class has before sharing one"
    with pytest.raises(TypeError):
        ClassRow("without a colour")  # type: ignore[call-arg]
