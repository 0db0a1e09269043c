# SPDX-License-Identifier: Apache-2.0
"""What the rules of wait classes fit among the functions of a kernel and of glibc, and nothing else.

tests/data/functions.txt.xz has those functions whose names begin as one does that a rule fits, each with what
it means. After a change of the rules, or for functions of other versions (those of the file stay in it):

.venv/bin/python tests/unit/analysis/test_rule_matches.py [FILE]   # names as nm or kallsyms has them
"""

import lzma
import re
import sys
from pathlib import Path

from perf_offcpu.analysis.classes import wait_classes as rules
from perf_offcpu.analysis.classes.wait_classes import CLASSES, matches
from perf_offcpu.text import SYMBOL_SUFFIX

KEPT = Path(__file__).parents[2] / "data" / "functions.txt.xz"
WHOLE = re.compile(r"(_\*|__)?[^_]+_\\w\+")
"""A rule for all functions of a part of the kernel, by one word: what else begins so is of that part, too."""
BEGIN = 7
"""Letters in which kept names agree with one that a rule fits."""


def meaning(name: str) -> str:
    """Return what the rules say: class in the kernel, class of a wrapper, its meaning for a futex."""
    kernel, user, means = (
        rules.class_of_function(name), rules.class_of_wrapper(name), rules.meaning_of_wrapper(name),
    )  # fmt: skip
    return " ".join("-" if one is None else one.name.lower() for one in (kernel, user, means))


def kept() -> dict[str, str]:
    return dict(line.split(" ", 1) for line in lzma.decompress(KEPT.read_bytes()).decode().splitlines())


def test_each_rule_fits_what_it_means() -> None:
    wrong = {name: (meaning(name), means) for name, means in kept().items() if meaning(name) != means}
    assert not wrong, "(now, before): if this is meant, run this file as a program"


def is_of_whole_part(name: str) -> bool:
    """Return True for names that only prefixes fit."""
    fitting = [rule for one in CLASSES for rule in one.row.functions.split() if matches(rule, name)]
    return bool(fitting) and all(WHOLE.fullmatch(rule) for rule in fitting)


def write(names: set[str]) -> None:
    fitting = {name for name in names if meaning(name) != "- - -" and not is_of_whole_part(name)}
    begins = {name.lstrip("_")[:BEGIN] for name in fitting}
    near = (name for name in names if name.lstrip("_")[:BEGIN] in begins and not is_of_whole_part(name))
    text = "".join(f"{name} {meaning(name)}\n" for name in sorted(near))
    KEPT.write_bytes(lzma.compress(text.encode(), preset=9))
    print(len(text.splitlines()), KEPT.stat().st_size)
    print("\n".join(f"{name} {meaning(name)}" for name in sorted(fitting)))


if __name__ == "__main__":
    found = set(kept()) if KEPT.exists() else set()
    for path in sys.argv[1:]:
        words = (line.split() for line in Path(path).read_text().splitlines())
        found |= {SYMBOL_SUFFIX.sub("", word[2]) for word in words if len(word) > 2 and word[1] in "tTwWiI"}
    write({name for name in found if re.fullmatch(r"\w+", name)})
