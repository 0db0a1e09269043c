# SPDX-License-Identifier: Apache-2.0
"""The field `data_src` of samples (union perf_mem_data_src of linux/perf_event.h), as perf names it.

The texts are those of tools/perf/util/mem-events.c up to perf 6.13.
"""

from __future__ import annotations

_LAYOUT = (
    ("op", 5), ("lvl", 14), ("snoop", 5), ("lock", 2), ("dtlb", 7), ("lvl_num", 4), ("remote", 1),
    ("snoopx", 2), ("blk", 3), ("hops", 3),
)  # fmt: skip
"""(name, bits), the lowest first."""

UNNAMED = "(null)"
"""What perf shows for numbers that it has no name for."""
_OPS = ("N/A", "LOAD", "STORE", "PFETCH", "EXEC")
_LEVELS = (
    "N/A", "HIT", "MISS", "L1", "LFB/MAB", "L2", "L3", "Local RAM", "Remote RAM (1 hop)",
    "Remote RAM (2 hops)",    "Remote Cache (1 hop)", "Remote Cache (2 hops)", "I/O", "Uncached",
)  # fmt: skip
_LEVEL_NUMBERS = {9: "CXL", 10: "I/O", 11: "Any cache", 12: "LFB/MAB", 13: "RAM", 14: "PMEM", 15: "N/A"}
_HOPS = ("N/A", "core, same node", "node, same socket", "socket, same board", "board")
_SNOOPS = ("N/A", "None", "Hit", "Miss", "HitM")
_TLBS = ("N/A", "HIT", "MISS", "L1", "L2", "Walker", "Fault")
_HIT, _MISS = 1 << 1, 1 << 2


def data_source_text(value: int) -> str:
    """`|OP LOAD|LVL L1 hit|SNP None|TLB L1 hit|LCK No|BLK  N/A`."""
    parts = {}
    for name, bits in _LAYOUT:
        parts[name] = value & ((1 << bits) - 1)
        value >>= bits
    lock = "N/A" if parts["lock"] & 1 else "Yes" if parts["lock"] & 2 else "No"
    texts = {
        "OP": _names(parts["op"], _OPS) if parts["op"] else "No",
        "LVL": _level(parts),
        "SNP": _snoop(parts),
        "TLB": _names(parts["dtlb"] & ~(_HIT | _MISS), _TLBS) + _hit_or_miss(parts["dtlb"]),
        "LCK": lock,
        "BLK": _block(parts["blk"]),
    }
    return "".join(f"|{name} {text}" for name, text in texts.items())


def _names(bits: int, names: tuple[str, ...]) -> str:
    return " or ".join(name for place, name in enumerate(names) if bits >> place & 1) or "N/A"


def _hit_or_miss(bits: int) -> str:
    return (" hit" if bits & _HIT else "") + (" miss" if bits & _MISS else "")


def _level(parts: dict[str, int]) -> str:
    """Two ways to say it; the distance and the number are the newer one."""
    text, hops, number = "Remote " if parts["remote"] else "", parts["hops"], parts["lvl_num"]
    names = []
    if hops:
        text += f"{_HOPS[hops] if hops < len(_HOPS) else UNNAMED} "
    else:
        names = [name for place, name in enumerate(_LEVELS) if parts["lvl"] & ~(_HIT | _MISS) & 1 << place]
    if number:
        names.append(_LEVEL_NUMBERS.get(number, f"L{number}"))
    return (text + " or ".join(names) or "N/A") + _hit_or_miss(parts["lvl"])


def _snoop(parts: dict[str, int]) -> str:
    names = [name for place, name in enumerate(_SNOOPS) if parts["snoop"] >> place & 1]
    names += [name for place, name in enumerate(("Fwd", "Peer")) if parts["snoopx"] >> place & 1]
    return " or ".join(names) or "N/A"


def _block(bits: int) -> str:
    if not bits or bits & 1:
        return " N/A"
    return (" Data" if bits & 2 else "") + (" Addr" if bits & 4 else "")
