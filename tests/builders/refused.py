# SPDX-License-Identifier: Apache-2.0
"""Command lines in this process: one that is refused has no output, and one line that says why."""

import pytest

from perf_offcpu.cli import main


def refused(capsys: pytest.CaptureFixture[str], *words: str, status: int | None = 129) -> str:
    """Run the program, which must fail, and return the line; `status` None: with any status but 0."""
    capsys.readouterr()
    found = main(list(words))
    out, err = capsys.readouterr()
    assert found == status if status is not None else found != 0
    assert out == "" and err.count("\n") == 1, (out, err)
    return err


def output(capsys: pytest.CaptureFixture[str], *words: str, silent: bool = False) -> str:
    """Run the program, which must succeed, and return its output; `silent`: nothing came on standard error."""
    capsys.readouterr()
    assert main(list(words)) == 0
    out, err = capsys.readouterr()
    assert not (silent and err), err
    return out
