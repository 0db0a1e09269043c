# SPDX-License-Identifier: Apache-2.0
"""Write the agent's sentences to its journal, with a severity where systemd reads them (sd-daemon(3))."""

import os
import sys
from collections.abc import Callable
from typing import Final

from perf_offcpu.text import printable

Say = Callable[[str], None]
"""Function that writes a sentence to the journal: a `Problem` as a warning, any other text as information."""
_WARNING: Final = "<4>"


class Problem(str):
    """Sentence about something that does not work; it is a warning in the journal."""


def write_line(text: str) -> None:
    """Write a sentence to stderr; to systemd's journal a Problem with its severity. Raise OSError on failure."""
    output = os.fstat(sys.stderr.fileno())
    is_journal = os.environ.get("JOURNAL_STREAM") == f"{output.st_dev}:{output.st_ino}"
    severity = _WARNING if is_journal and isinstance(text, Problem) else ""
    print(f"{severity}perf-offcpu agent: {printable(text)}", file=sys.stderr, flush=True)
