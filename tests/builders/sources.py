# SPDX-License-Identifier: Apache-2.0
"""Read the sources of the package as syntax trees."""

import ast


def dotted(node: ast.expr) -> str:
    """Return `os.path.exists` of such a node; "" of other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""
