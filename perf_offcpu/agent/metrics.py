# SPDX-License-Identifier: Apache-2.0
"""Count numbers of the agent, declared in metrics.toml, and write them in the text format that Prometheus reads.
Source: Prometheus, "Exposition formats", text format 0.0.4."""

import threading
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from perf_offcpu.tables import read_table

PREFIX: Final = "perf_offcpu_agent_"


class Metric(NamedTuple):
    """Declaration of a metric."""

    name: str  # without PREFIX
    help: str
    label: str = ""  # name of its label, "" for none

    @property
    def kind(self) -> str:
        """Return the type that the text format states: "counter" or "gauge"."""
        return "counter" if self.name.endswith("_total") else "gauge"


METRICS: Final = {
    name: Metric(name, *text.split(" | ")) for name, text in dict(read_table(__file__))["metrics"].items()
}


class Metrics:
    """Values of all metrics; thread-safe. `counters`: the result of `counters` in the last run."""

    def __init__(self, counters: Mapping[str, float] | None = None) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = {}
        self._shown: dict[str, float] = {}  # cause → largest seconds of gaps in `text`
        for key, value in (counters or {}).items():
            name, _, label = key.partition("|")
            if name in METRICS and METRICS[name].kind == "counter":
                self._values[name, label] = value

    def add(self, name: str, value: float = 1, label: str = "") -> None:
        """Add a value to a counter; `label`: value of its label."""
        assert name in METRICS
        with self._lock:
            self._values[name, label] = self._values.get((name, label), 0) + value

    def set(self, name: str, value: float, label: str = "") -> None:
        """Set a gauge; `label`: value of its label."""
        assert name in METRICS
        with self._lock:
            self._values[name, label] = value

    def value(self, name: str, label: str | None = None) -> float:
        """Return the value of a metric with `label` (None: the sum over all labels); 0 before it is set."""
        with self._lock:
            values = ((key, value) for (metric, key), value in self._values.items() if metric == name)
            return sum(value for key, value in values if label in (None, key))

    def counters(self) -> dict[str, float]:
        """Return the values of all counters by `NAME` or `NAME|LABEL`, to be saved for the next run."""
        with self._lock:
            counts = {key: value for key, value in self._values.items() if METRICS[key[0]].kind == "counter"}
        return {f"{name}|{label}" if label else name: value for (name, label), value in counts.items()}

    def text(self, gaps: Mapping[str, float] | None = None) -> str:
        """Return all metrics in the text format of Prometheus. `gaps`: cause → seconds of gaps that are not counted
        yet, to add to gap_seconds_total, which never falls, even if a gap is a little shorter when it is counted."""
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
    """Return the lines of a metric; `values`: (label, value)."""
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
