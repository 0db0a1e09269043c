# SPDX-License-Identifier: Apache-2.0
"""What differs between the perfs that tests may meet."""

import re
import subprocess
from collections import Counter
from pathlib import Path

from perf_offcpu.model.recording import Recording

# perf says this of every recording of another kernel, ours to make or not.
OTHER_KERNEL = r"^No kallsyms or vmlinux with build-id \w+ was found\n"
# perf 7.2 does not turn the CPUs in EVENT_UPDATE records of the other byte order (0x0200: a range of CPUs).
NOT_TURNED = r"^cpu_map__new_data unknown type 512\n|^failed to get event_update cpus\n"

# perf 6.12 and 7.2 count references wrongly (refcount.h), in recordings of their own as well.
MISCOUNTED = r"^assertion failed at util/(?:namespaces|build-id)\.c:\d+\n"

# perf report has addr2line look for inlined functions. That of 6.1 is killed by SIGPIPE where addr2line
# finds no file: that of a process in another mount namespace, whose symbols perf finds by going there (its
# own recordings do the same to it, with --inline). Recordings of everybody meet such processes.
REPORT = ("report", "--stdio", "--no-inline")


def version() -> tuple[int, int]:
    shown = subprocess.run(["perf", "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"(\d+)\.(\d+)", shown)
    assert match is not None, shown
    return int(match[1]), int(match[2])


def complaints(stderr: str) -> str:
    return re.sub(f"{OTHER_KERNEL}|{NOT_TURNED}|{MISCOUNTED}", "", stderr, flags=re.MULTILINE)


def perf(*arguments: str | Path, quiet: bool = False, cwd: Path | None = None) -> str:
    """Return the output of stock perf, maybe not UTF-8; it must succeed and, if `quiet`, complain of nothing."""
    done = subprocess.run(
        ["perf", *arguments], cwd=cwd, capture_output=True, text=True, errors="surrogateescape", timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0 and not (quiet and complaints(done.stderr)), done
    return done.stdout


Totals = Counter[tuple[str, ...]]


def with_names(totals: Totals, recording: Recording, place: int) -> Totals:
    """Totals by thread name, also those that perf 7 forgets at EXIT, ":TID". `place`: of the name in keys."""
    samples, strings = recording.samples, recording.strings
    pairs = zip(samples.tid.tolist(), samples.comm.tolist(), strict=True)  # by time: the last counts
    names = {f":{tid}": strings[comm] for tid, comm in pairs if comm >= 0 and strings[comm]}
    named: Totals = Counter()
    for key, period in totals.items():
        named[(*key[:place], names.get(key[place], key[place]), *key[place + 1 :])] += period
    return named
