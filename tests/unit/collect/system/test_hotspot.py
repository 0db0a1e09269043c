# SPDX-License-Identifier: Apache-2.0
"""Layouts of objects that JVMs newer than that of the machine have."""

import pytest

from perf_offcpu.collect.system.hotspot import _Hotspot

OBJECT = 0x40000012340


class Words:
    """Memory with one word at each address in `words`."""

    def __init__(self, words: dict[int, int]) -> None:
        self.words = words

    def number(self, address: int, size: int = 8) -> int:
        return self.words[address] & (1 << 8 * size) - 1


def hotspot(words: dict[int, int]) -> _Hotspot:
    jvm = _Hotspot.__new__(_Hotspot)
    jvm._memory, jvm._narrow_class, jvm._is_compact, jvm._is_colored = Words(words), None, False, False  # type: ignore[assignment]
    jvm._offset = {b"oopDesc::_metadata._klass": 8}
    return jvm


@pytest.mark.parametrize("color", [1, 2, 4, 8])
def test_references_of_a_zgc_with_generations_are_colored(color: int) -> None:
    """The object's address begins after the bit that says where references were last mapped (zAddress.hpp)."""
    after = {1: 13, 2: 14, 4: 15, 8: 16}[color]
    jvm = hotspot({8: OBJECT << after | color << 12 | 0xA50, 16: 0})
    assert jvm._reference(8, None) == OBJECT << after | color << 12 | 0xA50
    jvm._is_colored = True
    assert (jvm._reference(8, None), jvm._reference(16, None)) == (OBJECT, 0)


def test_compact_headers_hold_the_class() -> None:
    jvm = hotspot({OBJECT: 0x1234 << 42 | 0x2A5, OBJECT + 8: 0x777})
    assert jvm._class_of(OBJECT) == 0x777
    jvm._narrow_class = 0x1000000, 3
    assert jvm._class_of(OBJECT) == 0x1000000 + (0x777 << 3)
    jvm._is_compact, jvm._narrow_class = True, (0x1000000, 10)
    assert jvm._class_of(OBJECT) == 0x1000000 + (0x1234 << 10)
