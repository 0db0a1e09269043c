# SPDX-License-Identifier: Apache-2.0
"""Apply rules on programs: the meaning of waits in functions of well-known programs.

The kernel sees a futex or an epoll_wait. Only functions of the program show that a postgres backend sleeps in epoll for
a row lock, or that Java enters monitors through a condition variable. The first rule that fits a wait decides; rules of
the user (`Profile.rules`) come before those of program_rules.toml. Documentation/wait-classes.md has a table made from
that file, and its form."""

import functools
import re
from collections.abc import Sequence

from perf_offcpu.analysis.classes.wait_classes import BY_LABEL, KEPT_NAMES, WaitClass, matches
from perf_offcpu.model.profile import ProgramRule
from perf_offcpu.tables import read_table

DECORATION = re.compile(r"(?:\(.*|@.*|\.(?:abi0|abiinternal|constprop|isra|part|cold|llvm|lto_priv)\b.*)")
"""Suffixes of names of functions: parameters, a symbol version, a compiler's suffix."""
CONDITIONS = UNENDED, BROUGHT, WORKERS = ("unended", "brought", "workers")
"""Values of `idle`: the waits are idle only if no thread ended any wait for the object, or unless it is a pool, or in
all threads but the main one."""
_NEVER = (WaitClass.RUNQUEUE, WaitClass.THROTTLED, WaitClass.STOPPED, WaitClass.FAULT)


class Rules:
    """Rules on programs, the user's before the built-in ones, to be matched with functions and waits. `rules`: both
    kinds, in order of precedence. A set of rules is an integer whose bit i stands for `rules[i]`. `by_caller`: the set
    of the rules with a condition on callers."""

    def __init__(self, rules: Sequence[ProgramRule] = ()) -> None:
        self.rules = (*rules, *built_in_rules())
        self._with_comm = sum(1 << bit for bit, rule in enumerate(self.rules) if rule.comm)
        self.by_caller = sum(1 << bit for bit, rule in enumerate(self.rules) if rule.callers)
        self._any_frame = " ".join(rule.frames for rule in self.rules if rule.frames)
        self._without_frames = sum(1 << bit for bit, rule in enumerate(self.rules) if not rule.frames)

    def of_function(self, function: str) -> int:
        """Return the set (bit i: `rules[i]`) of the rules whose condition on frames the name of a function meets."""
        if not fits(self._any_frame, function):
            return 0
        ruled = ((bit, rule.frames) for bit, rule in enumerate(self.rules) if rule.frames)
        return sum(1 << bit for bit, frames in ruled if fits(frames, function))

    def of_caller(self, function: str) -> int:
        """Return the set (bit i: `rules[i]`) of the rules whose condition on callers the name of a function meets."""
        ruled = ((bit, rule.callers) for bit, rule in enumerate(self.rules) if rule.callers)
        return sum(1 << bit for bit, callers in ruled if fits(callers, function))

    def by_comm(self, met: int) -> bool:
        """Return True if a rule in the set `met`, or one without a condition on frames, has a condition on the comm."""
        return bool((met | self._without_frames) & self._with_comm)

    def find(self, met: int, wait_class: WaitClass, syscall: str, comm: str) -> ProgramRule | None:
        """Return the first rule that fits a wait; None without one. `met`: set of the rules whose conditions on frames
        and callers the stack meets. `wait_class`: by general rules. `comm`: may be "" unless `by_comm(met)`."""
        met |= self._without_frames
        while met:
            bit = (met & -met).bit_length() - 1
            if _fits(self.rules[bit], wait_class, syscall, comm):
                return self.rules[bit]
            met &= met - 1
        return None


@functools.cache
def built_in_rules() -> tuple[ProgramRule, ...]:
    """Return the rules of program_rules.toml."""
    return tuple(_built_in(**fields) for _, fields in read_table(__file__))


def _built_in(idle: str = "", **fields: str) -> ProgramRule:
    wait_class = fields.pop("class", "")
    for_work = {"true": True, "false": False, UNENDED: False, BROUGHT: True, WORKERS: True}.get(idle)
    condition = idle if idle in CONDITIONS else ""
    return ProgramRule(**fields, wait_class=wait_class, for_work=for_work, condition=condition)


def _fits(rule: ProgramRule, wait_class: WaitClass, syscall: str, comm: str) -> bool:
    if rule.waits:
        if wait_class not in (BY_LABEL[label] for label in rule.waits.split()):
            return False
    elif wait_class in _NEVER:
        return False
    if rule.syscall and not matches(rule.syscall, syscall):
        return False
    return not rule.comm or matches(rule.comm, comm)


@functools.lru_cache(KEPT_NAMES)
def fits(rules: str, function: str) -> bool:
    """Return True if a regular expression in `rules` matches a function, with or without its suffixes (DECORATION)."""
    return matches(rules, DECORATION.sub("", function)) or matches(rules, function)
