# SPDX-License-Identifier: Apache-2.0
"""Names of wait objects from the text of /proc/PID/maps."""

import pytest

from perf_offcpu.collect.wait_objects.names import place_of

MAPS = b"""7f42c7fff000-7f42c8000000 rw-p 000cf000 fe:00 32 /lib/libjsvml.so
7f42c8000000-7f42c8200000 rw-p 00000000 00:00 0
7f42d0000000-7f42d0001000 rw-p 00001000 fe:00 33 /lib/libpool.so
7f42d0001000-7f42d0002000 rw-p 00000000 00:00 0
"""


@pytest.mark.parametrize(
    ("address", "place"),
    [(0x7F42C7FFF008, b"/lib/libjsvml.so"), (0x7F42D0001008, b"/lib/libpool.so"), (0x7F42C8134C9C, b"heap"), (8, b"")],
)
def test_memory_after_a_library_is_its_own_unless_malloc_begins_there(address: int, place: bytes) -> None:
    assert place_of(MAPS, address, 0) == place
