# SPDX-License-Identifier: Apache-2.0
"""Frame rules that a process keeps from recording to recording are those that it would read again. Callchains that are
kept for further parts of a recording: each is followed once, cut ones again."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders.cfi import X86
from unit.unwind.test_cfi_table import BLOCKER, recording_of

from perf_offcpu.abi.elf import Machine
from perf_offcpu.cache import DiskCache, KeptCache
from perf_offcpu.model.callchains import Ragged
from perf_offcpu.model.columns import I64
from perf_offcpu.model.recording import Maps
from perf_offcpu.objects.search import Search
from perf_offcpu.unwind import lookup
from perf_offcpu.unwind.cfi.table import CfiTable
from perf_offcpu.unwind.lookup import CfiLookup, FileTable, Rules
from perf_offcpu.unwind.state import End
from perf_offcpu.unwind.tables import FrameTables
from perf_offcpu.unwind.unwinder import KnownStacks, Unwound

BEGIN = 0x555500000000
LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")


def rules_of(path: Path, offsets: range, cache: DiskCache | None) -> tuple[list[bytes], list[bool]]:
    """Return the rule sets of a file's code, expressions as bytes, and whether its table was read, by call."""
    recording, asked = recording_of(str(path)), list[bool]()
    maps = Maps.filled(1, start=np.array([BEGIN], np.uint64), end=np.array([BEGIN + (8 << 20)], np.uint64), dso=[0])
    recording = replace(recording, maps=maps.with_columns(space=np.zeros(1, np.int32)))
    tables = FrameTables(recording, Machine.X86_64, Search(cache=cache))

    def table_of(dso: int, with_table: bool) -> FileTable | None:
        asked.append(with_table)
        return tables.of_dso(dso, with_table)

    found = CfiLookup(recording, Rules.kept(X86, cache), table_of)
    addresses = BEGIN + np.array(offsets, np.uint64)
    rows = found.find(np.zeros(len(addresses), np.int32), addresses)
    used = CfiTable(rules=found.rules.words[rows], expressions=found.rules.expressions)
    assert used.is_sound()
    is_expression = (used.rules & 7 == 5) | (used.rules & 7 == 6)
    is_expression[:, -1] = False
    texts = [
        b"|".join(used.expressions[word >> 3] if special else b"%d" % word for word, special in zip(*row, strict=True))
        for row in zip(used.rules.tolist(), is_expression.tolist(), strict=True)
    ]
    return texts, asked


def test_kept_rules_are_those_of_the_files_content(tmp_path: Path) -> None:
    cache, path = KeptCache(str(tmp_path / "cache")), tmp_path / "program"
    for step, (program, offsets) in enumerate([
        (BLOCKER, range(0, 1 << 14, 64)), (LIBC, range(0, 1 << 21, 64)), (BLOCKER, range(0, 1 << 14, 16)),
        (LIBC, range(0, 1 << 21, 32)), (LIBC, range(0, 1 << 21, 64)),
    ]):  # fmt: skip
        if step != 4:
            path.unlink(missing_ok=True)
            shutil.copy(program, path)
        kept, asked = rules_of(path, offsets, cache)
        assert kept == rules_of(path, offsets, None)[0] and len(set(kept)) > 3
        assert asked == ([False] if step == 4 else [False, True])
    path.unlink()
    assert set(rules_of(path, offsets, cache)[0]) == set(rules_of(path, offsets, None)[0])


def test_kept_rules_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KeptCache(str(tmp_path / "cache"))
    monkeypatch.setattr(lookup, "_MOST_KEPT", 1000)
    for begin in range(0, 1 << 20, 1 << 15):
        rules_of(LIBC, range(begin, begin + (1 << 15), 64), cache)
    assert Rules.kept(X86, cache)._addresses <= 1000 + 512


def test_known_callchains_are_not_followed_again_but_cut_ones_are() -> None:
    walked: list[list[int]] = []

    def walk(pairs: I64) -> Unwound:
        """Return the chain (pair, pair + 1) of each pair; those of odd pairs are cut."""
        walked.append(pairs.tolist())
        ends = np.where(pairs % 2 == 1, End.OUTSIDE, End.ROOT).astype(np.uint8)
        return Unwound(Ragged.from_lists([[pair, pair + 1] for pair in pairs.tolist()]), ends)

    known = KnownStacks()
    for pairs in ([4, 7, 10], [2, 7, 8, 10], [4, 10], [2, 4, 7, 8, 10]):
        unwound = known.unwind(np.array(pairs), walk)
        assert [unwound.chains.row(row).tolist() for row in range(len(unwound))] == [[pair, pair + 1] for pair in pairs]
        assert unwound.is_cut().tolist() == [pair % 2 == 1 for pair in pairs]
    assert walked == [[4, 7, 10], [2, 7, 8], [7]]
