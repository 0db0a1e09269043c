# SPDX-License-Identifier: Apache-2.0
"""Sources of the man pages, with the options that they include."""

import re
from pathlib import Path


def man_source(path: Path) -> str:
    return re.sub(
        r"^include::(.+)\[\]$", lambda include: path.with_name(include[1]).read_text().rstrip(), path.read_text(),
        flags=re.MULTILINE,
    )  # fmt: skip
