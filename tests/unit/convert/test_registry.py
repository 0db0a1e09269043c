# SPDX-License-Identifier: Apache-2.0
"""The table of formats, and what it promises for all of them."""

import io
import subprocess
import sys
from dataclasses import fields

import pytest
from builders.profile import ProfileBuilder

from perf_offcpu.convert.registry import FORMATS, Format, Options
from perf_offcpu.errors import UsageError


@pytest.mark.parametrize("format_", FORMATS.values(), ids=lambda format_: format_.name)
def test_every_row_is_kept(format_: Format) -> None:
    assert format_.options <= {field.name for field in fields(Options)}
    assert format_.suffix.startswith(".") and format_.doc
    for profile in (ProfileBuilder().build(), ProfileBuilder().sample("a", ["f"], 7).build()):
        first, second = (io.BytesIO() if format_.binary else io.StringIO() for _ in range(2))
        format_.write(profile, first)
        format_.write(profile, second)
        assert first.getvalue() == second.getvalue(), "the same profile gave different bytes"


def test_options_that_a_format_does_not_know_are_refused() -> None:
    FORMATS["folded"].accept(Options(unit="us", kernel=True))
    with pytest.raises(UsageError, match="--kernel means nothing to --flamegraph"):
        FORMATS["flamegraph"].accept(Options(kernel=True))


def test_a_format_in_time_needs_times() -> None:
    timeline = Format("folded", "folded", ".x", "for this test", needs_times=True)
    untimed = ProfileBuilder().sample("a", ["f"], 7, time_ns=-1)
    with pytest.raises(UsageError, match="no sample has a time"):
        timeline.write(untimed.build(), io.StringIO())
    timeline.write(untimed.sample("a", ["f"], 7, time_ns=5).build(), io.StringIO())
    timeline.write(ProfileBuilder().build(), io.StringIO())


def test_the_table_costs_nothing_and_suffixes_differ() -> None:
    assert len({format_.suffix for format_ in FORMATS.values()}) == len(FORMATS)
    script = "import sys, perf_offcpu.convert.registry; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
