# SPDX-License-Identifier: Apache-2.0
"""Objects of sleeping threads, by their system call: an epoll instance stands for its only descriptor or for itself."""

import os
import platform
import select

import pytest

from perf_offcpu.abi.syscalls import syscall_number
from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.collect.unprivileged.objects import CallObjects

EPOLL_PWAIT = syscall_number("epoll_pwait", platform.machine())
FOREVER, A_SECOND = 0xFFFFFFFF, 1000


def kind_of_wait(epoll: select.epoll, limit: int) -> ObjectKind:
    objects = CallObjects(wanted=True)
    own = os.getpid()
    assert objects.find(own, own, 0, EPOLL_PWAIT, [epoll.fileno(), 0, 1, limit, 0, 0], 0).object_id
    return ObjectKind(int(objects.take_objects()["kind"][0]))


@pytest.fixture
def epoll() -> select.epoll:
    return select.epoll()


def test_the_only_descriptor_is_what_is_waited_for(epoll: select.epoll) -> None:
    reader, _writer = os.pipe()
    epoll.register(reader)
    assert kind_of_wait(epoll, FOREVER) == ObjectKind.PIPE


def test_time_or_another_descriptor_may_end_the_wait(epoll: select.epoll) -> None:
    first, second = os.pipe()
    epoll.register(first)
    assert kind_of_wait(epoll, A_SECOND) == ObjectKind.ANONYMOUS
    epoll.register(second)
    assert kind_of_wait(epoll, FOREVER) == ObjectKind.ANONYMOUS


def test_a_descriptor_with_another_file_by_now_is_not_it(epoll: select.epoll) -> None:
    (reader, _writer), (other, _) = os.pipe(), os.pipe()
    kept = os.dup(reader)
    epoll.register(reader)
    os.dup2(other, reader)
    assert kind_of_wait(epoll, FOREVER) == ObjectKind.ANONYMOUS
    os.close(kept)


def test_an_instance_that_watches_its_own_number_ends(epoll: select.epoll) -> None:
    reader, _writer = os.pipe()
    kept = os.dup(reader)
    epoll.register(reader)
    os.dup2(epoll.fileno(), reader)
    assert kind_of_wait(select.epoll.fromfd(reader), FOREVER) == ObjectKind.ANONYMOUS
    os.close(kept)
