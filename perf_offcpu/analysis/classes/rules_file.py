# SPDX-License-Identifier: Apache-2.0
"""Read rules on programs from a user's file in TOML, one table `[[rule]]` per rule. The keys are the fields of
`ProgramRule`, with `class` for `wait_class` and `idle` for `for_work`; a list is a list of strings, or one string with
blanks. Documentation/wait-classes.md has an example."""

import os
import re
from typing import Any

from perf_offcpu.analysis.classes.program_rules import CONDITIONS, UNENDED
from perf_offcpu.analysis.classes.wait_classes import BY_LABEL
from perf_offcpu.errors import UsageError
from perf_offcpu.files import read_regular
from perf_offcpu.model.profile import ProgramRule

MAX_BYTES = 1 << 16  # size of a file; tomllib's time grows with the square of the length of a dotted key
_TEXTS = ("program", "meaning")
_EXPRESSIONS = ("frames", "callers", "comm", "syscall")
_KEYS = (*_TEXTS, *_EXPRESSIONS, "waits", "class", "idle")


def read_rules(path: str) -> tuple[ProgramRule, ...]:
    """Return the rules of a file in order; raise UsageError if it is unreadable, not TOML, or has an invalid rule."""
    try:
        return parse_rules(read_regular(path, MAX_BYTES), path)
    except OSError as problem:
        raise UsageError(f"{path}: {problem.strerror or problem}") from None


def parse_rules(text: bytes, path: str) -> tuple[ProgramRule, ...]:
    """Return the rules in the `text` of a file `path`; raise UsageError if it is not TOML or has an invalid rule."""
    import tomllib  # most users have no file, and its import compiles expressions

    try:
        tables = tomllib.loads(text.decode())
    except (ValueError, RecursionError) as problem:  # ValueError: of TOML, UTF-8, and digits of a number
        raise UsageError(f"{path}: not TOML: {problem}") from None
    rules = tables.get("rule", [])
    if unknown := sorted(tables.keys() - {"rule"}):
        raise UsageError(f"{path}: {unknown[0]} is not a [[rule]]")
    if not isinstance(rules, list):
        raise UsageError(f"{path}: rule is not a list of tables, [[rule]]")
    return tuple(_rule(row, f"{path}: rule {number}") for number, row in enumerate(rules, 1))


def _rule(row: Any, where: str) -> ProgramRule:
    if not isinstance(row, dict):
        raise UsageError(f"{where} is not a table, [[rule]]")
    if unknown := sorted(row.keys() - set(_KEYS)):
        raise UsageError(f"{where}: unknown key {unknown[0]} (known: {' '.join(_KEYS)})")
    words = (*_EXPRESSIONS, "waits", "class")
    values = {key: _words(row.get(key, ""), f"{where}: {key}") for key in (*words, *_TEXTS)}
    for key in _EXPRESSIONS:
        for word in values[key].split():
            try:
                re.compile(word)
            except (re.error, OverflowError, RecursionError) as problem:
                raise UsageError(f"{where}: {key}: {word} is not a regular expression: {problem}") from None
    for label in (*values["waits"].split(), *values["class"].split()):
        if label not in BY_LABEL:
            raise UsageError(f"{where}: {label} is not a class (classes: {' '.join(BY_LABEL)})")
    if len(values["class"].split()) > 1:
        raise UsageError(f"{where}: class: more than one")
    idle = row.get("idle")
    if idle is not None and idle not in CONDITIONS and not isinstance(idle, bool):
        raise UsageError(f"{where}: idle must be true, false or one of: {' '.join(CONDITIONS)}")
    if not values["class"] and idle is None:
        raise UsageError(f"{where} says neither class nor idle")
    wait_class = values.pop("class").strip()
    for_work, condition = (idle != UNENDED, idle) if isinstance(idle, str) else (idle, "")
    return ProgramRule(**values, wait_class=wait_class, for_work=for_work, condition=condition)


def _words(value: Any, where: str) -> str:
    """Return a list of strings joined with blanks, a string as it is; raise UsageError, about `where`, for others."""
    words = value if isinstance(value, list) else [value]
    if not all(isinstance(word, str) for word in words):
        raise UsageError(f"{where} is neither a string nor a list of strings")
    return " ".join(words)


def usual_rules() -> tuple[ProgramRule, ...]:
    """Return the rules of perf-offcpu/rules.toml in the user's configuration directory; () if it cannot be read, or
    belongs to another user, as under a sudo that keeps HOME. Raise UsageError as `parse_rules`."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    path = os.path.join(base, "perf-offcpu", "rules.toml")
    try:
        return parse_rules(read_regular(path, MAX_BYTES, owners={os.geteuid()}), path)
    except OSError:
        return ()
