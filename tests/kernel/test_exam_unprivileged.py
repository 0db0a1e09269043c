# SPDX-License-Identifier: Apache-2.0
"""The designs of the exam (test_exam.py), recorded by an ordinary user, one group of them after the other: waits over
20 ms have the same class and object as with BPF, or are unknown."""

import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from builders import program
from builders.compiled import WORKLOAD, build
from kernel.others import NOBODY, reachable
from kernel.test_exam import EXAM, NAMED, SCRIPTS, rows_of

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.symbolize.load import load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions

SHORT = "mutexes conditions ends descriptors"
ALL = f"{SHORT} rwlocks semaphores meetings file_locks queues until_signals faults states python shell"
FOR_ROOT = {"fanotify", "userfaultfd", "uffd-fault", "sh-chroot", "sh-quota", "sh-reclaim"}
LEAST_NS, LEAST_RIGHT = 20_000_000, 0.8


@pytest.fixture
def place(place: Path) -> Path:
    build("exam.cpp", place / "exam", *"-std=c++20 -O0 -g".split())
    shutil.copy(WORKLOAD / "exam.py", place)
    return place


def command_of(place: Path, group: str) -> list[str | Path]:
    if group == "python":
        return ["/usr/bin/python3", place / "exam.py"]
    if group == "shell":
        scripts = [f"{{ {script}\n}} &" for name, script in SCRIPTS.items() if name not in FOR_ROOT]
        return ["sh", "-c", "\n".join([*scripts, "wait"])]
    return [place / "exam", group]


def judge(data: Path, rows: dict[str, list[str]]) -> dict[str, tuple[str, str]]:
    """Return comm → class and object of most of the time of long waits, naps left out where they are not meant. A
    process's first thread only waits for the others, which may have its comm."""
    profile = load_profile([str(data)], SymbolizeOptions(inline=False))
    samples, waits = profile.samples, classify(profile)
    judged: dict[str, tuple[str, str]] = {}
    for code in np.unique(samples.comm[samples.period > LEAST_NS]).tolist():
        comm = profile.strings[code]
        chosen = (samples.comm == code) & (samples.period > LEAST_NS)
        chosen &= (waits.wait_class != WaitClass.SLEEP) | (rows.get(comm, ["sleep"])[0] == "sleep")
        is_first = samples.tid == samples.pid
        chosen &= ~is_first if (chosen & ~is_first).any() else is_first
        weights: dict[tuple[str, str], int] = {}
        for row in np.flatnonzero(chosen).tolist():
            name = profile.strings[np.append(profile.objects.name, 0)[samples.object[row]]]
            key = WaitClass(waits.wait_class[row]).label, name
            weights[key] = weights.get(key, 0) + int(samples.period[row])
        if weights:
            judged[comm] = max(weights, key=lambda key: weights[key])
    return judged


@pytest.mark.long
@pytest.mark.parametrize("groups", [SHORT, ALL], ids=["some", "all"])
def test_an_ordinary_user_gets_the_same_answers_or_none(place: Path, groups: str) -> None:
    rows, right, unknown, wrong = rows_of(EXAM + NAMED), list[str](), list[str](), list[object]()
    for group in groups.split():
        data = place / f"{group}.data"
        words = [*program.PROGRAM, "record", "-q", "-e", "none", "-o", data, "--", *command_of(place, group)]
        shell = reachable(f"HOME={place} exec setpriv {NOBODY} {shlex.join(map(str, words))}")
        subprocess.run(["sh", "-c", shell], cwd=place, check=True, timeout=100)
        for comm, (wait_class, thing) in judge(data, rows).items():
            if comm not in rows or comm in FOR_ROOT:
                continue
            label, _, _, expected = rows[comm]
            expected = expected.removesuffix(" py-join")  # a comm that its process gives itself later
            if wait_class == label and expected in thing:
                right.append(comm)
            elif wait_class in ("", "unknown", "other") or (wait_class == label and not thing):
                unknown.append(comm)
            else:
                wrong.append((comm, label, expected, wait_class, thing))
    assert not wrong, wrong
    assert len(right) >= LEAST_RIGHT * (len(right) + len(unknown)), unknown
