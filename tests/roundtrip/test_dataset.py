# SPDX-License-Identifier: Apache-2.0
"""Properties: a dataset has what a random profile has, whatever its names and times, also compacted."""

import uuid
from collections import Counter
from typing import Any

import numpy as np
from builders.dataset import rows_of
from builders.profile import OFFCPU, Code, ProfileBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from perf_offcpu.dataset.compact import compact
from perf_offcpu.dataset.content import content_of
from perf_offcpu.dataset.dataset import HOUR_NS, Dataset, open_dataset
from perf_offcpu.dataset.rows import Host
from perf_offcpu.dataset.segment import write_segment
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.text import printable

BEGIN = 497_000 * HOUR_NS
NAMES = st.one_of(st.sampled_from(["a", "b", ""]), st.text(max_size=8), st.binary(max_size=8))
CODES = st.builds(
    Code, symbol=st.sampled_from(["", "f", "g", "\x1b[0m", "ü\u202e"]),
    dso=st.sampled_from(["", "/lib/x", "[kernel.kallsyms]"]), address=st.integers(0, 2**64 - 1),
    kernel=st.booleans(), line=st.integers(0, 3), inline_depth=st.integers(0, 2),
)  # fmt: skip
WEIGHTS = st.integers(0, 10**12)
SAMPLES = st.fixed_dictionaries(
    {
        "comm": NAMES, "path": st.lists(CODES, max_size=5), "waker_path": st.lists(CODES, max_size=3),
        "weight": WEIGHTS, "event": st.sampled_from([OFFCPU, "cpu-clock"]),
        "time_ns": st.integers(-1, 3 * HOUR_NS), "tid": st.integers(-1, 5), "cpu": st.integers(-1, 3),
        "runq_ns": st.integers(-1, 100), "count": st.integers(0, 10**9), "waker_tid": st.integers(-1, 3),
        "flags": st.sampled_from([SampleFlag(0), SampleFlag.PREEMPTED, SampleFlag.AGGREGATED]),
    }
)  # fmt: skip


def profile_of(samples: list[dict[str, Any]]) -> Profile:
    meta = {"hostname": "h", "wall_clock_ns": BEGIN, "wall_clock_at_ns": 1, "begin_ns": 1}
    builder = ProfileBuilder(meta=meta | {"end_ns": 3 * HOUR_NS}, build_ids={"/lib/x": "ab" * 20})
    for sample in sorted(samples, key=lambda one: one["time_ns"]):
        builder.sample(**sample)
    return builder.build()


def text(name: str | bytes) -> str:
    return printable(name if isinstance(name, str) else name.decode("utf-8", "surrogateescape"))


@settings(max_examples=12)
@given(st.lists(st.lists(SAMPLES, max_size=12), min_size=1, max_size=3))
def test_rows_are_the_samples(hosts: list[list[dict[str, Any]]]) -> None:
    dataset = open_dataset(f"memory://{uuid.uuid4()}", make=True)
    for number, samples in enumerate(hosts):
        for _ in range(2):  # the second replaces the first
            write_segment(dataset, profile_of(samples), Host(f"host{number}"))
    expected = Counter(
        (
            f"host{number}", text(one["comm"]), one["event"], one["weight"], one["count"], one["tid"],
            None if one["cpu"] < 0 else one["cpu"],
            BEGIN - 1 + one["time_ns"] if one["time_ns"] >= 0 else BEGIN - 1 + 3 * HOUR_NS,
            tuple(text(code.symbol) for code in reversed(one["path"])),
            tuple(text(code.symbol) for code in reversed(one["waker_path"])),
        )
        for number, samples in enumerate(hosts)
        for one in samples
    )  # fmt: skip
    assert found(dataset) == expected
    assert not [done for _, done in compact(dataset, BEGIN + 9 * HOUR_NS) if isinstance(done, Exception)]
    assert found(dataset) == expected


def found(dataset: Dataset) -> Counter[tuple[Any, ...]]:
    stacks = {row["stack_id"]: row["frame_ids"] for row in rows_of(dataset, "stacks")} | {0: []}
    symbol = {row["frame_id"]: row["symbol"] for row in rows_of(dataset, "frames")}
    found = Counter[tuple[Any, ...]]()
    for row in rows_of(dataset, "samples"):
        plain = [row[name] for name in "host_id comm event weight_ns count tid cpu time_ns".split()]
        found[*plain, *(tuple(symbol[one] for one in stacks[row[id_]]) for id_ in ("stack_id", "waker_stack_id"))] += 1
    return found


@settings(max_examples=12)
@given(st.lists(SAMPLES, min_size=1, max_size=10), st.randoms())
def test_ids_do_not_depend_on_the_order_or_on_other_samples(samples: list[dict[str, Any]], rng: Any) -> None:
    mixed = [one | {"time_ns": place} for place, one in enumerate(rng.sample(samples, len(samples)))]
    whole, some = content_of(profile_of(samples)), content_of(profile_of(mixed))
    assert np.array_equal(whole.stack_ids, some.stack_ids)
    assert np.array_equal(whole.frames["frame_id"], some.frames["frame_id"])
    one = content_of(profile_of(samples[:1]))
    assert set(one.stack_ids.tolist()) <= set(whole.stack_ids.tolist())
