# SPDX-License-Identifier: Apache-2.0
"""Options of recordings and of samples, common to all verbs that show them."""

import json
import shutil
from pathlib import Path

import pytest
from builders.examples import examples
from builders.refused import output, refused

import perf_offcpu
from perf_offcpu.cli import main
from perf_offcpu.commands.shared.profile import split_list

TESTS = Path(__file__).resolve().parents[2]
DEMO = [
    *("-f", "-i", str(TESTS / "data" / "demo.data"), "--symfs", str(TESTS / "data" / "demo.symfs")),
    *("--kallsyms", str(TESTS / "data" / "demo.kallsyms")),
]


def folded_total(capsys: pytest.CaptureFixture[str], *options: str) -> int:
    lines = output(capsys, "convert", "--folded", "-o", "-", *DEMO, *options).splitlines()
    return sum(int(line.rpartition(" ")[2]) for line in lines)


def report_total(capsys: pytest.CaptureFixture[str], *options: str) -> int:
    return int(json.loads(output(capsys, "report", "--json", *DEMO, *options))["subject"]["weight"])


def script_total(capsys: pytest.CaptureFixture[str], *options: str) -> int:
    return sum(map(int, output(capsys, "script", "-F", "period", "--event", "offcpu-time", *DEMO, *options).split()))


@pytest.mark.parametrize("options", [
    [], ["--class", "lock,pipe", "--class=disk"], ["--state", "D"], ["--cpu", "0-0"], ["--time", "0%-50%"],
    ["--min-dur", "12ms"], ["--idle", "only"], ["--comm", "poller,sleeper", "--time", "10%/2", "--class", "sleep"],
])  # fmt: skip
def test_every_verb_selects_the_same(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    totals = {total(capsys, *options) for total in (folded_total, report_total, script_total)}
    assert len(totals) == 1 and (totals.pop() == folded_total(capsys)) == (options == [])


@pytest.mark.parametrize("verb", [["report"], ["script"], ["convert", "--folded", "-o", "-"]])
def test_an_unknown_name_is_answered_with_those_that_are(capsys: pytest.CaptureFixture[str], verb: list[str]) -> None:
    assert main([*verb, *DEMO, "--comm", "lockers", "--class", "lock"]) == 0
    answer = "perf-offcpu: no comm lockers in the recording, which has locker-a, locker-b, "
    assert capsys.readouterr().err.startswith(answer)
    assert main([*verb, *DEMO, "--comm", "locker-a", "--class", "lock"]) == 0
    assert "which has" not in capsys.readouterr().err


def test_parts_of_the_time_add_up_and_impossible_ids_select_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [report_total(capsys, "--time", f"25%/{number}") for number in (1, 2, 3, 4)]
    assert all(parts) and sum(parts) == report_total(capsys)
    for huge in ("2147483648", "9" * 30):
        assert output(capsys, "script", "-F", "comm", *DEMO, "--pid", huge) == ""
    assert report_total(capsys, "--tid", f"29439,{'9' * 30}") == report_total(capsys, "--tid", "29439") > 0
    for option, begin in (("--pid", ""), ("--cpu", ""), ("--cgroup", ""), ("--time", "1%/"), ("--time", "1%-")):
        word = f"{begin}{'9' * 5000}"  # more digits than Python converts
        assert f"'{word[:9]}" in refused(capsys, "report", *DEMO, option, word + "%" * (begin == "1%-"))


def test_script_shows_chosen_waits_alone_and_convert_selects_states(capsys: pytest.CaptureFixture[str]) -> None:
    for options, events in ((["--class", "lock"], {"offcpu-time:"}), ([], {"offcpu-time:", "cpu-clock:"})):
        assert set(output(capsys, "script", "-F", "event", *DEMO, *options).split()) == events
    assert "sleep]" not in output(capsys, "convert", "--folded", "-o", "-", *DEMO, "--state", "D")
    assert "interruptible sleep]" in output(capsys, "convert", "--folded", "-o", "-", *DEMO, "--state")


@pytest.mark.parametrize("verb", [["report"], ["script"], ["convert", "--folded", "-o", "-"]])
@pytest.mark.parametrize(("option", "value"), examples("unit/examples.txt", "wrong values"))
def test_wrong_value_is_one_line(capsys: pytest.CaptureFixture[str], verb: list[str], option: str, value: str) -> None:
    assert value in refused(capsys, *verb, *DEMO, option, value)


@pytest.mark.parametrize(("words", "sentence"), examples("unit/sentences.txt", "symbols"))
def test_missing_symbols_are_reported(capsys: pytest.CaptureFixture[str], words: str, sentence: str) -> None:
    said = refused(capsys, "report", "-f", "-i", str(TESTS / "data" / "demo.data"), *words.split())
    assert said.startswith(f"perf-offcpu report: {sentence}")


def test_lists_of_names() -> None:
    assert split_list(["a,b", " c ", ""]) == ("a", "b", "c")
    assert split_list(["cpu/event=0x3c,umask=1/u,offcpu-time"]) == ("cpu/event=0x3c,umask=1/u", "offcpu-time")
    assert split_list(["kworker/0:1,sh"]) == ("kworker/0:1", "sh")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make two copies of a recording and return the words that name them."""
    monkeypatch.chdir(tmp_path)
    for name in ("run1.data", "run2.data"):
        shutil.copy(TESTS / "data" / "demo.data", name)
    return ["-f", "-i", "run1.data", "-i", "run2.data"]


def test_report_sums_up(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def total(*words: str) -> int:
        events = json.loads(output(capsys, "report", "--json", *words))["events"]
        (weight,) = (int(event["weight"]) for event in events if event["name"] == "offcpu-time")
        return weight

    assert total(*runs) == 2 * total(*runs[:3])
    document = json.loads(output(capsys, "report", "--json", "--apart", *runs))
    assert document["recording"]["file"] == "run1.data, run2.data"
    assert {one["pid"] // 10_000_000 for one in document["threads"] if one["pid"] > 0} == {0, 1}


def test_output_is_named_after_an_input_and_replaces_none(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "--folded", *runs]) == 0 and Path("run1.data.folded").stat().st_size
    assert "same file" in refused(capsys, "convert", "--folded", *runs, "-o", "run2.data")


def test_script_prints_all(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    one = output(capsys, "script", "-F", "comm,tid,time", *runs[:3]).splitlines()
    both = output(capsys, "script", "-F", "comm,tid,time", *runs).splitlines()
    assert sorted(both) == sorted(one * 2) and len(one) > 100


def test_load_takes_several(runs: list[str]) -> None:
    one, both = perf_offcpu.load("run1.data"), perf_offcpu.load("run1.data", "run2.data", from_start=True)
    assert len(both.samples) == 2 * len(one.samples) and both.samples.pid.max() > 10_000_000


@pytest.mark.parametrize(("words", "sentence"), examples("unit/sentences.txt", "inputs"))
def test_what_is_refused(words: str, sentence: str, runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in refused(capsys, *words.split()) and not Path("x").exists()
