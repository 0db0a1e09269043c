# SPDX-License-Identifier: Apache-2.0
"""Run the agent: restart the recorder, let its segments be delivered, and keep to the budgets.

    recorder (a process) ──segments──> spool ──> delivery (a thread) ──> dataset
                                                                     └─> messages ──> servers (a thread each)
    this thread: starts and restarts the recorder, bounds the spool, measures the cost of all parts

Recording goes on if delivery fails: a full spool loses its oldest recordings, and they are counted."""

import os
import queue
import signal
import time
from collections.abc import Callable
from typing import Final

from perf_offcpu.agent.config import AgentConfig
from perf_offcpu.agent.cost.keeper import BudgetKeeper
from perf_offcpu.agent.cost.parts import keep_no_free_memory
from perf_offcpu.agent.delivery import Delivery
from perf_offcpu.agent.endpoint import Endpoint, Notifier, read_token
from perf_offcpu.agent.journal import Problem, Say
from perf_offcpu.agent.ledger import BUDGET, LOOK_NS, ON, STOPPED, Ledger, boot_id
from perf_offcpu.agent.outlets import Outlets
from perf_offcpu.agent.recorder import ROTATE, Recorder, arguments_of
from perf_offcpu.agent.sinks import Backoff
from perf_offcpu.agent.spool import Spool, run_of
from perf_offcpu.errors import PerfOffcpuError, UsageError
from perf_offcpu.resources import commit, version

TICK_S: Final = 1.0
MEASURE_S: Final = 10.0  # time between two looks at the cost and at the spool
STUCK_S: Final = 600.0
"""Time after which a delivery counts as hung: the agent stops reporting to the service manager that it is alive."""
RESUMED_S: Final = 30.0  # time after a pause in which the recorder may still begin its next file
END_OF_RECORDER_S: Final = 20.0
LAST_DELIVERY_S: Final = 30.0
UNHURRIED_S: Final = 600.0
"""Time for the last deliveries after --duration; LAST_DELIVERY_S after a signal, when a service manager waits."""
_LACK_S: Final = 1.0  # time that may be missing in a minute
_SOUND_S: Final = 30.0
"""Time of running after which a start counts as successful: the pause after the next failure is short."""

RECORDER, RELOAD = "recorder", "reload"
"""Causes of gaps, in addition to the causes of lost segments."""
SPOOL_FULL = "spool-full"


class Agent:
    """An agent, from start to end. `load`: reads its configuration, again at SIGHUP; `say`: writes a sentence to the
    journal; `take_over`: take the dataset over from another agent of this host. The constructor raises LeaseTakenError
    if another agent has the dataset."""

    def __init__(
        self, load: Callable[[], AgentConfig], say: Say, duration_s: float | None = None, *, take_over: bool = False
    ) -> None:
        keep_no_free_memory()
        self._load, self._say, self._duration_s = load, say, duration_s
        self.config = load()
        self._mail: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.spool = Spool(self.config.spool)
        self.ledger = Ledger(self.spool, boot_id(), say)
        self.metrics = self.ledger.metrics
        self._delivery = Delivery(self.spool, self.ledger, say, self._finished, self._delivered)
        self._complete: set[str] = set()
        self._recorder: Recorder | None = None
        self._backoff, self._next_cause = Backoff(), STOPPED
        self._started_s = self._measured_s = 0.0
        self._ending, self._lost = False, ""
        self._keeper = BudgetKeeper(self.config, self.metrics, say)
        self._segment_began_s = 0.0  # 0: no segment grows
        self._in_pause = False  # by what the recorder has said
        self._notifier = Notifier()
        self.outlets = Outlets(self._delivery, self.spool, self.metrics, say, self._lose_lease)
        self.outlets.use(self.config, take_over=take_over)
        address, token = self.config.listen, read_token(self.config.token_file)
        self.endpoint = Endpoint(address, self.ledger.text, self.problem, self.lack, token) if address else None

    def run(self) -> bool:
        """Record and deliver until a signal, or for the duration; return True if a segment was delivered or is left in
        the spool. Raise PerfOffcpuError if another agent takes the dataset."""
        before = self.metrics.value("segments_total")
        signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        handlers = {number: signal.signal(number, self._note_signal) for number in signals}
        until = None if self._duration_s is None else time.monotonic() + self._duration_s
        self._say(f"version {version()}{commit()}, Linux {os.uname().release}, {self.config}")
        self._delivery.start()
        try:
            self._notifier.send("READY=1", "STATUS=starting the recorder")
            while not self._ending and (until is None or time.monotonic() < until):
                self._step(until)
        finally:
            left = self._end()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if self._lost:
            raise PerfOffcpuError(self._lost)
        return left > 0 or self.metrics.value("segments_total") > before

    def problem(self) -> str:
        """Return what fails at present as a sentence; "" if nothing does."""
        busy_s = time.monotonic() - (self._delivery.busy_since or time.monotonic())
        if busy_s > STUCK_S:
            return "a segment is not done after ten minutes"
        if not self._delivery.is_running:
            return "the thread that delivers segments has ended"
        if self._delivery.backoff.failures > 2:
            return "segments cannot be delivered"
        now, keeper, recorder = time.monotonic(), self._keeper, self._recorder
        if self._backoff.failures > 2 and (recorder is None or not self._is_sound()):
            return "the recorder ends again and again"
        starting = now - self._started_s < 2 * self.config.segment_s + 60
        expected = not (starting or keeper.pauses.paused or now - keeper.resumed_s < RESUMED_S)
        if expected and (recorder is None or not recorder.is_recording):
            return "the recorder does not record"
        return ""

    def lack(self) -> str:
        """Return how much of the last minute was recorded, and why not all, in words; "" if nearly all of it was."""
        now_ns = time.monotonic_ns()
        gaps = self.ledger.off(now_ns - LOOK_NS, now_ns)
        recorded_s, cause = (LOOK_NS - sum(gaps.values())) / 1e9, max(gaps, key=gaps.__getitem__, default=STOPPED)
        if recorded_s > LOOK_NS / 1e9 - _LACK_S or cause == STOPPED:
            return ""
        return f"degraded: recorded {recorded_s:.0f} s of the last {LOOK_NS / 1e9:.0f} ({cause})"

    def _step(self, until: float | None) -> None:
        """Do the work that is due; then wait for one message of the threads, at most TICK_S and until `until`
        (monotonic s; None: no such limit), and handle it by the method `_on_KIND`."""
        now = time.monotonic()
        if now - self._measured_s >= MEASURE_S:
            self._measured_s = now
            if not self.spool.is_there():
                raise PerfOffcpuError(f"--spool {self.spool.path}: it was removed or replaced")
            self._keeper.measure(self._recorder)
            self._bound_spool()
        if self._recorder is None and not self._keeper.pauses.paused and self._backoff.left_s <= 0:
            self._start_recorder()
        if not (self._delivery.busy_since and now - self._delivery.busy_since > STUCK_S):
            self._notifier.alive()
        times = (
            self._end_segment(now),
            self._keeper.keep_duty(now, self._recorder),
            self._keeper.bpf.step(self._recorder),
            until or now + TICK_S,
        )
        next_s = min(now + TICK_S, *times)
        try:
            kind, text = self._mail.get(timeout=max(0.0, next_s - now))
        except queue.Empty:
            return
        getattr(self, f"_on_{kind}")(text)

    def _end_segment(self, now: float) -> float:
        """Have the recorder begin another file if the segment is long enough; return when it will be, monotonic s."""
        if self._recorder is None or not self._recorder.is_recording or not self._segment_began_s:
            return now + TICK_S
        if now >= self._segment_began_s + self._keeper.length.seconds:
            self._segment_began_s = now
            self._recorder.command(ROTATE)
        return self._segment_began_s + self._keeper.length.seconds

    # Messages of threads

    def _note_signal(self, number: int, _frame: object) -> None:
        self._mail.put(("reload" if number == signal.SIGHUP else "stop", str(number)))

    def _on_stop(self, _text: str) -> None:
        self._ending = True

    def _on_lost(self, text: str) -> None:
        self._ending, self._lost = True, text

    def _lose_lease(self, text: str) -> None:
        self._mail.put(("lost", text))

    def _on_recording(self, _text: str) -> None:
        self._in_pause, self._segment_began_s = False, self._segment_began_s or time.monotonic()
        self.ledger.mark(ON)
        self._keeper.bpf.turn(self._recorder)
        self.metrics.set("recording", 1)
        self._notifier.send(f"STATUS=recording, one sample for {self._keeper.period.ns / 1e6:g} ms of waiting")

    def _on_paused(self, _text: str) -> None:
        self._in_pause = True
        self.ledger.mark(BUDGET)
        self.ledger.save()
        self._keeper.bpf.turn(self._recorder)
        self.metrics.set("recording", 0)
        self._notifier.send("STATUS=recording pauses, to keep to --max-cpu")

    def _on_complete(self, name: str) -> None:
        self._complete.add(name)
        if self._in_pause:  # the next one begins after it; one that ends before the pause has been followed
            self._segment_began_s = 0.0
            self.ledger.pause(name, BUDGET)
            self.ledger.save()
        self._delivery.wake()

    def _on_says(self, text: str) -> None:
        self._say(f"recorder: {text}")

    def _on_ended(self, status: str) -> None:
        recorder, self._recorder = self._recorder, None
        self.metrics.set("recording", 0)
        self._complete.clear()
        self._delivery.wake()
        self._keeper.bpf.turn(None)
        was_stopped = recorder is None or recorder.was_stopped
        self._next_cause = self._next_cause if was_stopped else RECORDER
        self.ledger.mark(BUDGET if self._keeper.pauses.paused else self._next_cause)
        if was_stopped:
            return
        self.metrics.add("recorder_failures_total")
        if self._is_sound():
            self._backoff.worked()
        pause_s = self._backoff.failed()
        self._say(Problem(f"the recorder ended with status {status}; it is started again in {pause_s:.0f} s"))

    def _on_delivered(self, text: str) -> None:
        samples, seconds = map(float, text.split())
        self._keeper.after_segment(samples, seconds, self._recorder)

    def _on_reload(self, _text: str) -> None:
        """Read the configuration again; an invalid one changes nothing."""
        self._notifier.reloading()
        try:
            config = self._load()
            if (config.spool, config.listen) != (self.config.spool, self.config.listen):
                raise UsageError("--spool, --listen and --port change with a restart only")
            token = read_token(config.token_file)
            self.outlets.use(config)
            if self.endpoint is not None:
                self.endpoint.token = token
        except (PerfOffcpuError, OSError) as problem:
            self.metrics.add("reloads_total", 1, "failed")
            self._say(Problem(f"the configuration stays as it was: {problem}"))
        else:
            before, self.config = self.config, config
            self._keeper.change(config)
            self.metrics.add("reloads_total", 1, "done")
            self._say(f"the configuration was read again: {config}")
            if before.recording != config.recording:
                self._stop_recorder(RELOAD)
        self._notifier.send("READY=1")

    # The recorder

    def _start_recorder(self) -> None:
        self.spool.tidy()  # a recorder that was killed
        run = self.ledger.begin_run(self._next_cause, dict(self.config.labels))
        self.ledger.mark(self._next_cause)
        self.ledger.save()
        self._next_cause, self._started_s = RECORDER, time.monotonic()
        self._in_pause, self._segment_began_s = False, 0.0
        self.metrics.set("period_seconds", self._keeper.period.ns / 1e9)
        words = arguments_of(self.config, self._keeper.period.ns, self.spool.path_of(f"{run:08}.data"))
        self._recorder = Recorder(words, self._mail.put, lock_fd=self.spool.lock_fd, run=run)

    def _stop_recorder(self, cause: str) -> None:
        """Ask the recorder to end; the next one starts after it, and `cause` is that of the gap between them."""
        self._next_cause = cause
        if self._is_sound():
            self._backoff.worked()
        if self._recorder is not None:
            self._recorder.stop()

    def _is_sound(self) -> bool:
        return time.monotonic() - self._started_s > _SOUND_S

    def _finished(self) -> list[str]:
        """Return the names of the recordings in the spool that are complete."""
        running = self._recorder.run if self._recorder else -1
        return [name for name in self.spool.recordings() if run_of(name) != running or name in self._complete]

    def _delivered(self, samples: int, seconds: float) -> None:
        self._mail.put(("delivered", f"{samples} {seconds}"))

    # Budgets

    def _bound_spool(self) -> None:
        """Remove the oldest files of the spool above its limit, counted as lost; set the metrics of its size."""
        size, files = self.spool.usage()
        oldest = sorted([*self._finished(), *self.spool.messages()])
        while size > self.config.spool_bytes and oldest:
            name = oldest.pop(0)
            with self._delivery.lock:
                if name == self._delivery.current:
                    continue
                size -= self.spool.size_of(name)
                self._drop(name)
        if size > self.config.spool_bytes and self._recorder is not None:
            self._recorder.command(ROTATE)  # the file that grows can be removed when it is complete
        self.metrics.set("spool_bytes", size)
        self.metrics.set("spool_files", files)

    def _drop(self, name: str) -> None:
        if ".push-" in name:
            self.metrics.add("push_lost_total", 1, SPOOL_FULL)
        elif name > self.ledger.done:
            self.ledger.drop(name, SPOOL_FULL)
            self.ledger.save()
            self._say(Problem("a segment is lost: the spool is full (--spool-size)"))
        self.spool.remove(name)

    def _end(self) -> int:
        """End the recorder and deliver its last segments; return the number of segments left to the next run."""
        self._notifier.send("STOPPING=1")
        recorder, self._next_cause = self._recorder, STOPPED
        if recorder is not None:
            recorder.end(END_OF_RECORDER_S)
            self._recorder = None
        self._keeper.bpf.turn(None)
        self.ledger.mark(STOPPED)
        self._delivery.close(LAST_DELIVERY_S if self._ending else UNHURRIED_S)
        if left := len(self.spool.recordings()):
            self._say(f"{left} segments stay in the spool; the next agent delivers them")
        for sink in self._delivery.push:
            sink.close(2.0)
        self._keeper.measure(None)
        self.ledger.save()
        if self.endpoint is not None:
            self.endpoint.close()
        self.outlets.close()
        self.spool.close()
        return left
