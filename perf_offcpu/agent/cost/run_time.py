# SPDX-License-Identifier: Apache-2.0
"""Estimate the CPU time of the recorder's BPF programs. The kernel measures it on request only (BPF_ENABLE_STATS, by a
descriptor: nothing stays switched on), for some ns of each run of any program, so it is asked in short windows.

    second:  |  1100 switches  |  980  |  60 000  |  61 000  |
    window:          ▂                              ▂           run time in it → ns per switch

The switches of each second are counted. A second is booked by the rate of seconds of its own kind (a power of two of
switches a second): a switch takes 0.36 us where CPUs are busy, and several us where they are idle. A second of a kind
not measured yet waits for its rate, and the next one begins with a window. A rate is the run time of windows by their
switches, or by half of what their seconds had on average: windows in the quiet parts of busy seconds have too few."""

import contextlib
import os
import random
import re
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from perf_offcpu.agent.recorder import Recorder
from perf_offcpu.files import read_kernel

SECOND_S: Final = 1.0
WINDOW_S: Final = 0.05
_EVERY: Final = 3  # mean number of seconds for each window
_PATIENCE: Final = 10  # seconds that a second waits for the rate of its kind; then the nearest kind has to do
_MOST_S: Final = 5e-6  # run time for each switch, of a kind not measured; other events make it more on quiet machines
_KEPT: Final = 0.9  # weight of a rate's earlier windows at each new one
_FIELD: Final = re.compile(rb"^(prog_id|run_time_ns):\s*(\d+)$", re.MULTILINE)
_SWITCHES: Final = re.compile(rb"^ctxt (\d+)$", re.MULTILINE)


def context_switches() -> int:
    """Return the number of context switches of all CPUs since the boot."""
    match = _SWITCHES.search(read_kernel("/proc/stat"))
    return int(match[1]) if match else 0


class Programs:
    """Reader of the run times of a process's BPF programs; remembers which of its descriptors refer to programs."""

    def __init__(self) -> None:
        self._pid, self._files = 0, list[str]()

    def find(self, pid: int) -> None:
        """Find and remember the descriptors of a process that refer to BPF programs, one for each program."""
        folder, files = f"/proc/{pid}/fdinfo", dict[int, str]()
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):  # direct: a folder of the kernel's
                with contextlib.suppress(OSError, KeyError):
                    files[_fields(f"{folder}/{name}")[b"prog_id"]] = f"{folder}/{name}"
        self._pid, self._files = pid, list(files.values())

    def run_ns(self, pid: int) -> int:
        """Return the run time of a process's programs, ns, as far as measured; raise OSError if a descriptor is
        gone."""
        if pid != self._pid or not self._files:
            self.find(pid)
        try:
            return sum(_fields(file)[b"run_time_ns"] for file in self._files)
        except (OSError, KeyError):
            self._pid = 0
            raise OSError from None


def _fields(path: str) -> dict[bytes, int]:
    """Return the fields prog_id and run_time_ns of a descriptor's fdinfo; {} if it is no BPF program's."""
    fields = {name: int(value) for name, value in _FIELD.findall(read_kernel(path))}
    return fields if b"run_time_ns" in fields else {}


class Window(NamedTuple):
    """Open window, in which the kernel measures the run time of BPF programs."""

    stats_fd: int  # descriptor that keeps the measurement on
    pid: int  # of the recorder
    begin_s: float
    end_s: float
    run_ns: int  # run time of the programs at the begin
    switches: int  # context switches at the begin


class RunTime:
    """Estimate of the CPU time of a recorder's BPF programs: the kernel measures it in short windows, and context
    switches are counted each second. Call `step` at the time it returns."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.booked_s = 0.0  # of all seconds booked so far
        self._programs, self._clock = Programs(), clock
        self._rates: dict[int, tuple[float, ...]] = {}  # kind → (run time, s; switches; mean switches) of its windows
        self._unbooked: list[tuple[int, int, int]] = []  # seconds that wait for a rate: kind, switches, number
        self._sample: tuple[float, float, float] | None = (
            None  # of this second's window: run time s, switches, length s
        )
        self._window: Window | None = None
        self._window_s = float("inf")  # when the window of this second begins
        self._number, self._is_recording = 0, False
        self._began_s, self._switches = clock(), context_switches()
        self._possible = 0.0, self._began_s  # run time without pauses since a time

    def step(self, recorder: Recorder | None) -> float:
        """Begin or end a window of measurement, or a counted second, if due; return when to call again, monotonic s."""
        now = self._clock()
        if now >= self._began_s + SECOND_S:
            self.turn(recorder)
        elif self._window is not None:
            if now >= self._window.end_s:
                self._close()
        elif recorder is not None and now >= self._window_s:
            self._open(recorder.pid)
        return min(self._began_s + SECOND_S, self._window.end_s if self._window else self._window_s)

    def turn(self, recorder: Recorder | None) -> None:
        """End this second, estimate the BPF programs' CPU time in it, and begin the next one; call this also when
        recording begins, pauses or ends."""
        self._close()
        now, switches = self._clock(), context_switches()
        elapsed_s, count = now - self._began_s, switches - self._switches
        kind = int(count / max(elapsed_s, 1e-3)).bit_length()
        if self._sample is not None and count:
            run_s, in_window, length_s = self._sample
            new, before = (run_s, in_window, count * length_s / elapsed_s), self._rates.get(kind, (0.0, 0.0, 0.0))
            self._rates[kind] = tuple(_KEPT * old + value for old, value in zip(before, new, strict=True))
        if self._is_recording:
            self._unbooked.append((kind, count, self._number))
        self._book()
        self._possible = self._possible[0] + self._rate(kind) * count, self._possible[1]
        was_recording, self._is_recording = self._is_recording, recorder is not None and recorder.is_recording
        if recorder is not None and self._is_recording and not was_recording:
            self._programs.find(recorder.pid)
        self._sample, self._began_s, self._switches, self._number = None, now, switches, self._number + 1
        self._window_s = float("inf")
        if self._is_recording and self._unbooked:
            self._window_s = now
        elif self._is_recording and random.random() * _EVERY < 1:
            self._window_s = now + random.uniform(0, SECOND_S - WINDOW_S)

    def share(self) -> float:
        """Return the part of a CPU that BPF programs would have taken without pauses since this was called last."""
        (possible_s, since_s), now = self._possible, self._clock()
        self._possible = 0.0, now
        return possible_s / max(now - since_s, 1e-3)

    def _book(self) -> None:
        """Add waiting seconds' CPU time to `booked_s`, by the rate of their kind, or after _PATIENCE s of the
        nearest."""
        waiting, self._unbooked = self._unbooked, []
        for kind, switches, number in waiting:
            if kind not in self._rates and self._number - number < _PATIENCE:
                self._unbooked.append((kind, switches, number))
            else:
                self.booked_s += self._rate(kind) * switches

    def _rate(self, kind: int) -> float:
        """Return the CPU time for each switch, s, in seconds of a `kind` (binary digits of switches a second), else of
        the nearest kind measured; 0 if there is none."""
        nearest = min(self._rates, key=lambda other: abs(other - kind), default=kind)
        run_s, in_windows, mean = self._rates.get(nearest, (0.0, 0.0, 1.0))
        rate = run_s / max(in_windows, mean / 2)
        return rate if nearest == kind else min(rate, _MOST_S)

    def _open(self, pid: int) -> None:
        from perf_offcpu.collect.bpf.syscall import enable_stats

        self._window_s = float("inf")
        with contextlib.suppress(OSError):
            fd = enable_stats()
            try:
                run_ns, now = self._programs.run_ns(pid), self._clock()
                self._window = Window(fd, pid, now, now + WINDOW_S, run_ns, context_switches())
            except OSError:
                os.close(fd)

    def _close(self) -> None:
        """End the window of measurement, if one is open; if it was long enough, keep its result for this second."""
        window, self._window = self._window, None
        if window is None:
            return
        try:
            run_s = (self._programs.run_ns(window.pid) - window.run_ns) / 1e9
            length_s, switches = self._clock() - window.begin_s, context_switches() - window.switches
            if run_s >= 0 and length_s >= WINDOW_S / 2:
                self._sample = run_s, switches, length_s
        except OSError:  # the recorder has ended
            pass
        finally:
            os.close(window.stats_fd)
