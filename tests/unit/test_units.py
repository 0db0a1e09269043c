# SPDX-License-Identifier: Apache-2.0
"""Lengths of time and sizes: one syntax and one sentence, wherever a command line takes one."""

from __future__ import annotations

import mmap

import pytest

from perf_offcpu.cli import main
from perf_offcpu.errors import UsageError
from perf_offcpu.units import parse_size, parse_time, size_bytes, time_ns

S = 10**9


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        *(("5", 5_000_000), ("0.3ms", 300_000), ("250us", 250_000), ("1.5s", 1_500_000_000), ("7ns", 7)),
        *(("0", 0), (".5", 500_000), ("2.", 2_000_000), ("5m", 300 * S), ("1h", 3600 * S), ("1d", 86400 * S)),
        *(("2w", 14 * 86400 * S), ("0.0000019", 1), ("999999999999999d", 999999999999999 * 86400 * S)),
    ],
)
def test_times(text: str, ns: int) -> None:
    assert time_ns(text, "ms") == ns
    assert time_ns(text) == (ns if text[-1].isalpha() else None), "without a unit there must be a suffix"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("3", 3 * 4096), ("7B", 7), ("512K", 512 << 10), ("1.5G", 3 << 29), ("2T", 2 << 40)),
        *(("4m", 4 << 20), ("100MB", 100 << 20), ("100MiB", 100 << 20), ("0", 0)),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert size_bytes(text, 4096) == size
    assert size_bytes(text, 0) == (size if text[-1].isalpha() else None)


NUMBERS_THAT_ARE_NONE = ["", ".", "-1", "1e3", "5 minutes", "5x", "\u0665", "inf", "nan", "s", "M", "9" * 16]


@pytest.mark.parametrize("text", NUMBERS_THAT_ARE_NONE)
def test_others(text: str) -> None:
    assert time_ns(text, "s") is None and size_bytes(text) is None
    with pytest.raises(UsageError, match=r"^-x .*: not a length of time \(.*; a number alone is in s\)$"):
        parse_time("-x", text, "s")
    with pytest.raises(UsageError, match=r"^-x .*: not a size \(.*; a number alone is in pages\)$"):
        parse_size("-x", text, ("pages", mmap.PAGESIZE))


def test_numbers_of_a_file() -> None:
    times = parse_time("-x", 2, "ms"), parse_time("-x", 0.25, "ms")
    assert (*times, parse_size("-x", 7)) == (2_000_000, 250_000, 7)
    for value in (True, None, [1], float("nan"), -1, 1e300):
        with pytest.raises(UsageError, match="not a length of time"):
            parse_time("-x", value, "ms")


_TIME, _SIZE = "not a length of time (250us, 5ms, 60s, 2h", "not a size (512K, 100M, 2G"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("record --duration 5x", f"--duration 5x: {_TIME}; a number alone is in s)"),
        ("record --duration 0", "--duration 0: at least 1ns"),
        ("record --off-cpu-thresh inf", f"--off-cpu-thresh inf: {_TIME}; a number alone is in ms)"),
        ("record --off-cpu-thresh 12d", "--off-cpu-thresh 12d: at most 1000000s"),
        ("record --off-cpu-period 1ns", "--off-cpu-period 1ns: at least 1us"),
        ("record --min-block -1", f"--min-block -1: {_TIME}; a number alone is in us)"),
        ("record -m 1X", f"-m 1X: {_SIZE}; a number alone is in pages)"),
        ("record -m 0", "-m 0: at least 1B"),
        ("record -m 2G", "-m 2G: at most 1G"),
        ("record --call-graph cfi,x", f"--call-graph cfi,BYTES: x: {_SIZE}; a number alone is in bytes)"),
        ("record --call-graph cfi,64K", "--call-graph cfi,BYTES: 64K: at most 32768"),
        ("record --switch-output=5", "--switch-output 5: not a size (512K, 100M, 2G), a length of time ("),
        ("agent --dataset d --duration x", f"--duration x: {_TIME}; a number alone is in s)"),
        ("agent --dataset d --segment 2h", "--segment 2h: at most 1h"),
        ("agent --dataset d --off-cpu-period x", f"--off-cpu-period x: {_TIME}; a number alone is in ms)"),
        ("agent --dataset d --max-bytes x", f"--max-bytes x: {_SIZE}; a number alone is in bytes)"),
        ("agent --dataset d --spool-size 1M", "--spool-size 1M: at least 16M"),
        ("report --min-dur 5m5s", f"--min-dur 5m5s: {_TIME}; a number alone is in ms)"),
        ("report --time 1x,2", f"--time 1x: {_TIME}; a number alone is in s)"),
        ("push otlp=http://h --push-time x", f"--push-time x: {_TIME}; a number alone is in ms)"),
        ("fleet report . --since -2x", "--since: '-2x' is not a time: 2026-11-22T14:00 (UTC), 14:00 (today"),
        ("fleet expire . --older-than 30", f"--older-than 30: {_TIME})"),
        ("fleet expire . --older-than 3m", "--older-than 3m: at least 1h"),
    ],
)
def test_each_option_says_it_alike(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 129
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and f": {sentence}" in err
