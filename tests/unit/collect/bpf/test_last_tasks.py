# SPDX-License-Identifier: Apache-2.0
"""The output of the iterator over tasks."""

from __future__ import annotations

import numpy as np

from perf_offcpu.collect.bpf.header import read_header
from perf_offcpu.collect.bpf.last_tasks import parse_tasks
from perf_offcpu.resources import bpf_dir

HEADER = read_header(bpf_dir() / "off_cpu.h")


def test_a_wait_that_began_after_the_end_is_none_of_this_recording() -> None:
    tasks = np.zeros(3, HEADER.structs["last"])
    tasks["tid"], tasks["waits"], tasks["switch_out_ns"] = [1, 2, 3], 1, [99, 100, 101]
    last = parse_tasks(tasks.tobytes(), HEADER, end_ns=100, with_budget=False)
    assert last.tasks["tid"][last.waiting()].tolist() == [1]


def test_tasks_stand_still_if_they_have_not_been_switched() -> None:
    tasks = np.zeros(3, HEADER.structs["last"])
    tasks["tid"], tasks["nr_switches"] = [1, 2, 3], [7, 8, 9]
    later = tasks[:2].copy()
    later["nr_switches"][1] += 1
    first, second = (parse_tasks(rows.tobytes(), HEADER, 100, with_budget=False) for rows in (tasks, later))
    assert first.stand_still(second).tolist() == [True, False, False]
