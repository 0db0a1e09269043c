# SPDX-License-Identifier: Apache-2.0
"""Add waits between context switches to a recording, as off-cpu samples next to the recorded samples.

They are like the samples of a recording with an off-cpu event: one for each wait, at the moment of the switch-in,
whose period is the time off the CPU. So all code that uses a Recording works on them. Each has

* the stack of the switch-out, where one was sampled (no stack is better than the stack of another moment);
* the state, if sched_switch was recorded. Threads that stayed runnable (were preempted, or yielded)
  are flagged PREEMPTED: all their time off the CPU is run-queue delay;
* wake-up, waker and run-queue delay, if sched_waking or sched_wakeup was recorded. Their samples are taken
  in the thread that wakes, so their stack is the waker's. If an interrupt woke the thread, the waker
  is 0, the idle thread's number, flagged WAKER_INTERRUPT: the interrupted thread has nothing to do with it.
"""

import numpy as np

from perf_offcpu.abi.attr import Attr, AttrFlag, PerfType, ReadFormat, SampleType, SoftwareConfig
from perf_offcpu.abi.offcpu import EVENT_NAME
from perf_offcpu.decode.account import CollectorAccount
from perf_offcpu.decode.switches.events import Switches, SwitchKind
from perf_offcpu.decode.switches.intervals import find_waits
from perf_offcpu.losses import Losses
from perf_offcpu.model.columns import I64
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.recording import Evsel, SampleFlag, Samples, Tasks

_SAMPLE_TYPE = SampleType.IDENTIFIER | SampleType.IP | SampleType.TID | SampleType.TIME | SampleType.CPU
_SAMPLE_TYPE |= SampleType.PERIOD | SampleType.CALLCHAIN
"""The sample_type of off-cpu time that perf 5.19 to 6.15 and `inject` write."""


def has_switches(switches: Switches) -> bool:
    """Return True if there are rows of switch-outs or switch-ins: wake-ups alone make no waits."""
    return bool(np.isin(switches.kind, (SwitchKind.SWITCH, SwitchKind.OUT, SwitchKind.IN)).any())


def with_waits(
    samples: Samples, switches: Switches, tasks: Tasks, evsels: list[Evsel], counters: Losses, account: CollectorAccount
) -> Samples:
    """Return the samples, followed by one for each wait between switches; the evsel of these is appended to `evsels`.
    `account` gets the times (ns) from and up to which waits are known. Switches that make no wait are counted."""
    last_ns = max(int(times.max(initial=0)) for times in (samples.time_ns, switches.time_ns, tasks.end_ns))
    waits = wait_samples(switches, tasks, last_ns, len(evsels), counters)
    evsels.append(offcpu_evsel([evsel.attr for evsel in evsels]))
    account.begin_ns, account.end_ns = int(switches.time_ns.min()), last_ns
    return Samples.concat([samples, waits])


def wait_samples(switches: Switches, tasks: Tasks, last_ns: int, evsel: int, counters: Losses) -> Samples:
    """Return one off-cpu sample of evsel number `evsel` for each wait, by (tid, time), without comm and space. Switches
    that make no wait are counted; `last_ns` is the last moment of the recording."""
    waits = find_waits(switches, tasks, last_ns, counters)
    begun = switches.take(waits.out)
    stacks = _chosen(switches, waits.stack)
    # As sampled; else the scheduler's number of the thread, and its process.
    tid = np.where(begun.current > 0, begun.current, begun.tid)
    life = rows_at(tasks.tid, tasks.begin_ns, tid, begun.time_ns)
    pid = np.where(begun.pid > 0, begun.pid, np.append(tasks.pid, np.int32(-1))[life])
    runnable = begun.preempted != 0
    flags = np.full(len(waits), SampleFlag.OFFCPU, np.uint32)
    flags[runnable] |= np.uint32(SampleFlag.PREEMPTED)
    flags[waits.end < 0] |= np.uint32(SampleFlag.STILL_BLOCKED)
    flags[stacks.callchain < 0] |= np.uint32(SampleFlag.NO_USER_STACK | SampleFlag.NO_KERNEL_STACK)
    samples = Samples.filled(
        len(waits),
        time_ns=waits.end_ns,
        period=waits.end_ns - begun.time_ns,
        evsel=np.full(len(waits), evsel),
        pid=pid,
        tid=tid,
        cpu=np.where(waits.end >= 0, switches.cpu[waits.end], begun.cpu),
        flags=flags,
        state=begun.state,
        switch_out_ns=begun.time_ns,
        longest_ns=waits.end_ns - begun.time_ns,
        **{name: getattr(stacks, name) for name in ("ip", "callchain", "cpumode", "cgroup")},
    )
    _add_wakeups(samples, _chosen(switches, np.where(runnable, -1, waits.wakeup)))
    samples.runq_ns[runnable] = samples.period[runnable]
    return samples


def offcpu_evsel(attrs: list[Attr]) -> Evsel:
    """Return the evsel of wait samples, `offcpu-time` in ns; it uses the clock of the recorded attrs."""
    clocked = next((attr for attr in attrs if attr.flags & AttrFlag.USE_CLOCKID), None)
    attr = Attr(
        type=PerfType.SOFTWARE,
        config=SoftwareConfig.BPF_OUTPUT,
        sample_period=1,
        sample_type=_SAMPLE_TYPE,
        read_format=ReadFormat.ID,
        flags=AttrFlag.SAMPLE_ID_ALL | (AttrFlag.USE_CLOCKID if clocked else AttrFlag(0)),
        clockid=clocked.clockid if clocked else 0,
    )
    return Evsel(EVENT_NAME, attr, "ns")


def _chosen(switches: Switches, rows: I64) -> Switches:
    """Return the switches in `rows`; -1 gives a row of sentinels."""
    nothing = Switches.filled(1)
    return Switches(*(np.append(getattr(switches, name), getattr(nothing, name))[rows] for name in Switches.columns))


def _add_wakeups(samples: Samples, wakeups: Switches) -> None:
    samples.wakeup_ns = wakeups.time_ns
    samples.waker_pid, samples.waker_tid = wakeups.pid, wakeups.current
    woken, interrupt = wakeups.time_ns >= 0, wakeups.current == 0
    samples.flags |= np.where(woken & interrupt, np.uint32(SampleFlag.WAKER_INTERRUPT), np.uint32(0))
    samples.waker_callchain = np.where(woken & ~interrupt, wakeups.callchain, np.int32(-1))
    samples.runq_ns[woken] = (samples.time_ns - wakeups.time_ns)[woken]
