# SPDX-License-Identifier: Apache-2.0
"""The wait classes: numbers here; meaning and rules in wait_classes.toml, whose head says how they are applied.
Options, reports, converters and Documentation/wait-classes.md are made from this table."""

import enum
import functools
import re
from typing import NamedTuple

from perf_offcpu.tables import read_table


class Work(enum.StrEnum):
    """Condition under which waits of a class are for the next piece of work: such waits make a thread idle."""

    NEVER = enum.auto()
    ALWAYS = enum.auto()
    BY_LOCK = enum.auto()  # by the meaning of the wrapper (`Means`), and by the threads that end the waits
    BY_FUNCTION = enum.auto()  # where the system call or a function of the kernel is for work


class Means(enum.IntEnum):
    """Meaning of a futex, by the name of the function of a library or Go's runtime that waits for it."""

    LOCK = 0  # a lock that threads hold, a barrier or a join: never for work
    CONDITION = 1  # a condition variable, or what parks a thread until another thread unparks it
    SEMAPHORE = 2


class ClassRow(NamedTuple):
    """Row of wait_classes.toml. Rules are regular expressions for whole names, separated by blanks."""

    meaning: str  # what the waiting thread needs, in words
    colour: str  # a GraphColor of Firefox profiler (src/types/profile.ts); all ten are in use: a new class shares one
    work: str = Work.BY_FUNCTION  # a `Work`
    functions: str = ""  # functions of the kernel
    syscalls: str = ""  # system calls that are used for nothing else
    wrappers: str = ""  # functions of libraries or Go's runtime
    work_functions: str = ""  # functions of the kernel that wait for the next piece of work
    work_syscalls: str = ""  # system calls that wait for the next piece of work


class WaitClass(enum.IntEnum):
    """Classes of waits, by number in columns. The members after OTHER stand in the order of views and of the rules."""

    OTHER, LOCK, DISK, NETWORK, PIPE, SLEEP, POLL, FAULT, CHILD, RUNQUEUE, THROTTLED, STOPPED = range(12)

    @property
    def label(self) -> str:
        """Return the name in lower case, as on command lines and in tables."""
        return self.name.lower()

    @property
    def row(self) -> ClassRow:
        """Return the class's row of wait_classes.toml: meaning, colour and rules."""
        return _rows()[self]


@functools.cache
def _rows() -> list[ClassRow]:
    return [ClassRow(**fields) for _, fields in read_table(__file__)]


CLASSES = (*list(WaitClass)[1:], WaitClass.OTHER)  # all classes in the order of views: OTHER is the last one
BY_LABEL = {class_.label: class_ for class_ in CLASSES}
CLASS_OF_SYSCALL = {name: class_ for class_ in CLASSES for name in class_.row.syscalls.split()}
"""System calls with one purpose. Others (read, write, ioctl, close, …) do not tell the object of a wait."""

FILE_SYSCALLS = frozenset("read write readv writev open openat openat2 close sendfile sendfile64 ioctl".split())
"""System calls whose waits in state D are for storage: pipes, sockets and terminals are waited for in S."""
FILE_WRAPPER = r"_*(read|write)v?(64)? _*open(at)?(64)?(_nocancel)? _*close _*sendfile(64)? _*ioctl"

FAULT_ENTRY = """
    asm_exc_page_fault exc_page_fault do_user_addr_fault handle_mm_fault __handle_mm_fault
    do_page_fault do_translation_fault do_swap_page faultin_page fixup_user_fault lock_mm_and_find_vma
"""
"""Functions of the kernel that run in page faults only."""
_AT_WORK = "process_one_work io_worker_handle_work"  # functions of kernel threads that have a piece of work
_WORK_FUNCTIONS = " ".join(class_.row.work_functions for class_ in CLASSES)
WORK_SYSCALLS = frozenset(name for class_ in CLASSES for name in class_.row.work_syscalls.split())
"""System calls that wait for the next piece of work and nothing else."""

_MEANINGS = {
    Means.LOCK: r"""
        _*pthread_(mutex_|rwlock_|spin_|barrier_)\w* _*pthread_\w*join\w* _*lll_lock_wait\w* mtx_(timed)?lock
        call_once g_(rec_)?mutex_lock\w* g_rw_lock\w* runtime\.(lock2|lockWithRank|futexlock).*
    """,
    Means.CONDITION: r"""
        _*pthread_cond_\w*wait\w* cnd_(timed)?wait g_cond_wait\w* Unsafe_Park
        runtime\.(stopm|mPark|findRunnable|notesleep|notetsleepg).*
    """,
    Means.SEMAPHORE: r"sem_(wait|timedwait|clockwait) __new_sem_wait\w*",
}

KEPT_NAMES = 1 << 14
"""Functions whose judgement is kept: a view judges them more than once, an agent in each segment."""

_ENTRY = re.compile(r"(?:__(?:x64|ia32|arm64|riscv|s390x?|loongarch|se|do)_(?:compat_)?sys|ksys)_(\w+)")


@functools.lru_cache(KEPT_NAMES)
def class_of_function(name: str) -> WaitClass | None:
    """Return the class of waits in a kernel function; None if the function has none."""
    return next((class_ for class_ in CLASSES if matches(class_.row.functions, name)), None)


@functools.lru_cache(KEPT_NAMES)
def class_of_wrapper(name: str) -> WaitClass | None:
    """Return the class of waits in a library's or Go runtime's function, by its name alone; None for other names."""
    return next((class_ for class_ in CLASSES if matches(class_.row.wrappers, name)), None)


@functools.lru_cache(KEPT_NAMES)
def meaning_of_wrapper(name: str) -> Means | None:
    """Return the meaning of the futex that a library's or Go runtime's function waits for; None for other names."""
    return next((means for means, rules in _MEANINGS.items() if matches(rules, name)), None)


def syscall_of_function(name: str) -> str:
    """Return the name of the system call that a kernel function is the entry of; "" for other functions."""
    match = _ENTRY.fullmatch(name)
    return match[1] if match else ""


@functools.lru_cache(KEPT_NAMES)
def is_for_work_in_kernel(name: str) -> bool | None:
    """Return True if a kernel function waits for new work (a connection), False if it is amid work; else None."""
    return False if matches(_AT_WORK, name) else matches(_WORK_FUNCTIONS, name) or None


def matches(rules: str, name: str) -> bool:
    """Return True if a name matches any of the rules, regular expressions separated by blanks."""
    words, pattern = _compiled(rules)
    return name in words or pattern.fullmatch(name) is not None


@functools.cache
def _compiled(rules: str) -> tuple[frozenset[str], re.Pattern[str]]:
    """Return (rules that are plain words, pattern of the others). Most are words, and compiling them would take longer
    than a short report. Rules are compiled at their first use: command lines need only the labels."""
    words = frozenset(rule for rule in rules.split() if rule.isidentifier())
    others = (rule for rule in rules.split() if rule not in words)
    return words, re.compile("|".join(f"(?:{rule})" for rule in others) or r"(?!)")
