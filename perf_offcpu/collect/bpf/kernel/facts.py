# SPDX-License-Identifier: Apache-2.0
"""Facts about the running kernel with which the BPF program is compiled. Kernel differences are looked up, not derived
from version numbers: the kernel's BTF has a member, a tracepoint or a helper, or not. If it lacks a necessary one, a
`CapabilityError` is raised; other features are turned off by a constant."""

import dataclasses
import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perf_offcpu.abi.elf import Machine
from perf_offcpu.abi.machine import MACHINES
from perf_offcpu.build_ids import kernel_build_id
from perf_offcpu.cache import DiskCache
from perf_offcpu.collect.bpf.attr import ProgramType
from perf_offcpu.collect.bpf.kernel import members
from perf_offcpu.collect.bpf.kernel.members import Defines
from perf_offcpu.collect.bpf.object import KERNEL_FUNCTION
from perf_offcpu.collect.bpf.syscall import VerifierError, load_program, run_program
from perf_offcpu.collect.system import btf as types_of_kernel
from perf_offcpu.collect.system.btf import KALLSYMS, Btf, Kind, Tracepoint, switch_end, symbol_address
from perf_offcpu.collect.system.privileges import privilege_remedy
from perf_offcpu.errors import CapabilityError
from perf_offcpu.files import descriptor, read_kernel, read_kernel_if_any
from perf_offcpu.tables import table_of

_KIND, _LIMIT, _COLUMN = "kernels", 1 << 20, "json"
MAX_FRAMES = 127  # PERF_MAX_STACK_DEPTH, the default of kernel.perf_event_max_stack

_REGISTERS = (
    "REGS_SYSCALL", "REGS_IP", "REGS_SP", "REGS_FP", "REGS_LINK", "REGS_MODE", "TASK_THREAD_POINTER",
)  # fmt: skip
"""Saved user registers: number of the system call (-1 outside of one); ip, sp, fp for walks, and the return address of
functions that have not saved it; the mode, 64-bit or other; the thread pointer, saved when the task left its CPU."""

_TRACEPOINTS = (
    "sched_switch", "sched_exit_tp", "sched_waking", "sched_process_fork", "sched_process_exec",
)  # fmt: skip
_OPTIONAL = {"sched_exit_tp"}


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Facts about the running kernel on which the BPF program depends; they are the same at each boot."""

    tracepoints: Mapping[str, Tracepoint]  # tracepoints of this kernel that the program can use, by name
    defines: Defines  # preprocessor constants
    code: Mapping[str, Sequence[int]]
    """Enumerator of `enum offcpu_late` (bpf/off_cpu.h) → (offset from `_text`, size) in bytes of this code in the
    kernel. Empty if addresses are hidden."""
    task_iterator: int | None = None
    """BTF id of the function that identifies iterators over tasks; None before Linux 5.8."""
    switch_end: str = ""  # the function that a task runs first when it comes to a CPU, for a kprobe; "" if unknown

    @property
    def has_exit_tp(self) -> bool:
        """True if waits can end in the sleeper's own context (sched_exit_tp, Linux 6.16)."""
        return "sched_exit_tp" in self.tracepoints


def explore(btf: Btf) -> KernelFacts:
    """Look up the `KernelFacts` in BTF and kallsyms. Raises CapabilityError: old kernel; FormatError: damaged BTF."""
    tracepoints = {name: point for name in _TRACEPOINTS if (point := btf.tracepoint(name))}
    missing = [name for name in _TRACEPOINTS if name not in tracepoints and name not in _OPTIONAL]
    if missing or not btf.member("task_struct", "bpf_storage"):
        lacking = f"the tracepoint {missing[0]} in its BTF" if missing else "BPF task storage"
        raise CapabilityError(f"kernel {platform.release()} lacks {lacking}", members.KERNEL_NEEDED)
    symbols = read_kernel_if_any(str(KALLSYMS))
    defines = {
        **members.task_members(btf),
        **_registers(btf),
        **members.object_members(btf),
        **_preempt_count(btf),
        **_read_only_cast(btf),
        "OFFCPU_SWITCH_HAS_STATE": int(tracepoints["sched_switch"].args >= 4),  # fa2c3254d7cf, Linux 5.18
    }
    iterator = btf.type_id(Kind.FUNC, "bpf_iter_task")
    return KernelFacts(tracepoints, defines, _code(symbols), iterator, switch_end(symbols))


def setting_defines() -> Defines:
    """Return the preprocessor constants that may differ by boot: frame limit (sysctl), may_goto, code mask."""
    limit = int(read_kernel_if_any("/proc/sys/kernel/perf_event_max_stack") or MAX_FRAMES)
    return {
        "OFFCPU_FRAME_LIMIT": min(MAX_FRAMES, limit),
        "OFFCPU_MAY_GOTO": int(has_may_goto()),
        "CODE_MASK": f"{_code_mask():#x}ULL",
    }


def _code_mask() -> int:
    """Return the mask of the bits of a return address that are no signature (arm64): as many as the highest mapping of
    this process needs, whose stack is near the end of the address space. Code mapped beyond 48 bits is not found."""
    row = MACHINES.get(platform.machine())
    if row is None or row.registers.code_bits == 64:
        return 2**64 - 1
    ends = re.findall(rb"^[0-9a-f]+-([0-9a-f]+) ", read_kernel("/proc/self/maps"), re.MULTILINE)
    return (1 << min(row.registers.code_bits, max((int(end, 16) - 1).bit_length() for end in ends))) - 1


def _registers(btf: Btf) -> Defines:
    """Return the preprocessor constants for user registers: if BPF can read them, offsets in struct pt_regs, sizes."""
    row = MACHINES.get(platform.machine())
    offsets = members.machine_offsets(btf, _REGISTERS)
    register = btf.member(*members.machine_members()["REGS_SYSCALL"].split(".", 1)) if row else None
    can = btf.has_string("BPF_FUNC_task_pt_regs")  # dd6e10fbd9fb, Linux 5.15
    return {
        "OFFCPU_USER_REGISTERS": int(can and offsets is not None),
        "OFFCPU_FRAME_POINTERS": int(can and offsets is not None),
        "OFFCPU_ARM64": int(row is not None and row.machine == Machine.AARCH64),
        "MODE_MASK": row.words.mode_mask if row else 0,
        "MODE_64": row.words.mode_64 if row else 0,
        "THREAD_BYTES": row.thread_bytes if row else 1,
        "ALIGNED": row.aligned if row else 8,
        "REGS_SYSCALL_TYPE": f"s{8 * register.size}" if register else "s32",
        "REGS_SIZE": 8 * row.words.number if row else 0,
        **(offsets or dict.fromkeys(_REGISTERS, 0)),
    }


def _read_only_cast(btf: Btf) -> Defines:
    """Return the preprocessor constants for bpf_rdonly_cast(): BTF ids; {} before Linux 6.2 (a35b9af4ec2c)."""
    cast, word = btf.type_id(Kind.FUNC, "bpf_rdonly_cast"), btf.type_id(Kind.STRUCT, "refcount_struct")
    task = btf.type_id(Kind.STRUCT, "task_struct")
    if cast is None or word is None or task is None:
        return {}
    return {"OFFCPU_READ_ONLY_CAST": KERNEL_FUNCTION + cast, "OFFCPU_WORD": word, "OFFCPU_TASK_STRUCT": task}


_INTERRUPT_MASK = {False: 0x00FF0100, True: 0x1F000100}
"""Bits of the preempt count that are set while an NMI, hard interrupt or softirq is served. True: of the newer layout,
with a field for locks that disable interrupts between softirqs and hard interrupts (7.3, not 6.18; linux/preempt.h)."""


def _preempt_count(btf: Btf) -> Defines:
    """Return the preprocessor constants that locate the preempt count, which shows interrupts (OFFCPU_PREEMPT_COUNT 0:
    not found, no interrupt is noticed), and x86's stack of interrupts. arm64 keeps the count in the task. x86 has a
    per-CPU variable, from 6.2 to 6.13 a member of `pcpu_hot`; BPF finds it from the CPU's run queue."""
    newer = btf.type_id(Kind.VAR, "local_interrupt_disable_state") is not None
    common: Defines = {
        "OFFCPU_PREEMPT_COUNT_OF_TASK": 1,
        "OFFCPU_PREEMPT_COUNT_OF_CPU": 2,
        "INTERRUPT_MASK": _INTERRUPT_MASK[newer],
    }
    of_task = btf.member("task_struct", "thread_info.preempt.count")
    if of_task:
        return {**common, "OFFCPU_PREEMPT_COUNT": 1, "PREEMPT_COUNT": of_task.offset}
    run_queue = members.all_offsets(btf, {"TASK_CFS_RQ": "task_struct.se.cfs_rq", "CFS_RQ_RQ": "cfs_rq.rq"})
    count = _distance(btf, "preempt_count", "__preempt_count")
    if not run_queue["TASK_CFS_RQ"] or count is None:
        return {**common, "OFFCPU_PREEMPT_COUNT": 0}
    defines: Defines = {**common, **run_queue, "OFFCPU_PREEMPT_COUNT": 2, "PREEMPT_COUNT": count}
    end, in_use = (_distance(btf, name, name) for name in ("hardirq_stack_ptr", "hardirq_stack_inuse"))
    row = MACHINES.get(platform.machine())
    if end is not None and in_use is not None and row and row.has_irq_stack:
        defines |= {"OFFCPU_IRQ_STACK": 1, "IRQ_STACK_PTR": end, "IRQ_STACK_IN_USE": in_use}
    return defines


def _distance(btf: Btf, member: str, variable: str) -> str | None:
    """Return, as a C constant, the bytes from a CPU's run queue to `member` of its `pcpu_hot`, or, if there is none, to
    the per-CPU `variable`; None if neither is found."""
    hot, of_hot = btf.per_cpu_offset("pcpu_hot"), btf.member("pcpu_hot", member)
    offset = hot + of_hot.offset if hot is not None and of_hot else btf.per_cpu_offset(variable)
    neighbour = btf.per_cpu_offset("runqueues")
    return None if offset is None or neighbour is None else f"({offset - neighbour}LL)"


_LOCK = re.compile(rb"_*(ww_)?mutex_|_*down(_|$)|rwsem_|_*percpu_down_|_*rt_mutex_(lock|slowlock)|rtlock_")
"""Functions that wait for locks of the kernel (kernel/locking/mutex.c, semaphore.c, rwsem.c, rtmutex.c)."""
_SCHEDULER = re.compile(rb"_*(io_|preempt_)?schedule(_|$)|_*wait_for_|_*wait_on_bit|do_nanosleep|yield")


def _code(symbols: bytes) -> dict[str, Sequence[int]]:
    """Return enumerator of `enum offcpu_late` → (offset from `_text`, size) of kernel code, bytes; {} if addresses are
    hidden. `symbols`: text of /proc/kallsyms."""
    text = symbol_address(symbols, b"_text")
    if not text:
        return {}
    begin, end = (symbol_address(symbols, name) for name in (b"__sched_text_start", b"__sched_text_end"))
    softirq, outlined = (_function(symbols, name) for name in (b"do_softirq", b"do_softirq.part.0"))
    ranges = {
        "sched_text": (begin, end - begin),
        "lock_text": _lock_text(symbols, begin, end),
        "wake_up": _function(symbols, b"try_to_wake_up"),
        "backlog": _function(symbols, b"process_backlog"),
        "folio_wake": _function(symbols, b"wake_page_function"),
        "do_softirq": outlined if outlined[1] else softirq,
    }
    return {name: (start - text, size) for name, (start, size) in ranges.items() if size}


def _lock_text(symbols: bytes, begin: int, end: int) -> tuple[int, int]:
    """Return (address, size in bytes) of the code of locks in the kernel's `__sched` code, from `begin` to `end`;
    size 0 if mixed with other code. The linker keeps kernel/locking together. `symbols`: text of /proc/kallsyms."""
    lines = (line.split() for line in symbols.splitlines())
    places = sorted((int(words[0], 16), words[2]) for words in lines if len(words) == 3)
    code = [(address, name) for address, name in places if begin <= address < end and not name.startswith(b"__pfx_")]
    rows = [row for row, (_, name) in enumerate(code) if _LOCK.match(name)]
    if not rows or any(_SCHEDULER.match(name) for _, name in code[rows[0] : rows[-1] + 1]):
        return begin, 0
    after = code[rows[-1] + 1][0] if rows[-1] + 1 < len(code) else end
    return code[rows[0]][0], after - code[rows[0]][0]


def _function(symbols: bytes, name: bytes) -> tuple[int, int]:
    """Return (address, size in bytes) of a kernel function; size 0 if unknown. `symbols`: text of /proc/kallsyms."""
    line = symbols.find(b" " + name + b"\n")
    start = symbol_address(symbols, name)
    following = symbols[line + 1 : line + 4096].split(b"\n", 2)[1] if line >= 0 else b""
    size = int(following.split()[0], 16) - start if following else 0
    return start, size if 0 < size < 1 << 16 else 0


def kernel_identity() -> tuple[object, ...]:
    """Return values that identify the running kernel (release, version, build-id, …), the same at each boot."""
    system = os.uname()
    # Not all notes: before Linux 6.9 they have addresses (aaa8736370db), which differ at each boot.
    return (system.release, system.version, system.machine, sys.byteorder, sys.maxsize, kernel_build_id())


def kept_facts() -> KernelFacts:
    """Return the facts about the running kernel, from the user's cache or, the first time, from its BTF. Raises
    CapabilityError: the kernel is too old, or does not show its BTF; FormatError: its BTF is damaged."""
    files, name = DiskCache.usual(_KIND, _LIMIT), _name()
    facts = None if files is None else _read(files, name)
    if facts is None:
        facts = explore(Btf.load())
        if files is not None and facts.code:  # addresses may be hidden at this boot only
            text = json.dumps(dataclasses.asdict(facts)).encode()
            files.write(name, {_COLUMN: np.frombuffer(text, np.uint8)})
    return facts


def _name() -> str:
    """Return the facts' cache file name: a hash of the kernel's identity and of the code that finds the facts."""
    finders = (__file__, members.__file__, table_of(members.__file__), types_of_kernel.__file__)
    # direct: the package's own sources
    sources = [Path(finder).read_bytes() for finder in finders]
    return hashlib.sha256(repr((kernel_identity(), sources)).encode()).hexdigest() + ".facts"


def _read(files: DiskCache, name: str) -> KernelFacts | None:
    """Return the facts in the cache file `name`; None if the file is missing or damaged."""
    try:
        document = json.loads((files.read(name) or {})[_COLUMN].tobytes())
        points = {name: Tracepoint(*values) for name, values in document.pop("tracepoints").items()}
        return KernelFacts(tracepoints=points, **document)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


# Smallest BPF programs, loaded to test the abilities of this kernel and this process

_RETURN_0 = bytes.fromhex("b700000000000000 9500000000000000")  # r0 = 0; exit
_MAY_GOTO = (
    bytes.fromhex("7a0a00fe00000000 b700000000000000")  # *(u64 *)(r10 - 512) = 0; r0 = 0
    + bytes.fromhex("e500010000000000 b700000000000000")  # may_goto +1; r0 = 0
    + bytes.fromhex("9500000000000000")  # exit
)


def check_privileges() -> None:
    """Load the smallest BPF program and close it. Raises CapabilityError: this process may not load BPF programs."""
    try:
        os.close(load_program(ProgramType.PERF_EVENT, "offcpu_probe", _RETURN_0, "GPL"))
    except VerifierError as error:
        what = f"BPF programs cannot be loaded ({error.strerror})"
        raise CapabilityError(what, privilege_remedy()) from error


def has_may_goto() -> bool:
    """Return True if programs may have the instruction may_goto (011832b97b31, Linux 6.9; bpf/loops.h). It takes up to
    16 bytes of stack beyond the program's own, which the kernel's BPF interpreter may lack; so the program tried here
    has the largest own stack, 512 bytes."""
    if sys.byteorder != "little":  # bpf/loops.h has the bytes in this order
        return False
    try:
        os.close(load_program(ProgramType.PERF_EVENT, "offcpu_may_goto", _MAY_GOTO, "GPL"))
    except VerifierError:
        return False
    return True


def pid_namespace_level(defines: Mapping[str, int | str]) -> int:
    """Return the number of pid namespaces above the one of this process, read by a BPF program that runs in its
    context. `defines`: offsets from `members.task_members`. Raises CapabilityError: the kernel refuses the program."""
    task_pid, level = (int(defines[name]) for name in ("TASK_THREAD_PID", "PID_LEVEL"))
    code = (
        bytes.fromhex("85000000 9e000000")  # r0 = bpf_get_current_task_btf()
        + bytes.fromhex("7900") + task_pid.to_bytes(2, sys.byteorder) + bytes(4)  # r0 = r0->thread_pid
        + bytes.fromhex("6100") + level.to_bytes(2, sys.byteorder) + bytes(4)  # r0 = r0->level
        + bytes.fromhex("9500000000000000")  # exit
    )  # fmt: skip
    try:
        with descriptor(load_program(ProgramType.RAW_TRACEPOINT, "offcpu_level", code, "GPL")) as fd:
            return run_program(fd)
    except OSError as error:
        raise CapabilityError(
            f"the kernel does not tell which pid namespace this is ({error.strerror})",
            "record from outside of the container",
        ) from error
