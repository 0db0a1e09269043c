# SPDX-License-Identifier: Apache-2.0
"""Dashboard and alert rules: they parse, and name metrics and labels that the agent has."""

import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from perf_offcpu.agent.metrics import METRICS, PREFIX

SERVICE = Path(__file__).resolve().parents[3] / "service"
ALERTS, DASHBOARD = SERVICE / "alerts.yaml", SERVICE / "grafana.json"
_TOP = re.compile(r"groups:|  - name: [a-z-]+|    rules:")
_RULE = re.compile(
    r"      - alert: (?P<alert>PerfOffcpuAgent\w+)\n        expr: (?P<expr>.*)\n(        for: \d+[mh]\n)?"
    r"        labels: \{severity: (info|warning)\}\n        annotations:\n"
    r'          summary: "\{\{ \$labels\.instance \}\}: (?P<summary>[^"\\]*)"\n'
)


def rules() -> list[dict[str, str]]:
    """Return the rules, of a file in the part of YAML that they need: nothing else is in it."""
    lines = [line for line in ALERTS.read_text().splitlines(keepends=True) if not line.startswith("#")]
    assert all(_TOP.fullmatch(line.rstrip("\n")) for line in lines[:3])
    text = "".join(lines[3:])
    matches = list(_RULE.finditer(text))
    assert "".join(match[0] for match in matches) == text
    return [match.groupdict() for match in matches]


def panels() -> list[dict[str, Any]]:
    return list(json.loads(DASHBOARD.read_text())["panels"])


def expressions() -> list[str]:
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [*queries, *(rule["expr"] for rule in rules())]


@pytest.mark.parametrize("expression", expressions())
def test_metrics_and_labels_are_the_agents(expression: str) -> None:
    names = re.findall(rf"{PREFIX}(\w+)", expression)
    assert names or expression == 'up{job="perf-offcpu-agent"} == 0'
    assert [name for name in names if name not in METRICS] == []
    used = {label for words in re.findall(r"by \(([^)]*)\)", expression) for label in words.split(", ")}
    used |= set(re.findall(r'(\w+)(?:=~|!=|=)"', expression)) - {"job" if not names else ""}
    assert used <= {"instance", *(METRICS[name].label for name in names)}
    for function, metric in re.findall(rf"(\w+)\({PREFIX}(\w+)", expression):
        if function in ("rate", "increase"):
            assert METRICS[metric].kind == "counter"
    assert all(f"({PREFIX}{name}" in expression for name in names if METRICS[name].kind == "counter"), "as a rate"


def test_alerts_name_the_labels_that_their_expressions_keep() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules()) > 5
    for rule in rules():
        labels = set(re.findall(r"\$labels\.(\w+)", rule["summary"]))
        assert labels <= set(re.findall(r"by \(instance, (\w+)\)", rule["expr"]))


def test_panels_are_placed_apart() -> None:
    places = [panel["gridPos"] for panel in panels()]
    cells = [
        (place["x"] + x, place["y"] + y)
        for place in places
        for x, y in itertools.product(range(place["w"]), range(place["h"]))
    ]
    assert len(set(cells)) == len(cells) and max(cells)[0] < 24
    assert len({panel["id"] for panel in panels()}) == len(panels())
    variables = {one["name"] for one in json.loads(DASHBOARD.read_text())["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(panels())))
    assert used - variables == {"__rate_interval"}


def test_promtool_takes_the_rules() -> None:
    """Where it is installed (Debian: prometheus); what it checks of the form, `rules` checks, too."""
    if promtool := shutil.which("promtool"):
        done = subprocess.run([promtool, "check", "rules", ALERTS], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and f"{len(rules())} rules found" in done.stdout, done.stderr
