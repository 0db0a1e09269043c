# SPDX-License-Identifier: Apache-2.0
"""Reading the text that `perf script`, and ours, print: one object a sample."""

import re
from dataclasses import dataclass, field

_HEAD = re.compile(
    r"^\s*(?P<comm>.*?)\s+(?:(?P<pid>-?\d+)/)?(?P<tid>-?\d+)\s+(?:\[(?P<cpu>-?\d+)\]\s+)?"
    r"(?P<time>\d+\.\d+|-): +(?:(?P<period>\d+) +)?(?:(?P<event>\S+):|DEFERRED CALLCHAIN) ?(?P<rest>.*)$"
)
_FRAME = re.compile(r"^[\t ] *(?P<ip>[0-9a-f]+) (?P<sym>.*?(?: \(called\))?) \((?P<dso>.*)\)$")
"""A frame on a line of its own, or after the event if there is only one."""

DEFERRED = "DEFERRED CALLCHAIN"


@dataclass(frozen=True)
class Frame:
    """`sym` is symbol+offset, or `[unknown]`."""

    ip: int
    sym: str
    dso: str


@dataclass
class Printed:
    """A sample as printed; missing fields are None. `rest` is the text after the event's name."""

    comm: str
    pid: int | None
    tid: int
    cpu: int | None
    time: str
    period: int | None
    event: str
    rest: str
    frames: list[Frame] = field(default_factory=list)


def parse(text: str) -> list[Printed]:
    """The samples of a text with the default fields, perhaps with pid; every line must be understood."""
    samples: list[Printed] = []
    for line in filter(None, text.split("\n")):
        if line.startswith("\t"):
            samples[-1].frames += _frames(line)
            continue
        head = _HEAD.match(line)
        assert head, f"not a line of perf script: {line!r}"
        numbers = {name: None if head[name] is None else int(head[name]) for name in ("pid", "cpu", "period")}
        event, leaf = head["event"] or DEFERRED, _frames(head["rest"])
        samples.append(
            Printed(
                comm=head["comm"], tid=int(head["tid"]), time=head["time"], event=event,
                rest="" if leaf else head["rest"], frames=leaf, **numbers,
            )
        )  # fmt: skip
    return samples


def _frames(text: str) -> list[Frame]:
    frame = _FRAME.match(text)
    return [Frame(int(frame["ip"], 16), frame["sym"], frame["dso"])] if frame else []
