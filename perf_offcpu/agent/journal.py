# SPDX-License-Identifier: Apache-2.0
"""Write the agent's sentences to its journal, with a severity where systemd reads them (sd-daemon(3))."""

import os
import sys
from collections.abc import Callable
from typing import Final

from perf_offcpu.text import printable

Say = Callable[[str], None]
"""Called with a sentence: a `Problem`, or any other text, for information."""
_WARNING: Final = "<4>"


class Problem(str):
    """Sentence about something that does not work: a warning."""


def write_line(text: str) -> None:
    """Write a sentence to stderr; to the journal a Problem goes with its severity. OSError if it cannot be written."""
    output = os.fstat(sys.stderr.fileno())
    is_journal = os.environ.get("JOURNAL_STREAM") == f"{output.st_dev}:{output.st_ino}"
    severity = _WARNING if is_journal and isinstance(text, Problem) else ""
    print(f"{severity}perf-offcpu agent: {printable(text)}", file=sys.stderr, flush=True)
