# SPDX-License-Identifier: Apache-2.0
"""Run the command that is recorded: forked early, executed when everything is ready. The child is forked before the
recorder grows large and before any descriptor exists that it should not have. It waits on a pipe; when the recorder
writes to it, the child calls exec, so that recording begins with the command's first instruction. If the recorder ends
instead, the pipe is closed and the child ends, too."""

import errno
import os
import select
import signal
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from perf_offcpu.environment import environment_of_caller
from perf_offcpu.errors import TargetError

EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE = 127, 126  # as shells have it
SIGNAL_EXIT_BASE = 128
LAST_SWITCH_S = 0.01  # time for each task that a CPU has to run: several slices of the scheduler
MOST_LAST_SWITCH_S = 1.0  # time in all: any user can have very many tasks that run
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class Workload:
    """Fork a child for a command, and start, await and end the command. `argv`: the command and its arguments.
    `output_fd`: descriptor for its standard output; 2 if the recording goes to descriptor 1. `status`: exit status of
    the command, as in shells (128 + signal if killed); None until `wait` or `end`. `pidfd`: of the command."""

    def __init__(self, argv: Sequence[str], output_fd: int = 1) -> None:
        self.argv, self.output_fd = tuple(argv), output_fd
        self.status: int | None = None
        go_fd, self._go = os.pipe2(os.O_CLOEXEC)
        self._error, error_fd = os.pipe2(os.O_CLOEXEC)
        self.pid = self._fork(go_fd, error_fd)
        os.close(go_fd)
        os.close(error_fd)
        self.pidfd = os.pidfd_open(self.pid)

    def _fork(self, go_fd: int, error_fd: int) -> int:
        # A signal between fork and the child's own dispositions would run the recorder's handlers there.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns where other threads exist (numpy's); the child only reads and execs.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if not pid:
                os.close(self._go)
                os.dup2(self.output_fd, 1)
                _run_child(self.argv, go_fd, error_fd, before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid

    def start(self) -> None:
        """Let the command run; return after its exec. Raises TargetError: exec failed; exit_status is 127 or 126."""
        os.write(self._go, b"g")
        code = os.read(self._error, 16)
        if code:
            self.wait()
            reason = os.strerror(int(code))
            problem = TargetError(f"cannot run {self.argv[0] or repr(self.argv[0])}: {reason}")
            problem.exit_status = EXIT_NOT_FOUND if int(code) == errno.ENOENT else EXIT_NOT_EXECUTABLE
            raise problem

    def wait(self) -> int:
        """Wait until the command has ended; return `status`."""
        if self.status is None:
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self.status = SIGNAL_EXIT_BASE - code if code < 0 else code
        return self.status

    def end(self, grace_s: float = 0) -> int:
        """Send SIGTERM, as perf does, to a command that has not ended in `grace_s`; wait; return `status`."""
        if self.status is None:
            select.select([self.pidfd], [], [], grace_s)
            signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)  # to a zombie: no effect, no error
        return self.wait()

    def close(self) -> None:
        """Close the pipes, end the command, whether it was started or not, and close `pidfd`."""
        for fd in (self._go, self._error):
            os.close(fd)
        self.end()
        os.close(self.pidfd)


def _run_child(argv: tuple[str, ...], go_fd: int, error_fd: int, mask: set[int | signal.Signals]) -> NoReturn:
    """Run in the child: wait for a byte from `go_fd`, then exec the command with the signal mask `mask`; if that fails,
    write errno as text to `error_fd`."""
    try:
        _reset_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if os.read(go_fd, 1):
            os.execvpe(argv[0], argv, environment_of_caller())
    except OSError as problem:
        os.write(error_fd, str(problem.errno).encode())
    except ValueError:  # Python's word for an empty name
        os.write(error_fd, str(errno.ENOENT).encode())
    finally:
        os._exit(EXIT_NOT_FOUND)


def _reset_signals() -> None:
    """Restore the signal dispositions that a command has if a shell, not Python, starts it."""
    signal.set_wakeup_fd(-1)
    for signum in _ENDING_SIGNALS:
        if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup is meant for the command, too
            signal.signal(signum, signal.SIG_DFL)
    for signum in _IGNORED_BY_PYTHON:
        signal.signal(signum, signal.SIG_DFL)


def let_last_thread_leave() -> None:
    """Sleep until a thread that has just ended has probably left its CPU. A process has ended before its last thread is
    switched out for the last time; only that completes the budget (ns in each state) of the thread. The recorder may
    take the CPU before, and no list of tasks shows the thread any more."""
    runnable = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
    time.sleep(min(LAST_SWITCH_S * max(1.0, runnable / (os.cpu_count() or 1)), MOST_LAST_SWITCH_S))
