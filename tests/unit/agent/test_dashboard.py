# SPDX-License-Identifier: Apache-2.0
"""Dashboard and alert rules parse, and name metrics and labels of the agent; the DaemonSet fits Kubernetes' schema."""

import copy
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.examples import examples
from jsonschema import Draft202012Validator

from perf_offcpu.agent.metrics import METRICS, PREFIX

SERVICE = Path(__file__).resolve().parents[3] / "service"
ALERTS, DASHBOARD = SERVICE / "alerts.yaml", SERVICE / "grafana.json"


def rules() -> list[dict[str, str]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    assert {rule["labels"]["severity"] for rule in group["rules"]} <= {"info", "warning"}
    return [rule | {"summary": rule["annotations"]["summary"]} for rule in group["rules"]]


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
        assert rule["summary"].startswith("{{ $labels.instance }}: ")
        labels = set(re.findall(r"\$labels\.(\w+)", rule["summary"])) - {"instance"}
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


SCHEMA = SERVICE.parent / "tests" / "data" / "kubernetes.schema.json"
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all((SERVICE / "daemonset.yaml").read_text()))
DAEMONSET = DOCUMENTS[-1]
GROUPS = {"v1": "core.v1", "apps/v1": "apps.v1"}  # apiVersion → group in names of definitions


def faults(document: dict[str, Any]) -> list[str]:
    definition = f"io.k8s.api.{GROUPS[document['apiVersion']]}.{document['kind']}"
    schema = json.loads(SCHEMA.read_text()) | {"$ref": f"#/$defs/{definition}"}
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(document)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document["kind"])
def test_fits_the_schema_of_kubernetes(document: dict[str, Any]) -> None:
    assert faults(document) == []


@pytest.mark.parametrize(("place", "name", "value", "fault"), examples("unit/examples.txt", "daemonset"))
def test_mistakes_are_found(place: str, name: str, value: str, fault: str) -> None:
    document: Any = copy.deepcopy(DAEMONSET)
    part = document
    for step in place.split("."):
        part = part[int(step) if step.isdigit() else step]
    part[name] = json.loads(value)
    assert len(faults(document)) == 1 and fault in faults(document)[0]
