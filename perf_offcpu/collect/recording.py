# SPDX-License-Identifier: Apache-2.0
"""Make a recording: open the target, the signals and the kernel side, and run a session with them."""

from __future__ import annotations

import contextlib
import errno
import signal
from collections.abc import Callable

from perf_offcpu.collect.collector import Collector
from perf_offcpu.collect.options import STANDARD_OUTPUT, RecordOptions
from perf_offcpu.collect.session import Say, Session
from perf_offcpu.collect.summary import Summary
from perf_offcpu.collect.system.limits import raise_descriptor_limit, raise_priority, too_many_files
from perf_offcpu.collect.system.signals import RecordingSignals
from perf_offcpu.collect.targets import TargetWatch, ends_of
from perf_offcpu.collect.workload import SIGNAL_EXIT_BASE, Workload

TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGHUP)
GRACE_S = 2.0
"""A terminal sends these signals to the command, too, which may print a summary before it ends."""

_STANDARD_ERROR = 2


def record(
    options: RecordOptions, say: Say, show: Say | None = None, ready: Callable[[], None] = lambda: None
) -> Summary:
    """Make a recording; return when it is complete and the command, if any, has ended.

    Args:
        say: is called with a short sentence for whatever differs from what was asked for.
        show: is called now and then with a line on the progress.
        ready: is called once, when everything from then on is recorded.

    Raises:
        TargetError: the target is not there, or the command cannot be run.
        CapabilityError: the machine or the user lacks something.
        RecordingError: the file cannot be written, or the kernel refuses something.
        BrokenPipeError: the reader of a pipe is gone.
    """
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(contextlib.closing(TargetWatch(options.target)))
        enders = stack.enter_context(ends_of([options.until_exit] if options.until_exit else []))
        workload = None
        if options.command:
            output_fd = _STANDARD_ERROR if options.output == STANDARD_OUTPUT else 1
            workload = stack.enter_context(contextlib.closing(Workload(options.command, output_fd)))
        with (
            RecordingSignals(rotating=options.rotation is not None) as signals,
            _open_collector(options, say) as collector,
        ):
            summary = Session(options, collector, signals, say, show, ready).run(workload, watch, enders)
        # The file is complete; a further signal ends the recorder at once.
        if workload:
            summary.status = workload.end(GRACE_S if signals.received in TERMINAL_SIGNALS else 0)
        elif signals.received:
            summary.status = SIGNAL_EXIT_BASE + signals.received
    return summary


def _open_collector(options: RecordOptions, say: Say) -> Collector:
    raise_descriptor_limit()
    raise_priority(options.realtime_priority)
    try:
        return Collector(options, say)
    except OSError as problem:
        raise too_many_files() if problem.errno in (errno.EMFILE, errno.ENFILE) else problem from None
