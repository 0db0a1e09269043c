# SPDX-License-Identifier: Apache-2.0
"""The manifest of the DaemonSet, judged by the schema of Kubernetes."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = ROOT / "tests" / "data" / "kubernetes.schema.json"
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all((ROOT / "service" / "daemonset.yaml").read_text()))
DAEMONSET = DOCUMENTS[-1]
GROUPS = {"v1": "core.v1", "apps/v1": "apps.v1"}  # apiVersion → group in names of definitions


def definition_of(document: dict[str, Any]) -> str:
    return f"io.k8s.api.{GROUPS[document['apiVersion']]}.{document['kind']}"


def faults(document: dict[str, Any]) -> list[str]:
    schema = json.loads(SCHEMA.read_text()) | {"$ref": f"#/$defs/{definition_of(document)}"}
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(document)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document["kind"])
def test_fits_the_schema_of_kubernetes(document: dict[str, Any]) -> None:
    assert faults(document) == []


@pytest.mark.parametrize(("place", "name", "value", "fault"), [
    ("spec.template.spec", "hostPid", True, "hostPid"),
    ("spec.template.spec", "hostPID", "true", "not of type 'boolean'"),
    ("spec.template.spec.containers.0.securityContext", "capability", {}, "capability"),
    ("spec.template.spec.containers.0.securityContext.capabilities", "add", "BPF", "not of type 'array'"),
    ("spec.template.spec.containers.0.volumeMounts.0", "readonly", True, "readonly"),
    ("spec.template.spec.volumes.0.hostPath", "path", None, "None is not of type 'string'"),
    ("spec.template.spec", "containers", {}, "not of type 'array'"),
])  # fmt: skip
def test_mistakes_are_found(place: str, name: str, value: object, fault: str) -> None:
    document: Any = copy.deepcopy(DAEMONSET)
    part = document
    for step in place.split("."):
        part = part[int(step) if step.isdigit() else step]
    part[name] = value
    assert len(faults(document)) == 1 and fault in faults(document)[0]
