# SPDX-License-Identifier: Apache-2.0
"""perf_event_attr of all sizes and both byte orders, and the letters of task states."""

import pytest

from perf_offcpu.abi.attr import Attr, AttrFlag, ReadFormat, SampleType, unpack_attr
from perf_offcpu.abi.task_state import TaskState, state_letter
from perf_offcpu.errors import LayoutError

ATTR = Attr(
    type=1, config=10, sample_period=1, sample_type=SampleType.IP | SampleType.TID, read_format=ReadFormat.ID,
    flags=AttrFlag.SAMPLE_ID_ALL | AttrFlag.USE_CLOCKID | AttrFlag.DISABLED, clockid=1,
)  # fmt: skip


@pytest.mark.parametrize("size", [64, 72, 80, 96, 104, 112, 120, 128, 136, 144, 200])
def test_sizes(size: int) -> None:
    attr = ATTR._replace(clockid=1 if size >= 96 else 0)
    data = attr.pack(size)
    assert len(data) == size and unpack_attr(data) == attr._replace(size=size)
    assert unpack_attr(bytes(size)).size == 64, "0 means the first published size"


def test_what_does_not_fit_is_not_lost_silently() -> None:
    with pytest.raises(LayoutError, match="after byte 128"):
        ATTR._replace(config3=1).pack(128)
    assert ATTR._replace(config3=1).cut().pack() == ATTR.pack(128)
    attr = ATTR._replace(flags=ATTR.flags | AttrFlag.DEFER_CALLCHAIN)
    assert attr.cut().flags == ATTR.flags, "old perfs refuse the flag"
    with pytest.raises(LayoutError, match="63 bytes"):
        unpack_attr(bytes(63))


def test_foreign_flag_bits_are_mirrored_within_each_byte() -> None:
    # A big-endian compiler gives bit 0 of a bit field the highest bit of the first byte.
    data = ATTR._replace(flags=AttrFlag.DISABLED | AttrFlag.MMAP).pack(order=">")
    assert data[40:48] == bytes([0x80, 0x80, 0, 0, 0, 0, 0, 0])
    assert unpack_attr(data, ">").flags == AttrFlag.DISABLED | AttrFlag.MMAP


@pytest.mark.parametrize(("state", "letter"), [
    (0, "R"), (TaskState.INTERRUPTIBLE, "S"), (TaskState.UNINTERRUPTIBLE, "D"),
    (TaskState.UNINTERRUPTIBLE | TaskState.NOLOAD, "I"), (TaskState.UNINTERRUPTIBLE | 0x100, "D"),  # killable
    (TaskState.STOPPED | 0x100, "T"), (TaskState.TRACED, "t"), (TaskState.EXIT_DEAD, "X"), (TaskState.EXIT_ZOMBIE, "Z"),
    (TaskState.PARKED, "P"), (TaskState.RTLOCK_WAIT, "D"), (TaskState.FROZEN, "D"), (-1, ""),
])  # fmt: skip
def test_letters(state: int, letter: str) -> None:
    assert state_letter(state) == letter
    assert state_letter(TaskState.INTERRUPTIBLE | max(state, 0), preempted=True) == "R", "whatever its state"
