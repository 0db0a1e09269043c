# SPDX-License-Identifier: Apache-2.0
"""List the fields of `perf-offcpu script`, and parse `-F`, which chooses them as `perf script -F` does. Fields that
perf has mean what they mean there (tools/perf/Documentation/perf-script.txt). The project's own fields show only on
off-cpu samples, as `key=value`, `-` where unknown. Fields of perf that say nothing of waits are left to perf script."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from perf_offcpu.errors import UsageError
from perf_offcpu.tables import read_table

PERF_FIELDS, OWN_FIELDS = (fields for _, fields in read_table(__file__))
"""Name → meaning of the fields that perf script has, too, and of those that only this project has."""

LEFT_TO_PERF = frozenset(
    """
    addr bpf-output brcntr brstack brstackdisasm brstackinsn brstackinsnlen brstackoff brstacksym callindent
    code_page_size data_page_size data_src disasm dsoff ins_lat insn insnlen ipc iregs machine_pid metric misc
    phys_addr retire_lat srccode synth tod trace uregs vcpu weight
    """.split()
)
"""The other fields of perf script (7.x), but for `flags`, which has a meaning of its own here."""

DEFAULT_FIELDS = ("comm", "tid", "cpu", "time", "period", "event", "ip", "sym", "symoff", "dso")
"""perf's defaults but for `trace`."""

FRAME_FIELDS = ("ip", "sym", "dso")  # frames are printed if any of these is shown
EVENT_TYPES = {0: "hw", 1: "sw", 2: "trace", 4: "raw", 1 << 31: "synth"}  # attr.type → its name in `-F TYPE:LIST`


@dataclass(frozen=True, slots=True)
class FieldChoice:
    """Says which fields are shown: of all events, and of events of certain types."""

    shown: frozenset[str] = frozenset(DEFAULT_FIELDS)  # names of fields
    asked: frozenset[str] = frozenset()  # fields that the user named, shown even where an event lacks them
    of_type: "Mapping[str, FieldChoice]" = field(default_factory=dict)  # type of events → their choice

    def has(self, *names: str) -> bool:
        """Return True if any of these fields is shown."""
        return not self.shown.isdisjoint(names)

    def anywhere(self) -> frozenset[str]:
        """Return the fields that are shown for events of any type."""
        return self.shown.union(*(fields.shown for fields in self.of_type.values()))


def choose_fields(texts: Iterable[str]) -> FieldChoice:
    """Parse the values of `-F`; raise UsageError for an unknown field or type, or a list mixed with changes. A value is
    a list instead of the defaults (`comm,tid,ip,sym`) or changes to them (`+state,-cpu`); after the name of a type of
    events (`trace:comm,event`) it is for these events alone."""
    lists: dict[str, list[str]] = {}
    for text in texts:
        kind, colon, rest = text.rpartition(":")
        if colon and kind.strip() not in EVENT_TYPES.values():
            types = ", ".join(EVENT_TYPES.values())
            raise UsageError(f"--fields: no type of events '{kind}' (known: {types})")
        lists.setdefault(kind.strip(), []).append(rest)
    default = _parse_list(lists.pop("", []), FieldChoice())
    of_type = {kind: _parse_list(values, default, may_be_empty=True) for kind, values in lists.items()}
    return replace(default, of_type=of_type)


def _parse_list(texts: list[str], default: FieldChoice, may_be_empty: bool = False) -> FieldChoice:
    words = [word.strip() for text in texts for word in text.split(",") if word.strip()]
    changes = [word for word in words if word[0] in "+-"]
    if changes and len(changes) < len(words):
        raise UsageError("--fields: a list of fields and changes to the defaults (+x, -x) cannot be mixed")
    if not changes:
        named = frozenset(map(_checked, words))
        return FieldChoice(named, named) if named or may_be_empty else default
    shown, asked = default.shown, default.asked
    for sign, name in ((word[0], word[1:]) for word in changes):
        if sign == "+":
            shown, asked = shown | {_checked(name)}, asked | {name}
        else:
            removed = {name if name in LEFT_TO_PERF else _checked(name)}
            shown, asked = shown - removed, asked - removed
    return FieldChoice(shown, asked)


def _checked(name: str) -> str:
    if name in LEFT_TO_PERF:
        raise UsageError(
            f"--fields: '{name}' is printed by perf script; where perf cannot read the recording, "
            "perf-offcpu inject makes a file for it"
        )
    if name not in PERF_FIELDS and name not in OWN_FIELDS:
        raise UsageError(f"--fields: no field '{name}' (known: {', '.join([*PERF_FIELDS, *OWN_FIELDS])})")
    return name
