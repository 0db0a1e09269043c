# SPDX-License-Identifier: Apache-2.0
"""The tree of paths, compared with one walk a sample."""

from collections import Counter

import numpy as np
from builders.profile import Code, ProfileBuilder, kernel
from hypothesis import given
from hypothesis import strategies as st

from perf_offcpu.callpaths.options import NameKind, PathOptions
from perf_offcpu.callpaths.tree import build_paths
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.model.stacks import depths, frames_of, path_lengths
from perf_offcpu.text import frame_label

CODES = [
    Code("main", "/bin/a", 16),
    Code("main", "/bin/a", 32),  # another call site of the same function
    Code("main", "/bin/b", 16),  # another program's
    Code("", "/lib/x.so", 48),
    Code("", "/lib/x.so", 64),
    kernel("schedule"),
]
PATHS = st.lists(st.sampled_from(CODES), max_size=6)
FLAGS = st.sampled_from([0, *SampleFlag])
SAMPLES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(1, 3), PATHS, FLAGS, st.integers(0, 2**40)), max_size=25
)


def built(samples: list[tuple[str, int, list[str | Code], SampleFlag, int]]) -> Profile:
    builder = ProfileBuilder()
    for comm, tid, path, flags, weight in samples:
        builder.sample(comm, path, weight, tid=tid, flags=flags)
    return builder.build()


def expected(profile: Profile, row: int) -> tuple[str, ...]:
    """Return one sample's path, found the slow way."""
    samples, flags = profile.samples, SampleFlag(int(profile.samples.flags[row]))
    labels = [profile.strings[int(samples.comm[row])]]
    user_lost = flags & (SampleFlag.NO_USER_STACK | SampleFlag.UNMERGED)
    stack = int(samples.stack[row])
    if stack < 0:
        return (*labels, "[missed stack]" if user_lost or flags & SampleFlag.NO_KERNEL_STACK else "[no stack]")
    if user_lost:
        labels.append("[missed user stack]")
    elif flags & SampleFlag.TRUNCATED:
        labels.append("[truncated]")
    for frame in frames_of(profile.stacks.parent, profile.stacks.frame, stack):
        symbol, dso = (profile.strings[int(column[frame])] for column in (profile.frames.symbol, profile.frames.dso))
        labels.append(frame_label(symbol, dso))
    return (*labels, "[missed kernel stack]") if flags & SampleFlag.NO_KERNEL_STACK else tuple(labels)


@given(SAMPLES)
def test_every_sample_ends_at_its_path(samples: list[tuple[str, int, list[str | Code], SampleFlag, int]]) -> None:
    profile = built(samples)
    tree = build_paths(profile, PathOptions())
    paths = tree.paths(tree.of_sample.astype(np.int64))
    shown = [tuple(tree.names[name].label for name in paths.row(row).tolist()) for row in range(len(samples))]
    assert shown == [expected(profile, row) for row in range(len(samples))]


@given(SAMPLES)
def test_totals_and_shape(samples: list[tuple[str, int, list[str | Code], SampleFlag, int]]) -> None:
    profile = built(samples)
    tree = build_paths(profile, PathOptions(tid=True))
    assert int(tree.total(profile.samples.period).sum()) == sum(sample[-1] for sample in samples)
    assert bool((tree.parent < np.arange(len(tree))).all())
    family = Counter((int(p), tree.names[int(n)]) for p, n in zip(tree.parent, tree.name, strict=True))
    assert set(family.values()) <= {1}, "siblings of one name"
    assert depths(tree.parent).tolist() == path_lengths(tree.parent, np.arange(len(tree))).tolist()


def test_call_sites_of_a_function_are_one_name_programs_are_not() -> None:
    profile = built([("a", 1, [code], SampleFlag(0), 1) for code in CODES])
    tree = build_paths(profile, PathOptions())
    names = sorted((name.label, name.dso) for name in tree.names if name.kind == NameKind.USER)
    assert names == [("[x.so]", "x.so"), ("main", "a"), ("main", "b")]
    labels = {name.label for name in build_paths(profile, PathOptions(addrs=True)).names if name.kind == NameKind.USER}
    assert labels == {"main", "[x.so <30>]", "[x.so <40>]"}


def test_only_used_frames_are_named() -> None:
    profile = built([("a", 1, ["used"], SampleFlag(0), 1), ("a", 1, ["unused"], SampleFlag(0), 1)])
    tree = build_paths(profile.select(np.array([True, False])), PathOptions())
    assert "unused" not in {name.label for name in tree.names}


def test_roots() -> None:
    profile = built([("a", 1, ["f"], SampleFlag(0), 1), ("a", 2, ["f"], SampleFlag(0), 1)])

    def roots(options: PathOptions) -> list[str]:
        return [name.label for name in build_paths(profile, options).names if name.kind == NameKind.ROOT]

    assert roots(PathOptions()) == ["a"] and roots(PathOptions(pid=True)) == ["a-100"]
    assert roots(PathOptions(tid=True)) == ["a-100/1", "a-100/2"]
