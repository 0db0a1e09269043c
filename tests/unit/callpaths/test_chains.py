# SPDX-License-Identifier: Apache-2.0
"""Chains of wakers in folded stacks and flame graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders.converted import converted
from builders.profile import ProfileBuilder
from builders.waits import Waits, random_waits, wait, with_waits
from hypothesis import given

from perf_offcpu.callpaths import chains
from perf_offcpu.callpaths.chains import waker_chains
from perf_offcpu.cli import main
from perf_offcpu.convert.flamegraph.page import describe
from perf_offcpu.convert.folded import folded_totals
from perf_offcpu.convert.registry import Options
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import SampleFlag

DATA = Path(__file__).resolve().parents[2] / "data"


def shown(profile: Profile) -> dict[str, int]:
    return folded_totals(profile, Options(wakers=True, chains=waker_chains(profile, Options())))


@pytest.fixture
def request_() -> ProfileBuilder:
    """1 waits for 2, which waits for 3, which a timer wakes; 3 has also waited before."""
    builder = ProfileBuilder()
    wait(builder, 3, 10, 90, waker=1, waker_path=["main1", "old"])
    wait(builder, 3, 110, 1100, waker=9, flags=SampleFlag.WAKER_INTERRUPT, waker_path=["irq"])
    wait(builder, 2, 100, 1600, waker=3, waker_path=["main3", "write"])
    return wait(builder, 1, 100, 1900, waker=2, queued=50, waker_path=["main2", "answer"])


def test_a_chain_leads_to_the_first_cause(request_: ProfileBuilder) -> None:
    profile = request_.build()
    of_1 = "client;main1;sleep_in_1;--;answer_[w];main2_[w];server_[w]"
    of_2 = "--;write_[w];main3_[w];disk_[w];--;irq_[w];[interrupt]"
    assert shown(profile) == {
        f"{of_1};{of_2}": 1800,
        f"server;main2;sleep_in_2;{of_2}": 1500,
        "disk;main3;sleep_in_3;--;irq_[w];[interrupt]": 990,
        # The client has no wait that ended before that.
        "disk;main3;sleep_in_3;--;old_[w];main1_[w];client_[w]": 80,
    }


def test_without_stacks_the_names_of_wakers_are_a_chain() -> None:
    builder = ProfileBuilder()
    wait(builder, 2, 100, 1600, waker=3)
    wait(builder, 1, 100, 1900, waker=2)
    assert "client;main1;sleep_in_1;--;server_[w];--;[unknown]_[w]" in shown(builder.build())


def test_a_wait_of_the_waker_before_the_sleeper_waited_is_no_cause() -> None:
    builder = ProfileBuilder()
    wait(builder, 2, 100, 200, waker=3)
    wait(builder, 1, 300, 900, waker=2)
    assert "client;main1;sleep_in_1;--;server_[w]" in shown(builder.build())


def test_chains_are_cut_where_lines_become_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = ProfileBuilder()
    for tid in range(1, 9):
        wait(builder, tid, 0, 1000 - 10 * tid, waker=tid + 1)
    profile = builder.build()
    assert max(line.count(";--;") for line in shown(profile)) == 8
    monkeypatch.setattr(chains, "MAX_HOPS", 3)
    assert max(line.count(";--;") for line in shown(profile)) == 3


@given(random_waits())
def test_weights_are_those_of_the_waits(waits: Waits) -> None:
    profile = with_waits(waits).build()
    totals = shown(profile)
    assert sum(totals.values()) == int(profile.samples.period.sum())
    bare: dict[str, int] = {}
    for line, weight in totals.items():
        bare[line.partition(";--;")[0]] = bare.get(line.partition(";--;")[0], 0) + weight
    assert bare == folded_totals(profile, Options())


def test_pictures_and_lines_agree(request_: ProfileBuilder) -> None:
    profile = request_.build()
    options: dict[str, Any] = {"wakers": True, "chains": waker_chains(profile, Options())}
    document = describe(profile, Options(**options))
    assert sum(document["layers"][0]["lo"]) == sum(shown(profile).values())
    assert "answer_[w]" in converted("flamegraph", profile, **options)


@pytest.mark.parametrize("selection", [(), ("--time", "10%-80%"), ("--idle", "hide")])
def test_a_recording(selection: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    given = ("convert", "-f", "-i", str(DATA / "perf-7.2" / "sched.data"), "--folded", "-o", "-", *selection)
    assert main([*given]) == 0
    plain = capsys.readouterr().out.splitlines()
    assert main([*given, "--wakers"]) == 0
    chained = capsys.readouterr().out.splitlines()
    plain_sum, chained_sum = (
        sum(int(line.rpartition(" ")[2]) for line in lines) for lines in (plain, chained)
    )
    assert plain_sum == chained_sum > 0
    assert any(line.count(";--;") > 1 for line in chained)


def test_without_wakers_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    given = ("convert", "-f", "-i", str(DATA / "demo.data"), "--flamegraph", "--wakers", "-o", str(out))
    assert main([*given]) == 129 and "none was recorded" in capsys.readouterr().err
    assert main([*given, "--diff", str(DATA / "demo.data")]) == 129
    assert "no --diff" in capsys.readouterr().err and not out.exists()
