# SPDX-License-Identifier: Apache-2.0
"""Features of recording that a kernel may change, and their tests: the selection of `scripts/vmtest`.

Emulation takes some ten times as long as the machine itself, and some hours for all of tests/kernel. The rest there
(`--all`) asks about things that are the same on every kernel: commands of pages, runtimes and their symbol files, files
that are only read, mistakes of users, how the program ends and talks to terminals, many examples where one is enough.
`scripts/suitetest` shows without emulation what another perf, Python or bcc changes about that."""

import re
from pathlib import Path

KERNEL_TESTS = Path(__file__).resolve().parents[1] / "kernel"

_, LIST = Path(__file__).with_suffix(".txt").read_text().split("\n", 1)
FEATURES = {
    feature: tuple(names.split()) for feature, names in re.findall(r"^(\S.*)\n((?: .*\n)+)", LIST, re.MULTILINE)
}
"""Feature → its tests: names of files, or of single tests of a file."""
TESTS = tuple(f"tests/kernel/{name}" for names in FEATURES.values() for name in names)


def share() -> str:
    per_file = {
        path.name: len(re.findall(r"^def test_", path.read_text(), re.MULTILINE))
        for path in KERNEL_TESTS.glob("test_*.py")
    }
    names = [name for listed in FEATURES.values() for name in listed]
    chosen = sum(1 if "::" in name else per_file[name] for name in names)
    return f"{chosen} of the {sum(per_file.values())} test functions of tests/kernel"
