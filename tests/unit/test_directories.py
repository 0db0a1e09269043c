# SPDX-License-Identifier: Apache-2.0
"""Directories that several threads use."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from perf_offcpu.directories import Directory


def test_threads_that_list_a_directory_at_once_get_all_of_it(tmp_path: Path) -> None:
    names = sorted(f"file{number:03}" for number in range(300))
    for name in names:
        (tmp_path / name).touch()
    with Directory.private(str(tmp_path)) as directory, ThreadPoolExecutor(4) as threads:
        lists = [threads.submit(directory.names) for _ in range(400)]
        others = [threads.submit(directory.names_of_others) for _ in range(50)]
        assert all(one.result() == names for one in lists)
        assert all(one.result() == [] for one in others)


def test_a_removed_directory_is_empty(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with Directory.private(str(tmp_path / "d")) as directory:
        (tmp_path / "d").rmdir()
        assert directory.names() == directory.names_of_others() == []
