# SPDX-License-Identifier: Apache-2.0
"""Where a task runs first when it comes to a CPU, by the kernel's symbols; and kernels without kprobes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from perf_offcpu.collect.bpf import kprobe
from perf_offcpu.collect.bpf.kprobe import Kprobe, switch_end


@pytest.mark.parametrize(("symbols", "name"), [
    ("0 t finish_task_switch\n", "finish_task_switch"),
    ("0 t prev\n0 t finish_task_switch.isra.0\n0 T next\n", "finish_task_switch.isra.0"),
    # a part of it that is rarely reached, or a module's function, is not it
    ("0 t finish_task_switch.isra.0\n0 t finish_task_switch.isra.0.cold\n", "finish_task_switch.isra.0"),
    ("0 t finish_task_switch.isra.1\n0 t finish_task_switch\t[module]\n", "finish_task_switch.isra.1"),
    # two that may be meant: some switches would be missed
    ("0 t finish_task_switch.isra.0\n0 t finish_task_switch\n", ""),
    ("0 t my_finish_task_switch\n0 t finish_task_switch_late\n", ""),
    ("", ""),
])  # fmt: skip
def test_the_function(symbols: str, name: str) -> None:
    assert switch_end(b" " + symbols.encode()) == name


def test_a_kernel_without_kprobes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kprobe, "TYPE", tmp_path / "type")
    with pytest.raises(OSError) as refused:
        Kprobe("finish_task_switch")
    assert refused.value.errno == errno.EOPNOTSUPP
