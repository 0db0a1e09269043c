# SPDX-License-Identifier: Apache-2.0
"""Reading the text of `perf-offcpu dump`: one object a record, for tests that need an oracle."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_HEAD = re.compile(
    r"^(?:(?P<origin>\S+(?: zstd)?) )?0x(?P<at>[0-9a-f]+) \[0x(?P<size>[0-9a-f]+)\]: "
    r"(?P<name>.*) misc (?P<misc>0x[0-9a-f]+)"
)
_FIELD = re.compile(r"^  (?P<name>\w+)(?:\[\d+\])?: (?P<value>.*)$")


@dataclass
class Dumped:
    """A record: where it lies and what it says; `fields`: texts of each own field's lines, without a raw payload's."""

    origin: str
    offset: int
    size: int
    name: str
    misc: int
    fields: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def number(self, name: str) -> int:
        return int(self.fields[name][0], 0)

    def words(self, name: str) -> list[int]:
        return [int(value.split()[0], 0) for value in self.fields.get(name, [])]


def parse(lines: Iterable[str]) -> list[Dumped]:
    records: list[Dumped] = []
    for line in lines:
        head = _HEAD.match(line)
        if head:
            at, size, misc = int(head["at"], 16), int(head["size"], 16), int(head["misc"], 16)
            records.append(Dumped(head["origin"] or "", at, size, head["name"], misc))
        elif records and line.startswith("  ! "):
            records[-1].problems.append(line[4:])
        elif records and (one := _FIELD.match(line)):
            records[-1].fields.setdefault(one["name"], []).append(one["value"])
    return records
