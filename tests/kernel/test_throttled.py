# SPDX-License-Identifier: Apache-2.0
"""A thread whose control group has used up its quota of CPU time: a mode of budgets, and a class of waits."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.program import run as perf_offcpu
from kernel.recorder import run

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.symbolize.symbolizer import symbolize

BURN = "i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done"


class Quota:
    """A control group with 20 ms of CPU time in 100 ms, of the version that has the cpu controller here. Its threads go
    before all others, so that they do not wait for a CPU after their quota is renewed."""

    def __init__(self) -> None:
        v1 = Path("/sys/fs/cgroup/cpu")
        self.is_v1 = (v1 / "cpu.cfs_quota_us").exists() or (v1 / "cpu.shares").exists()
        self.path = (v1 if self.is_v1 else Path("/sys/fs/cgroup")) / f"offcpu-{os.getpid()}"
        if not self.is_v1:
            (self.path.parent / "cgroup.subtree_control").write_text("+cpu")
        self.path.mkdir()
        if self.is_v1:
            (self.path / "cpu.cfs_quota_us").write_text("20000")
            (self.path / "cpu.shares").write_text("262144")
        else:
            (self.path / "cpu.max").write_text("20000 100000")
            (self.path / "cpu.weight").write_text("10000")

    def throttled_ns(self) -> int:
        fields = dict(line.split() for line in (self.path / "cpu.stat").read_text().splitlines())
        return int(fields["throttled_time"]) if self.is_v1 else 1000 * int(fields["throttled_usec"])


@pytest.fixture
def quota() -> Iterator[Quota]:
    found = Quota()
    yield found
    found.path.rmdir()


def test_a_quota_of_cpu_time_is_a_class_and_a_mode_of_its_own(quota: Quota, tmp_path: Path) -> None:
    """The kernel counts the time of the group on each CPU, from the last thread that stops to the first that
    goes on. Ours is longer, by the waits for a CPU after that."""
    script = f"echo $$ > {quota.path}/cgroup.procs; exec sh -c '{BURN}'"
    recording = run("-e", "none", "--", "sh", "-c", script, cwd=tmp_path).recording
    kernel = quota.throttled_ns()
    budget = recording.budget
    throttled = int(budget.throttled_ns.sum())
    assert kernel > 200_000_000
    assert -0.01 * kernel - 5_000_000 < throttled - kernel < 0.1 * kernel
    assert int((budget.runnable_ns + budget.preempted_ns).sum()) < 0.5 * throttled
    profile: Profile = symbolize(recording)
    of_class = classify(profile).wait_class == WaitClass.THROTTLED
    assert (profile.samples.has(SampleFlag.THROTTLED) == of_class).all()
    assert abs(int(profile.samples.period[of_class].sum()) - throttled) < 0.02 * throttled
    report = perf_offcpu("report", "-g", "none", cwd=tmp_path).stdout
    assert "throttled" in report and "Throttled" in report
