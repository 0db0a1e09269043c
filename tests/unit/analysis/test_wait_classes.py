# SPDX-License-Identifier: Apache-2.0
"""Wait classes by the kernel's functions, the system call and wrappers; of a real recording, exactly."""

from collections import Counter
from pathlib import Path

import pytest
from builders.profile import Code, ProfileBuilder, classes_of, kernel

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize

TESTS = Path(__file__).resolve().parents[2]
DATA = TESTS / "data"
READ, FSYNC, FUTEX, POLL, RECV, FSTAT = 0, 74, 202, 7, 45, 5
NONE, UNKNOWN = -1, -2
S, D, I = 1, 2, 0x402  # noqa: E741


def class_of(path: list[str | Code], syscall: int = UNKNOWN, state: int = S, **columns: object) -> str:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    builder.sample("a", path, 5, syscall=syscall, state=state, **columns)  # type: ignore[arg-type]
    return classes_of(builder.build())[0]


def in_kernel(*functions: str) -> list[str | Code]:
    """Return a stack with these functions as its kernel part, leaf last."""
    return [
        "main", kernel("entry_SYSCALL_64_after_hwframe"), kernel("do_syscall_64"), *map(kernel, functions),
    ]  # fmt: skip


@pytest.mark.parametrize(("functions", "label"), [
    (["__x64_sys_futex", "do_futex", "futex_wait", "__futex_wait", "futex_do_wait"], "lock"),
    (["__x64_sys_futex", "do_futex", "futex_wait", "futex_wait_queue_me", "schedule"], "lock"),
    (["ksys_read", "vfs_read", "anon_pipe_read"], "pipe"), (["ksys_read", "vfs_read", "pipe_read", "schedule"], "pipe"),
    (["ksys_read", "vfs_read", "sock_read_iter", "unix_stream_recvmsg", "schedule_timeout"], "pipe"),
    (["__x64_sys_recvfrom", "inet_recvmsg", "tcp_recvmsg", "sk_wait_data"], "network"),
    (["__x64_sys_accept4", "inet_accept", "inet_csk_accept.constprop.0"], "network"),
    (["ksys_read", "vfs_read", "ext4_file_read_iter", "filemap_read", "folio_wait_bit_common"], "disk"),
    (["__x64_sys_fsync", "ext4_sync_file", "jbd2_log_wait_commit", "schedule"], "disk"),
    (["__x64_sys_openat", "path_openat", "down_read", "rwsem_down_read_slowpath"], "lock"),
    (["ksys_write", "ext4_file_write_iter", "__mutex_lock.constprop.0", "schedule"], "lock"),
    (["__x64_sys_clock_nanosleep", "common_nsleep", "hrtimer_nanosleep", "do_nanosleep"], "sleep"),
    (["ksys_read", "timerfd_read_iter"], "sleep"),
    (["__x64_sys_poll", "do_sys_poll", "poll_schedule_timeout.constprop.0"], "poll"),
    (["__x64_sys_epoll_wait", "do_epoll_wait", "ep_poll", "schedule_hrtimeout_range"], "poll"),
    (["__do_sys_io_uring_enter", "io_cqring_wait"], "poll"), (["__x64_sys_wait4", "kernel_wait4", "do_wait"], "child"),
    (["__x64_sys_vfork", "kernel_clone", "wait_for_vfork_done", "wait_for_completion_state"], "child"),
    (["asm_exc_page_fault", "handle_mm_fault", "filemap_fault", "folio_wait_bit_common"], "fault"),
    (["ksys_read", "copy_page_to_iter", "asm_exc_page_fault", "do_swap_page", "io_schedule"], "fault"),
    (["asm_exc_page_fault", "lock_mm_and_find_vma", "rwsem_down_read_slowpath"], "lock"),
    (["exit_to_user_mode_loop", "get_signal"], "stopped"), (["get_signal", "do_exit", "exit_mm"], "other"),
    (["ksys_read", "tty_read", "n_tty_read", "schedule_timeout"], "other"),
    (["ret_from_fork", "kthread", "worker_thread"], "other"),
    (["ret_from_fork", "kthread", "worker_thread", "process_one_work", "wb_workfn", "io_schedule"], "disk"),
])  # fmt: skip
def test_functions_of_the_kernel(functions: list[str], label: str) -> None:
    assert class_of(in_kernel(*functions)) == label


@pytest.mark.parametrize(("path", "syscall", "state", "label"), [
    ([], FUTEX, S, "lock"),
    (["main"], FSYNC, D, "disk"),
    (["main"], RECV, S, "network"),
    (["main"], POLL, S, "poll"),
    (["main"], FSTAT, D, "disk"),
    (["main"], READ, D, "disk"),
    (["main"], READ, S, "other"),
    (["main"], NONE, D, "fault"),
    ([], NONE, D, "other"),
    (["main", kernel("exit_to_user_mode_loop")], NONE, S, "other"),
    (["main", "pthread_cond_wait@@GLIBC_2.3.2"], UNKNOWN, S, "lock"),
    (["main", "clock_nanosleep@GLIBC_2.2.5"], UNKNOWN, S, "sleep"),
    (["main", "__poll"], UNKNOWN, S, "poll"),
    (["runtime.mcall", "runtime.futexsleep", "runtime.futex.abi0"], UNKNOWN, S, "lock"),
    (["main", "read"], UNKNOWN, D, "disk"),
    (["main", "read"], UNKNOWN, S, "other"),
    (["read", "a", "b", "c", "d"], UNKNOWN, D, "other"),  # the program's own `read`
    (["main", "poll"], FUTEX, S, "lock"),  # the kernel's word counts more
    ([], UNKNOWN, S, "other"),
    ([], UNKNOWN, I, "other"),
])  # fmt: skip
def test_without_functions_of_the_kernel(path: list[str | Code], syscall: int, state: int, label: str) -> None:
    assert class_of(path, syscall, state) == label
    # libaio's io_destroy() waits for what was submitted (fio); no function of the kernel says for what.
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
