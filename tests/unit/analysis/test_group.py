# SPDX-License-Identifier: Apache-2.0
"""Sums by groups of samples; names of containers, from paths of control groups as their managers make them."""

from typing import Any

import numpy as np
import pytest
from builders.examples import examples
from builders.profile import ProfileBuilder, kernel
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from perf_offcpu.analysis.selection.containers import container_of, is_container
from perf_offcpu.analysis.stack_walk import innermost_node, outermost_node, used_frames, used_nodes
from perf_offcpu.errors import PerfOffcpuError
from perf_offcpu.model.columns import group, max_by, stable_order, sum_by
from perf_offcpu.model.profile import Profile


def check_grouping(columns: list[NDArray[Any]]) -> None:
    keys = list(zip(*(column.tolist() for column in columns), strict=True))
    first, of = group(*columns)
    different = sorted(set(keys))
    assert [keys[row] for row in first.tolist()] == different, "groups are not in the order of their keys"
    assert [different[number] for number in of.tolist()] == keys
    assert first.tolist() == [keys.index(key) for key in different], "not the first row of its group"


@given(st.lists(st.tuples(st.integers(-1, 5), st.integers(-(2**62), 2**62), st.integers(-1, 5)), max_size=60))
def test_group_agrees_with_tuples(rows: list[tuple[int, int, int]]) -> None:
    columns = [np.array([row[at] for row in rows], np.int64) for at in range(3)]
    check_grouping(columns)
    check_grouping(columns[:1])


def test_group_of_long_keys_of_addresses_and_of_nothing() -> None:
    rng = np.random.default_rng(3)
    picked = rng.integers(0, 50, 3000)  # the packed key does not fit 64 bits
    check_grouping([rng.integers(0, 2**60, 100_000)[picked] for _ in range(4)])
    assert group(np.array([2**64 - 1, 2**64 - 4096, 7, 2**64 - 1], np.uint64))[1].tolist() == [2, 1, 0, 2]
    nothing = np.empty(0, np.int32)
    first, group_of_row = group(nothing, nothing)
    assert len(first) == len(group_of_row) == 0 and sum_by(group_of_row, nothing, 0).tolist() == []


def test_columns_of_any_integers_stay_as_they_are() -> None:
    columns = [
        np.array([2**64 - 1, 2**64 - 1, 2**64 - 3], np.uint64), np.array([True, False, True]),
        np.array([-128, 127, -128], np.int8), np.broadcast_to(np.uint32(7), 3),
    ]  # fmt: skip
    before = [column.tolist() for column in columns]
    check_grouping(columns)
    assert [column.tolist() for column in columns] == before


def test_sums_are_exact_or_refused() -> None:
    waits = np.array([10_800_000_000_000] * 1000 + [1], np.int64)  # of 1000 threads three hours, of one a nanosecond
    assert sum_by(np.zeros(1001, np.int64), waits, 1).tolist() == [10_800_000_000_000_001]
    numbers = np.array([0, 1, 0, -1, 1])
    for scale in (1, 2**40, 2**57):
        assert sum_by(numbers, np.array([3, -2, 1, 9, 1]) * scale, 3).tolist() == [4 * scale, -scale, 0]
    assert sum_by(numbers, np.array([1, 2, 3, 4, 5], np.uint64), 2).tolist() == [4, 7]
    assert max_by(np.array([0, -1, 2]), np.array([5, 7, 9]), 3).tolist() == [5, -1, 9]
    with pytest.raises(PerfOffcpuError, match="damaged"):
        sum_by(np.zeros(4, np.int64), np.full(4, 2**62, np.int64), 1)


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 2**56)), max_size=60))
def test_sums_and_maxima_agree_with_a_loop(rows: list[tuple[int, int]]) -> None:
    of, values = (np.array([row[at] for row in rows], np.int64) for at in range(2))
    mine = [[value for number, value in rows if number == wanted] for wanted in range(4)]
    assert sum_by(of, values, 4).tolist() == [sum(found) for found in mine]
    assert max_by(of, values, 4).tolist() == [max(found, default=-1) for found in mine]
    assert stable_order(values).tolist() == sorted(range(len(rows)), key=values.tolist().__getitem__)
    narrow = values % 70_001
    assert stable_order(narrow).tolist() == sorted(range(len(rows)), key=narrow.tolist().__getitem__)


def test_long_columns_are_summed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf_offcpu.model.columns._ROW_LIMIT", 7)
    of, values = np.arange(40) % 3, np.arange(40) + 2**55
    assert sum_by(of, values, 3).tolist() == [sum(values[of == number].tolist()) for number in range(3)]


STACKS = st.lists(st.lists(st.sampled_from("abcdkl"), max_size=6), min_size=1, max_size=8)


def way_up(profile: Profile, leaf: int) -> list[int]:
    return [leaf, *way_up(profile, int(profile.stacks.parent[leaf]))] if leaf >= 0 else []


@given(STACKS, st.sets(st.sampled_from("abcdkl")), st.integers(0, 3))
def test_walks_are_those_of_each_stack(stacks: list[list[str]], names: set[str], user_frames: int) -> None:
    builder = ProfileBuilder()
    for stack in stacks:
        builder.sample("comm", [kernel(name) if name in "kl" else name for name in stack], 1)
    profile = builder.build()
    frame_of = profile.stacks.frame.tolist()
    leaves = profile.samples.stack.astype(np.int64)
    wanted = np.array([profile.strings[one] in names for one in profile.frames.symbol.tolist()], np.bool_)
    is_kernel = profile.frames.is_kernel()
    ways = [way_up(profile, leaf) for leaf in leaves.tolist()]

    assert np.flatnonzero(used_nodes(profile, leaves)).tolist() == sorted(set().union(*ways))
    used = {frame_of[node] for way in ways for node in way}
    assert set(np.flatnonzero(used_frames(profile, leaves)).tolist()) == used

    hits = [[node for node in way if wanted[frame_of[node]]] for way in ways]
    assert outermost_node(profile, leaves, wanted).tolist() == [(nodes or [-1])[-1] for nodes in hits]
    for way, nodes, node in zip(ways, hits, innermost_node(profile, leaves, wanted, user_frames).tolist(), strict=True):
        users = np.cumsum([not is_kernel[frame_of[one]] for one in way]).tolist()
        is_near = [not user_frames or number < user_frames for number in [0, *users]]
        assert node == next((one for one, near in zip(way, is_near, strict=False) if near and one in nodes), -1)


ID = "0123456789ab" + 52 * "c"
POD = "kubepods-burstable-pod2d1a4a4e_0a0b_4c4d_8e8f_000000000000.slice"


@pytest.mark.parametrize(("path", "name"), examples("unit/analysis/examples.txt", "containers"))
def test_names(path: str, name: str) -> None:
    path = path.replace("ID", ID).replace("POD", POD)
    assert container_of(path) == name
    assert is_container(path, name) == bool(name)


def test_a_container_is_found_by_its_name_or_the_begin_of_its_id() -> None:
    path = f"/docker/{ID}"
    assert all(is_container(path, name) for name in (ID, ID[:12], ID[:4], "docker:0123456789ab", "docker:0123"))
    assert not any(is_container(path, name) for name in ("0124", ID[:-1] + "0", "docker", "", "012", "podman:0123"))
    assert not is_container("/system.slice/0123.service", "0123")
