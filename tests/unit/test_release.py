# SPDX-License-Identifier: Apache-2.0
"""What is released has notes, and the same judges look at each commit as in CI."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_version_has_its_part_of_the_changelog_and_its_wheel_in_the_readme() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\n## [{version}] - 20" in (ROOT / "CHANGELOG.md").read_text()
    assert f"perf_offcpu-{version}-py3" in (ROOT / "README.md").read_text()


def test_hooks_of_commits_are_the_judges_of_ci() -> None:
    judges = re.findall(r'"\$VENV/bin/(\w+)"(.*)', (ROOT / ".ci/run").read_text())
    hooks = re.findall(r"entry: \.venv/bin/(\w+)(.*)", (ROOT / ".pre-commit-config.yaml").read_text())
    assert len(judges) == 4 and sorted(hooks) == sorted(judges)


def test_actions_are_pinned_and_may_write_in_one_job_only() -> None:
    texts = [path.read_text() for path in (ROOT / ".github/workflows").iterdir()]
    actions = re.findall(r"uses: (\S+)", "".join(texts))
    assert actions and all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action) for action in actions)
    assert all("\npermissions:\n  contents: read\n" in text for text in texts)
    assert "".join(texts).count(": write") == 1
