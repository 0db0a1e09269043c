# SPDX-License-Identifier: Apache-2.0
"""Targets of a recording: all tasks, given processes and threads, or a command and its children. Properties restrict
the recording further: users, comms, CPUs, control groups. One value of each kind that is asked for must match. Targets
are looked up before anything starts, so that a mistyped pid is one sentence and no file. While recording, a pidfd per
process or thread reports when the last one has ended and there is nothing left to record."""

import contextlib
import errno
import os
import pwd
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perf_offcpu.collect.bpf.config import Targets
from perf_offcpu.collect.system.cgroups import Group, find_groups
from perf_offcpu.collect.system.cpus import online_cpus, parse_cpu_list
from perf_offcpu.errors import TargetError, UsageError
from perf_offcpu.files import kernel_lines, read_kernel
from perf_offcpu.text import printable

_PIDFD_THREAD = os.O_EXCL  # include/uapi/linux/pidfd.h, Linux 6.9
_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Target:
    """The tasks whose waits and samples are recorded."""

    processes: tuple[int, ...] = ()  # ids as the user sees them
    threads: tuple[int, ...] = ()  # likewise
    command: bool = False  # the command that the recorder starts is the target
    users: tuple[int, ...] = ()  # effective user ids
    comms: tuple[bytes, ...] = ()  # names of threads
    cpus: tuple[int, ...] = ()  # CPUs on which a wait must begin, or a sample be taken
    groups: tuple[Group, ...] = ()  # control groups, all of one hierarchy; groups below them match, too
    forked: frozenset[int] = frozenset()
    """Processes that are not named, but were found as descendants of `roots`: they may end at any time."""
    roots: tuple[int, ...] = ()  # named as `PID+`: their descendants are looked up again when the recording begins

    @property
    def kind(self) -> Targets:
        """The way in which tasks are chosen, before users, comms, CPUs and groups restrict the choice."""
        if self.processes and self.threads:
            return Targets.TASKS
        if self.processes or self.threads:
            return Targets.PIDS if self.processes else Targets.TIDS
        return Targets.COMMAND if self.command else Targets.ALL

    @property
    def is_system(self) -> bool:
        """True if no process, thread or command is named: all tasks may be recorded."""
        return self.kind is Targets.ALL

    @property
    def ids(self) -> tuple[int, ...]:
        """Ids of all named processes, then threads."""
        return self.processes + self.threads


def choose_target(
    command: bool = False,
    *,
    system: bool = False,
    pids: str | None = None,
    tids: str | None = None,
    users: str | None = None,
    comms: str | None = None,
    cpus: str | None = None,
    groups: Sequence[str] = (),
) -> Target:
    """Return the target of a command line, by perf's rules. `command`: True if a command is given; next to -a, -p, -t,
    -u, -G or -C it only sets the duration. `system`, `pids`, `tids`, `users`, `comms`, `cpus`, `groups`: values of -a,
    -p, -t, -u, --comm, -C and -G. Raises UsageError: options contradict each other, a list is empty or malformed;
    TargetError: there is no such user, CPU or control group."""
    lists = [("-p", pids), ("-t", tids), ("-u", users), ("--comm", comms), ("-C", cpus)]
    for option, text in (*lists, *(("-G", group) for group in groups)):
        if text is not None and not text.strip():  # `-p "$(pgrep …)"` of a program that does not run
            raise UsageError(f"{option} '{text}': nothing is named; leave {option} out to record regardless of it")
    if system and (pids or tids):
        raise UsageError(f"-a records all tasks, {'-p' if pids else '-t'} only some: choose one")
    processes, forked, roots = _parse_processes(pids)
    return Target(
        processes=processes,
        threads=_parse_ids("-t", tids),
        command=command and not any((system, pids, tids, users, cpus, groups)),
        users=tuple(map(_user, _words("-u", users))),
        comms=tuple(map(_comm, _words("--comm", comms))),
        cpus=_cpus(cpus),
        groups=find_groups(word for text in groups for word in _words("-G", text)),
        forked=forked,
        roots=roots,
    )


_COMM_BYTES = 15  # TASK_COMM_LEN without its NUL (include/linux/sched.h)


def _words(option: str, text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    if not all(words):
        raise UsageError(f"{option} {text}: a name is missing next to a comma")
    return words


def _parse_ids(option: str, text: str | None, suffix: str = "") -> tuple[int, ...]:
    if text is None:
        return ()
    words = [word.removesuffix(suffix) for word in text.replace(",", " ").split()]
    ids = [int(word) for word in words if re.fullmatch(rf"\d{{1,{_MAX_DIGITS}}}", word, re.ASCII)]
    if not words or len(ids) < len(words) or 0 in ids:
        raise UsageError(f"{option} {text}: not a list of ids such as 17 or 17,18")
    return tuple(dict.fromkeys(ids))


def _parse_processes(text: str | None) -> tuple[tuple[int, ...], frozenset[int], tuple[int, ...]]:
    """Parse -p; return (all pids, pids found only as descendants of roots, roots). `17+`: 17 is a root."""
    named = _parse_ids("-p", text, "+")
    roots = [int(word[:-1]) for word in (text or "").replace(",", " ").split() if word.endswith("+")]
    forked = frozenset(descendants(roots) if roots else ()) - set(named)
    return (*named, *sorted(forked)), forked, tuple(roots)


def _comm(word: str) -> bytes:
    comm = os.fsencode(word)
    if len(comm) > _COMM_BYTES:
        short = os.fsdecode(comm[:_COMM_BYTES])
        raise UsageError(f"--comm {word}: the kernel keeps {_COMM_BYTES} bytes of a name: use {short}")
    return comm


def _user(word: str) -> int:
    if word.isascii() and word.isdigit():
        if len(word) > _MAX_DIGITS or int(word) >= 2**32 - 1:
            raise TargetError(f"-u {word}: there is no such user")
        return int(word)
    try:
        return pwd.getpwnam(word).pw_uid
    except KeyError:
        raise TargetError(f"-u {word}: there is no such user") from None


def _cpus(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    if not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", text, re.ASCII):
        raise UsageError(f"-C {text}: not a list of CPUs such as 0,2-3")
    wanted = parse_cpu_list(text)
    online = online_cpus()
    missing = [cpu for cpu in wanted if cpu not in online]
    if missing or not wanted:
        running = ",".join(map(str, online))
        raise TargetError(f"-C {text}: CPU {missing[0] if missing else 'none'} is not online; {running} are")
    return tuple(sorted(set(wanted)))


def status_of(tid: int) -> dict[bytes, bytes]:
    """Return name → value of the fields of /proc/TID/status, {} if there is no such thread. /proc/TID/stat waits for a
    process that is within execve(2), this file does not."""
    try:
        status = read_kernel(f"/proc/{tid}/status")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(line.partition(b":")[::2] for line in kernel_lines(status))


def descendants(processes: Iterable[int]) -> list[int]:
    """Return the ascending pids of all descendants of `processes`, without `processes` themselves."""
    children = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit() and (parent := status_of(int(name)).get(b"PPid")):
            children[int(parent)].append(int(name))
    chosen = set(processes)
    family, waiting = set(chosen), list(chosen)
    while waiting:
        new = [child for child in children[waiting.pop()] if child not in family]
        family.update(new)
        waiting += new
    return sorted(family - chosen)


def left_out(processes: Iterable[int]) -> list[str]:
    """Return a message for each process with descendants that are not in `processes`: they are not recorded."""
    chosen, lines = set(processes), []
    for pid in sorted(chosen):
        if number := len(set(descendants([pid])) - chosen):
            name = printable(os.fsdecode(status_of(pid).get(b"Name", b"").strip()))
            children = "1 child" if number == 1 else f"{number} children"
            are, them = ("is", "it") if number == 1 else ("are", "them")
            lines.append(f"{children} of {name} {pid} {are} not recorded: -p {pid}+ takes {them}, too")
    return lines


def check_target(target: Target) -> None:
    """Check that all named processes and threads exist. Raises TargetError: one does not, or -p names a thread."""
    for pid in target.processes:
        process = pid if pid in target.forked else process_of(pid)
        if process is None:
            raise TargetError(f"there is no process {pid}")
        if process != pid:
            raise TargetError(f"{pid} is a thread of process {process}: use -t {pid} or -p {process}")
    for tid in target.threads:
        if process_of(tid) is None:
            raise TargetError(f"there is no thread {tid}")


def process_of(tid: int) -> int | None:
    """Return the tgid of a thread, None if there is no such thread."""
    fields = status_of(tid)
    return int(fields[b"Tgid"]) if fields else None


def is_kernel_thread(tid: int) -> bool:
    """Return True for a kernel thread; False for other threads, and for ids that no thread has."""
    fields = status_of(tid)
    return bool(fields) and b"VmSize" not in fields and fields[b"State"].split()[0] not in (b"Z", b"X")


class TargetWatch:
    """Watch the end of targets: `fds` holds a descriptor for each, readable when it has ended, for poll(). Raises
    TargetError: a target does not exist (`check_target`)."""

    def __init__(self, target: Target) -> None:
        check_target(target)
        self.fds = {open_pidfd(tid) for tid in target.ids if tid not in target.forked}
        for pid in target.forked:
            with contextlib.suppress(TargetError):
                self.fds.add(open_pidfd(pid))

    def ended(self, fd: int) -> bool:
        """Close and forget `fd`, whose target has ended; return True if no other target is left."""
        self.fds.discard(fd)
        os.close(fd)
        return not self.fds

    def close(self) -> None:
        """Close all descriptors."""
        while self.fds:
            os.close(self.fds.pop())


def open_pidfd(tid: int) -> int:
    """Open a pidfd of a thread, readable when it has ended; before Linux 6.9 of its process, which ends no sooner.
    Raises TargetError: there is no such thread."""
    try:
        return os.pidfd_open(tid, _PIDFD_THREAD)
    except OSError as problem:
        process = process_of(tid)
        if process is None or problem.errno != errno.EINVAL:
            raise TargetError(f"{tid} cannot be watched: {problem.strerror}") from None
        return os.pidfd_open(process)
