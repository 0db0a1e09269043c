# SPDX-License-Identifier: Apache-2.0
"""Count numbers of the agent and write them in the text format that Prometheus reads.

All metrics are declared in one table. No metric holds names of files, servers or programs.

Source: Prometheus, "Exposition formats", text format 0.0.4.
"""

import threading
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

PREFIX: Final = "perf_offcpu_agent_"


class Metric(NamedTuple):
    """Declares a metric: name, kind, meaning, and the name of its label, "" for none."""

    name: str
    kind: str
    help: str
    label: str = ""


METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric("recorded_seconds_total", "counter", "time in segments that were delivered"),
        Metric("gap_seconds_total", "counter", "time that was not recorded, by cause", "cause"),
        Metric("segments_total", "counter", "segments delivered"),
        Metric("segments_lost_total", "counter", "segments that were recorded and not delivered", "cause"),
        Metric("samples_total", "counter", "samples in delivered segments"),
        Metric("losses_total", "counter", "what segments lack, by cause (losses.md)", "cause"),
        Metric("clock_steps_total", "counter", "steps of the wall clock between two segments"),
        Metric("dataset_bytes_total", "counter", "bytes written to the dataset"),
        Metric("dataset_failures_total", "counter", "attempts to write a segment that failed"),
        Metric("compacted_files_total", "counter", "files of the dataset that were merged into others"),
        Metric("expired_hours_total", "counter", "hours of the dataset that --keep removed"),
        Metric("upkeep_failures_total", "counter", "attempts to merge or remove files that failed"),
        Metric("container_names_failures_total", "counter", "attempts to ask for names of containers that failed"),
        Metric("pushed_total", "counter", "messages that a server took", "server"),
        Metric("pushed_bytes_total", "counter", "bytes of these messages", "server"),
        Metric("push_retries_total", "counter", "attempts to push that failed and are repeated", "server"),
        Metric("push_lost_total", "counter", "messages that no server got, by cause", "cause"),
        Metric("recorder_starts_total", "counter", "starts of the recorder"),
        Metric("recorder_failures_total", "counter", "recorders that ended without being asked to"),
        Metric("budget_pauses_total", "counter", "times that recording paused to keep --max-cpu"),
        Metric("recorded_part", "gauge", "part of each minute that is recorded, to keep --max-cpu"),
        Metric("budget_raises_total", "counter", "times that the sampling period was raised"),
        Metric("reloads_total", "counter", "configurations read again, by result", "result"),
        Metric("cpu_seconds_total", "counter", "CPU time taken, by part", "part"),
        Metric("cpu_share", "gauge", "CPU time of the last ten minutes as a part of one CPU"),
        Metric("cpu_share_limit", "gauge", "--max-cpu as a part of one CPU"),
        Metric("period_seconds", "gauge", "off-CPU time that one sample stands for now"),
        Metric("recording", "gauge", "1 while the recorder records"),
        Metric("spool_bytes", "gauge", "bytes in the spool"),
        Metric("spool_files", "gauge", "files in the spool"),
        Metric("last_segment_timestamp_seconds", "gauge", "end of the last delivered segment, UTC"),
        Metric("resident_bytes", "gauge", "memory of agent and recorder", "part"),
    )
}


class Metrics:
    """Holds the values of all metrics; thread-safe."""

    def __init__(self, counters: Mapping[str, float] | None = None) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = {}
        self._shown: dict[str, float] = {}  # cause → largest seconds of gaps in `text`
        for key, value in (counters or {}).items():
            name, _, label = key.partition("|")
            if name in METRICS and METRICS[name].kind == "counter":
                self._values[name, label] = value

    def add(self, name: str, value: float = 1, label: str = "") -> None:
        """Add to a counter."""
        assert name in METRICS
        with self._lock:
            self._values[name, label] = self._values.get((name, label), 0) + value

    def set(self, name: str, value: float, label: str = "") -> None:
        """Set a gauge."""
        assert name in METRICS
        with self._lock:
            self._values[name, label] = value

    def value(self, name: str, label: str | None = None) -> float:
        """Return the value of a metric under `label` (None: the sum over all labels); 0 before it is set."""
        with self._lock:
            values = ((key, value) for (metric, key), value in self._values.items() if metric == name)
            return sum(value for key, value in values if label in (None, key))

    def counters(self) -> dict[str, float]:
        """Return `NAME` or `NAME|LABEL` → value of all counters: the argument of `Metrics` in the next run."""
        with self._lock:
            counts = {key: value for key, value in self._values.items() if METRICS[key[0]].kind == "counter"}
        return {f"{name}|{label}" if label else name: value for (name, label), value in counts.items()}

    def text(self, gaps: Mapping[str, float] | None = None) -> str:
        """Return all metrics in the text format of Prometheus. `gaps`: cause → seconds of gaps that are not counted
        yet; a sum never falls when they are counted, and a little shorter."""
        with self._lock:
            sums = dict(self._values)
            for cause in {*self._shown, *(gaps or {})}:
                seconds = sums.get(("gap_seconds_total", cause), 0.0) + (gaps or {}).get(cause, 0.0)
                self._shown[cause] = max(self._shown.get(cause, 0.0), seconds)
                sums["gap_seconds_total", cause] = self._shown[cause]
            values = sorted(sums.items())
        return "".join(
            _lines(metric, [(label, value) for (name, label), value in values if name == metric.name])
            for metric in METRICS.values()
        )


def _lines(metric: Metric, values: Iterable[tuple[str, float]]) -> str:
    name = PREFIX + metric.name
    rows = [f"{name}{_label(metric, label)} {value:.17g}" for label, value in values]
    if not rows and not metric.label:
        rows = [f"{name} 0"]
    return "\n".join([f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}", *rows]) + "\n"


def _label(metric: Metric, value: str) -> str:
    if not metric.label:
        return ""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{{metric.label}="{escaped}"}}'
