# SPDX-License-Identifier: Apache-2.0
"""The unit file, the DaemonSet and the example of a configuration: systemd takes them, and they agree."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from perf_offcpu.agent.config import AgentConfig, default_spool, load_config

ROOT = Path(__file__).resolve().parents[3]
UNIT, DAEMONSET, EXAMPLE = (
    ROOT / "service" / name for name in ("perf-offcpu-agent.service", "daemonset.yaml", "agent.toml")
)


def test_systemd_takes_the_unit() -> None:
    assert shutil.which("systemd-analyze"), "apt install systemd"
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", UNIT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_capabilities_are_the_same_everywhere() -> None:
    unit = re.findall(r"CAP_(\w+)", re.search(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.M)[1])  # type: ignore[index]
    added = DAEMONSET.read_text().partition("add:\n")[2].partition("resources:")[0]
    assert unit == re.findall(r"- (\w+)", added)


def test_example_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERF_OFFCPU_LABELS", raising=False)
    config = load_config(str(EXAMPLE), {})
    usual = AgentConfig(dataset="/var/lib/perf-offcpu/dataset", spool=default_spool())
    assert config == usual


def test_configuration_of_the_daemonset(tmp_path: Path) -> None:
    text = DAEMONSET.read_text().partition("agent.toml: |\n")[2].partition("---")[0]
    file = tmp_path / "agent.toml"
    file.write_text("\n".join(line.strip() for line in text.splitlines()))
    config = load_config(str(file), {})
    assert config.spool == "/var/lib/perf-offcpu/spool"
    assert f"127.0.0.1:{config.port}/health" in DAEMONSET.read_text()


def test_state_directory_of_systemd_has_the_spool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/one:/var/lib/two")
    assert default_spool() == "/var/lib/one/spool"
