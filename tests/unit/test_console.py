# SPDX-License-Identifier: Apache-2.0
"""The checker of documentation pages (builders.console) finds deviations."""

import os
from pathlib import Path

import pytest
from builders.console import Step, difference, run, steps


def test_a_page_is_cut_into_commands(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text\n\n```console\n$ echo 1 \\\n> 2\n1 2\n$ true\n```\n\n```sh\nignored\n```\n")
    assert list(steps(page)) == [Step(4, "echo 1 2", ("1 2",)), Step(7, "true", ())]


@pytest.mark.parametrize(("shown", "printed", "same"), [
    (["12.5%  worker-1"], ["  3.25%   worker-0  "], True), (["worker"], ["waiter"], False),
    (["a", "…", "c"], ["a", "b", "b", "c"], True), (["a", "c"], ["a", "b", "c"], False),
    (["a", "…"], ["a", "b"], True), (["a"], ["a", "b"], False), (["a …"], ["a b c"], True),
    (["…", "c", "d"], ["b", "c", "x"], False), ([], ["x"], False),
])  # fmt: skip
def test_only_figures_and_blanks_may_differ(shown: list[str], printed: list[str], same: bool) -> None:
    assert (difference(tuple(shown), printed) == "") == same


def test_a_command_that_fails_is_no_documentation(tmp_path: Path) -> None:
    assert "exit status 3" in run(Step(1, "exit 3", ()), tmp_path, os.environ)
    assert not run(Step(1, "echo hello", ("hello",)), tmp_path, os.environ)


def test_a_column_that_is_printed_only_sometimes_is_passed_over() -> None:
    shown = ("#  Wall ms  Unknown  Command", "  2000.1    0.0    sleeper", "…")
    printed = ["#  Wall ms  Blocked D  Unknown  Command", "  2007.3      0.200    6.1    sleeper", "#"]
    assert not difference(shown, printed)
    below = "# running + blocked + unknown = wall"
    assert not difference((*shown[:2], below), [*printed[:2], below])
    assert difference((shown[0].replace("Wall", "CPU"), "…"), printed)
