# SPDX-License-Identifier: Apache-2.0
"""Read the sources: of the package as syntax trees, of the man pages with the options that they include."""

import ast
import re
from pathlib import Path


def dotted(node: ast.expr) -> str:
    """Return `os.path.exists` of such a node; "" of other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def man_source(path: Path) -> str:
    return re.sub(
        r"^include::(.+)\[\]$", lambda include: path.with_name(include[1]).read_text().rstrip(), path.read_text(),
        flags=re.MULTILINE,
    )  # fmt: skip
