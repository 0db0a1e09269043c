# SPDX-License-Identifier: Apache-2.0
"""Descriptions of the locks of a JVM."""

import pytest

from perf_offcpu.collect.system.hotspot import AwaitedLock
from perf_offcpu.collect.wait_objects.describe import describe_java_lock


@pytest.mark.parametrize(("is_monitor", "type_", "name"), [
    (True, "a.Repo", "monitor of a.Repo"), (True, "", "monitor"), (False, "", "a lock of java.util.concurrent"),
    (False, "java.util.concurrent.locks.ReentrantLock$NonfairSync", "java.util.concurrent.locks.ReentrantLock"),
])  # fmt: skip
def test_names_of_locks(is_monitor: bool, type_: str, name: str) -> None:
    lock = AwaitedLock(1, is_monitor, 0x1000, type_)
    named, unnamed = (describe_java_lock(7, lock, named=names) for names in (True, False))
    assert named["name"] == name.encode() and unnamed == named | {"name": b""}, "--no-object-names"
