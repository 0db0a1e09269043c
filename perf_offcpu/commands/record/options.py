# SPDX-License-Identifier: Apache-2.0
"""Make a `RecordOptions` of the options of `perf-offcpu record`. This module checks the texts only; `collect` examines
the machine. `--call-graph auto` examines the files that the target runs. If all of them keep frame pointers, the
kernel's walk (fp) finds every caller and costs least; else stacks are copied (cfi)."""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import os
import platform
import re
import shutil
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perf_offcpu.commands.shared.files import STDOUT
from perf_offcpu.commands.shared.parsers import duration_s
from perf_offcpu.commands.shared.streams import stdout_is_closed
from perf_offcpu.errors import CapabilityError, UsageError
from perf_offcpu.units import parse_size, parse_time

if TYPE_CHECKING:
    from perf_offcpu.collect.options import RecordOptions, Rotation
    from perf_offcpu.collect.targets import Target


MAX_COMPRESSION_LEVEL = 22
_LONGEST = "1000000s"
_MOST_RATE = 10**9
_SWITCHES = "all_cgroups wakers waker_stacks objects object_names lock_owners budget goroutines".split()
"""Options that `RecordOptions` has under the same name."""


def options_of(args: argparse.Namespace, argv: Sequence[str]) -> RecordOptions:
    """Return the options of the recording from parsed arguments; `argv`: the command line, kept in the recording. Raise
    UsageError for an invalid value."""
    from perf_offcpu.collect.bpf.config import ShortWaits, parse_states
    from perf_offcpu.collect.control import LEAST_PERIOD, parse_control
    from perf_offcpu.collect.events.parser import DEFAULT_EVENT, parse_events
    from perf_offcpu.collect.options import RecordOptions
    from perf_offcpu.collect.rings.rings import parse_ring_size
    from perf_offcpu.collect.targets import choose_target, is_kernel_thread

    if args.waker_stacks and not args.wakers:
        raise UsageError("--waker-stacks and --no-wakers contradict each other")
    if args.lock_owners and not args.objects:
        raise UsageError("--lock-owners and --no-objects contradict each other")
    if args.output == STDOUT and stdout_is_closed():
        raise UsageError("-o -: standard output is closed")
    if args.output == STDOUT and args.buildid_cache:
        raise UsageError("--buildid-cache needs a file to read back, -o - is a pipe")
    if args.ready_fd is not None:
        _check_writable(args.ready_fd)
    command = tuple(args.command[1:] if args.command[:1] == ["--"] else args.command)
    target = choose_target(
        bool(command),
        system=args.all_cpus,
        pids=args.pid,
        tids=args.tid,
        users=args.uid,
        comms=args.comm,
        cpus=args.cpu,
        groups=args.cgroup,
    )
    stack_bytes = choose_stack_bytes(args.call_graph, args.no_stack_bytes, target, command)
    period, period_ns = args.off_cpu_period, 0
    if period is not None:
        period_ns = parse_time("--off-cpu-period", period, "ms", LEAST_PERIOD, _LONGEST)
    options = RecordOptions(
        target=target,
        command=command,
        argv=tuple(argv),
        output=args.output,
        rotation=_rotation(args),
        compression_level=_compression_level(args),
        off_cpu_period_ns=period_ns,
        threshold_ns=parse_time("--off-cpu-thresh", args.off_cpu_thresh, "ms", most=_LONGEST),
        events=parse_events(args.event or [DEFAULT_EVENT]),
        frequency_hz=_frequency(args.freq),
        period=_at_least("-c", 1, args.count) if args.count is not None else 0,
        kernel_stacks=args.kernel_callchains,
        deferred_stacks=args.call_graph == "fp,defer",
        stack_bytes=stack_bytes,
        short_waits=ShortWaits(args.short_waits),
        min_block_ns=parse_time("--min-block", args.min_block, "us"),
        max_rate=_at_least("--max-rate", 10, args.max_rate, _MOST_RATE) if args.max_rate else 0,
        states=parse_states(args.switch_states),
        kernel_threads=args.kernel_threads or any(map(is_kernel_thread, target.ids)),
        ring_bytes=parse_ring_size(args.mmap_pages) if args.mmap_pages else 0,
        realtime_priority=_at_least("--realtime", 0, args.realtime),
        asks_jvms=not args.no_jvm_names,
        task_rate_hz=args.task_rate,
        duration_s=duration_s(args.duration),
        until_exit=_at_least("--until-exit", 0, args.until_exit),
        control=None if args.control is None else parse_control(args.control),
        **{name: getattr(args, name) for name in _SWITCHES},
    )
    _check_tracepoints(options)
    return options


def with_rights(options: RecordOptions, *, forced: bool) -> RecordOptions:
    """Return the options, with `unprivileged` set if `forced` (--unprivileged) or if the kernel refuses BPF. Raise
    UsageError if `forced` and an option needs BPF; CapabilityError if BPF is refused and needed, the command of an
    unprivileged recording is set-user-ID, or /proc is of another pid namespace."""
    from perf_offcpu.collect.bpf.kernel.facts import check_privileges

    if os.path.realpath("/proc/self") != f"/proc/{os.getpid()}":  # direct: asks which pid this process has there
        reason = "/proc does not show the processes of this pid namespace, but others under the same ids"
        raise CapabilityError(reason, "mount -t proc proc /proc, as unshare --mount-proc does")
    needs = _needs_bpf(options)
    if forced and needs:
        raise UsageError(f"--unprivileged and {needs} contradict each other")
    if not forced:
        try:
            check_privileges()
            return options
        except CapabilityError as problem:
            if needs:
                own = "own processes can be recorded without: name a command, or -p"
                raise CapabilityError(f"{problem.what}, which {needs} needs", f"{problem.remedy}; {own}") from None
    if options.target.command and (name := setuid_program(options.command[0])):
        raise CapabilityError(f"{name} runs as another user (set-user-ID)", "record as root")
    return replace(options, unprivileged=True)


def setuid_program(name: str) -> str:
    """Return the path of a command that is set-user-ID of another user or set-group-ID of another group, else ""."""
    path = shutil.which(name) or name
    try:
        facts = os.stat(path)  # direct: the caller's own command
    except OSError:
        return ""
    by_user = facts.st_mode & stat.S_ISUID and facts.st_uid != os.geteuid()
    return path if by_user or (facts.st_mode & stat.S_ISGID and facts.st_gid != os.getegid()) else ""


def _needs_bpf(options: RecordOptions) -> str:
    """Return the first option that needs BPF, and so a privileged user; "" for none."""
    target = options.target
    needs = {
        "a recording of the whole system": target.is_system,
        "-u": target.users,
        "--comm": target.comms,
        "-C": target.cpus,
        "-G": target.groups,
        "--off-cpu-period": options.off_cpu_period_ns,
        "--max-rate": options.max_rate,
        "--switch-output": options.rotation,
        "--control": options.control,
        "--waker-stacks": options.waker_stacks,
        "--goroutines": options.goroutines,
        "--call-graph fp,defer": options.deferred_stacks,
        "-r": options.realtime_priority,
    }
    return next((name for name, is_asked in needs.items() if is_asked), "")


def _rotation(args: argparse.Namespace) -> Rotation | None:
    """Return when to begin new files (--switch-output); None for never."""
    from perf_offcpu.collect.options import parse_rotation

    _at_least("--switch-max-files", 0, args.switch_max_files)
    if args.switch_output is None:
        if args.switch_max_files:
            raise UsageError("--switch-max-files needs --switch-output")
        return None
    if args.output == STDOUT:
        raise UsageError("--switch-output needs files, -o - is a pipe")
    return parse_rotation(args.switch_output, args.switch_max_files)


def _compression_level(args: argparse.Namespace) -> int:
    """Return zstd's level of compression, 0 for none; by default 1 if zstd is installed and the output is no pipe."""
    from perf_offcpu.perfdata.compressed import zstd_library

    if args.compression_level is None:
        has_zstd = importlib.util.find_spec("zstandard") is not None
        return int(has_zstd and args.output != STDOUT)
    level = int(args.compression_level)
    if not 0 <= level <= MAX_COMPRESSION_LEVEL:
        raise UsageError(f"--compression-level {level}: 1 to {MAX_COMPRESSION_LEVEL}, or 0 for none")
    if level and args.output == STDOUT:
        raise UsageError("-z is for files; compress the pipe itself: -o - | zstd")
    if level:
        zstd_library()  # refuse now, not when the recording begins
    return level


def _check_tracepoints(options: RecordOptions) -> None:
    """Raise UsageError for a tracepoint if tasks are chosen: the kernel would filter it for all recorders."""
    target = options.target
    chosen = not target.is_system or target.users or target.comms or target.groups
    for event in options.events:
        if event.is_tracepoint and chosen:
            raise UsageError(f"-e {event.name}: tracepoints are recorded system-wide only: use -a")


def _frequency(text: str | None) -> int:
    """Parse the value of -F (Hz, `max`, None: default) to samples per second; UsageError above the kernel's limit."""
    from perf_offcpu.collect.options import DEFAULT_FREQUENCY_HZ

    limit = int(Path("/proc/sys/kernel/perf_event_max_sample_rate").read_text())
    if text is None:
        return min(DEFAULT_FREQUENCY_HZ, limit)
    if text == "max":
        return limit
    if not re.fullmatch(r"0{0,999}[1-9]\d{0,999}", text, re.ASCII):
        raise UsageError(f"-F {text}: not a frequency in Hz, nor max")
    if int(text) > limit:
        raise UsageError(f"-F {text}: more than the kernel allows (kernel.perf_event_max_sample_rate is {limit})")
    return int(text)


def _at_least(option: str, least: int, value: int, most: int | None = None) -> int:
    """Return the value of an option; raise UsageError unless it is between `least` and `most`."""
    if value < least:
        raise UsageError(f"{option} {value}: at least {least}")
    if most is not None and value > most:
        raise UsageError(f"{option} {value}: at most {most}, or 0 for any number")
    return value


def _check_writable(fd: int) -> None:
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    except (OSError, OverflowError, ValueError):
        flags = os.O_RDONLY
    if flags & os.O_ACCMODE == os.O_RDONLY:
        raise UsageError(f"--ready-fd {fd}: not a descriptor that is open for writing")


DEFAULT_BYTES: Final = 8192
MIN_BYTES: Final = 256
_MAX_FILES: Final = 64
_MAX_PIDS: Final = 16


def choose_stack_bytes(text: str, no_bytes: bool, target: Target, command: tuple[str, ...]) -> int:
    """Return the size of copies of user stacks in bytes; 0: the kernel walks stacks along frame pointers. `text`: value
    of --call-graph (auto, fp, fp,defer, cfi or cfi,BYTES); `no_bytes`: --no-stack-bytes is given."""
    method, comma, size = text.partition(",")
    if text in ("fp", "fp,defer"):
        return 0
    if method == "cfi":
        if no_bytes:
            raise UsageError(f"--call-graph {text} and --no-stack-bytes contradict each other: choose one")
        if not _can_unwind():
            raise UsageError(f"--call-graph {text}: not on this machine ({platform.machine()}): use fp")
        return _stack_bytes(size) if comma else DEFAULT_BYTES
    if text != "auto":
        raise UsageError(f"--call-graph {text}: known are auto, fp, fp,defer and cfi[,BYTES]")
    if no_bytes or not _can_unwind():
        return 0
    needs_copies = _lack_frame_pointers(_files_of_command(command[0])) if target.command else _process_lacks(target)
    return DEFAULT_BYTES if needs_copies else 0


def _can_unwind() -> bool:
    from perf_offcpu.abi.machine import MACHINES

    return platform.machine() in MACHINES


def _stack_bytes(text: str) -> int:
    from perf_offcpu.abi.offcpu import LARGEST_COPY

    size = parse_size("--call-graph cfi,BYTES:", text, least=str(MIN_BYTES), most=str(LARGEST_COPY))
    return (size + 7) // 8 * 8  # the kernel takes multiples of 8


def _lack_frame_pointers(files: list[str]) -> bool:
    """Return True unless code of all files keeps frame pointers; also for no files, or more than _MAX_FILES."""
    from perf_offcpu.unwind.cfi.table import keeps_frame_pointers

    return not files or len(files) > _MAX_FILES or not all(map(keeps_frame_pointers, files))


def _files_of_command(name: str) -> list[str]:
    """Return the paths of a command's program and of this process's C library, which the program probably uses."""
    own = sorted(path for path in _mapped(os.getpid()) if re.search(r"/(libc\.so|libc\.musl|ld-musl)", path))
    return [shutil.which(name) or name, *own]


def _process_lacks(target: Target) -> bool:
    """Return True if a file that the chosen processes have mapped lacks frame pointers or cannot be read in time; also
    for threads, more than _MAX_PIDS processes, and the whole system. A helper process reads the files: it may hang."""
    from perf_offcpu.collect.system.helper import Helper

    if target.threads or not 0 < len(target.processes) <= _MAX_PIDS:
        return True
    helper = Helper(lambda pid: _lack_frame_pointers([f"/proc/{pid}/root{path}" for path in _mapped(pid)]))
    answers = list(helper.each(target.processes))
    helper.close()
    return any(answer.value is not False for answer in answers)


def _mapped(pid: int) -> set[str]:
    """Return the paths of the files that a process has mapped executable; none if its mappings cannot be read."""
    from perf_offcpu.collect.existing.maps import parse_maps, read_maps

    try:
        mappings = [mapping for mapping in parse_maps(read_maps(pid)) if b"x" in mapping.permissions]
    except OSError:
        return set()
    return {os.fsdecode(mapping.name) for mapping in mappings if mapping.name.startswith(b"/")}
