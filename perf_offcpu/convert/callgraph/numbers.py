# SPDX-License-Identifier: Apache-2.0
"""Format the weights of nodes and edges."""

from __future__ import annotations

_NS = ((10**9, "s"), (10**6, "ms"), (10**3, "us"))


def amount(value: int, unit: str) -> str:
    """Format a weight for people: three decimals of a fitting unit of time."""
    if unit == "ns":
        for size, name in _NS:
            if abs(value) >= size:
                return f"{value / size:.3f} {name}"
    return f"{value} {unit}"


def share(weight: int, total: int) -> float:
    """Return a weight in percent of the total, with three decimals."""
    return round(100 * weight / max(total, 1), 3)
