# SPDX-License-Identifier: Apache-2.0
"""Tables of the names of events and modifiers that perf knows on all machines.

Source: tools/perf/util/parse-events.c and evsel.c (names), include/uapi/linux/perf_event.h (numbers).
"""

from __future__ import annotations

import re
from itertools import product

from perf_offcpu.abi.attr import AttrFlag, SoftwareConfig

SOFTWARE = {
    "cpu-clock": SoftwareConfig.CPU_CLOCK,
    "task-clock": SoftwareConfig.TASK_CLOCK,
    "page-faults": SoftwareConfig.PAGE_FAULTS,
    "faults": SoftwareConfig.PAGE_FAULTS,
    "minor-faults": SoftwareConfig.PAGE_FAULTS_MIN,
    "major-faults": SoftwareConfig.PAGE_FAULTS_MAJ,
    "context-switches": SoftwareConfig.CONTEXT_SWITCHES,
    "cs": SoftwareConfig.CONTEXT_SWITCHES,
    "cpu-migrations": SoftwareConfig.CPU_MIGRATIONS,
    "migrations": SoftwareConfig.CPU_MIGRATIONS,
    "alignment-faults": SoftwareConfig.ALIGNMENT_FAULTS,
    "emulation-faults": SoftwareConfig.EMULATION_FAULTS,
    "cgroup-switches": SoftwareConfig.CGROUP_SWITCHES,
}

# enum perf_hw_id
CYCLES = 0
HARDWARE = {
    "cycles": CYCLES,
    "cpu-cycles": CYCLES,
    "instructions": 1,
    "cache-references": 2,
    "cache-misses": 3,
    "branches": 4,
    "branch-instructions": 4,
    "branch-misses": 5,
    "bus-cycles": 6,
    "stalled-cycles-frontend": 7,
    "idle-cycles-frontend": 7,
    "stalled-cycles-backend": 8,
    "idle-cycles-backend": 8,
    "ref-cycles": 9,
}

# enum perf_hw_cache_id, perf_hw_cache_op_id, perf_hw_cache_op_result_id; the first name of each is perf's own
_CACHES = (
    ("L1-dcache", "l1-d", "l1d", "L1-data"),
    ("L1-icache", "l1-i", "l1i", "L1-instruction"),
    ("LLC", "L2"),
    ("dTLB", "d-tlb", "Data-TLB"),
    ("iTLB", "i-tlb", "Instruction-TLB"),
    ("branch", "bpu", "btb", "bpc"),
    ("node",),
)
_OPERATIONS = (
    ("load", "loads", "read"),
    ("store", "stores", "write"),
    ("prefetch", "prefetches", "speculative-read", "speculative-load"),
)
_RESULTS = (("refs", "Reference", "ops", "access"), ("misses", "miss"))


def _cache_configs() -> dict[str, int]:
    """Return all spellings: cache, cache-operation, cache-result, cache-operation-result; default is load."""
    found = {}
    for (cache, names), (operation, operations), (result, results) in product(
        enumerate(_CACHES), enumerate(_OPERATIONS), enumerate(_RESULTS)
    ):
        config = cache | operation << 8 | result << 16
        middles = [f"-{one}" for one in operations] + ([""] if not operation else [])
        ends = [f"-{one}" for one in results] + ([""] if not result else [])
        for name, middle, end in product(names, middles, ends):
            found[f"{name}{middle}{end}".lower()] = config
    return found


CACHE_CONFIGS = _cache_configs()
"""Name in lower case, such as `l1-dcache-load-misses` or `dtlb-loads` → attr.config."""

_MODES = {"u": AttrFlag.EXCLUDE_USER, "k": AttrFlag.EXCLUDE_KERNEL, "h": AttrFlag.EXCLUDE_HV}
_SIDES = {"G": AttrFlag.EXCLUDE_GUEST, "H": AttrFlag.EXCLUDE_HOST}
_OTHERS = {"I": AttrFlag.EXCLUDE_IDLE, "D": AttrFlag.PINNED, "e": AttrFlag.EXCLUSIVE}
MODIFIERS = "u, k, h, G, H, I, D, e, p, pp, ppp and P"


def modifier_flags(text: str) -> tuple[AttrFlag, bool] | None:
    """Return the flags for the letters after an event's colon, and whether `P` (most precise) is among them.

    As in perf, naming some modes (u, k, h) or sides (G, H) excludes the others. None if a letter is unknown.
    """
    plain = text.replace("p", "")
    precise = text.count("p")
    if not re.fullmatch(r"[ukhGHIDePp]*", text) or precise > 3 or len(set(plain)) < len(plain):
        return None
    flags = AttrFlag(precise * AttrFlag.PRECISE_IP_1)
    for kinds in (_MODES, _SIDES):
        if any(letter in text for letter in kinds):
            for letter, flag in kinds.items():
                flags |= AttrFlag(0) if letter in text else flag
    for letter, flag in _OTHERS.items():
        flags |= flag if letter in text else AttrFlag(0)
    return flags, "P" in text
