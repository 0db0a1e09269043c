# SPDX-License-Identifier: Apache-2.0
"""Command lines of `record` as RecordOptions."""

import pytest
from builders.examples import examples

from perf_offcpu.collect.bpf.config import Targets
from perf_offcpu.collect.options import RecordOptions, Rotation
from perf_offcpu.commands.record.command import add_parser
from perf_offcpu.commands.record.options import options_of
from perf_offcpu.commands.shared.parsers import Parser
from perf_offcpu.errors import UsageError


def options(*argv: str) -> RecordOptions:
    verbs = Parser().add_subparsers()
    add_parser(verbs)
    return options_of(verbs.choices["record"].parse_args(argv), ["perf-offcpu", "record", *argv])


def test_defaults() -> None:
    chosen = options()
    assert chosen.target.kind is Targets.ALL
    assert (chosen.command, chosen.output, chosen.threshold_ns) == ((), "perf.data", 1_000_000)
    assert [event.name for event in chosen.events] == ["cpu-clock"]
    assert (chosen.frequency_hz, chosen.period, chosen.kernel_stacks) == (99, 0, True)
    assert (chosen.ring_bytes, chosen.realtime_priority, chosen.duration_s) == (0, 0, None)
    assert chosen.argv == ("perf-offcpu", "record")
    assert options("-F", "max").frequency_hz > 99, "the kernel's limit"
    assert options("--off-cpu", "-T", "--sample-cpu", "--", "true").command == ("true",), "perf's, without effect"


@pytest.mark.parametrize("separator", [(), ("--",)])
def test_words_after_the_command_belong_to_it(separator: tuple[str, ...]) -> None:
    found = options("-e", "none", *separator, "ls", "-a", "-o", "x")
    assert found.command == ("ls", "-a", "-o", "x") and found.target.kind is Targets.COMMAND
    assert (found.output, found.events) == ("perf.data", ())


def test_every_other_option() -> None:
    chosen = options(
        *("-p", "1,2", "-o", "out", "-c", "7", "-m", "1M", "-r", "5", "--duration", "0.5"),
        *("-e", "cs", "-e", "cycles:u", "--no-kernel-callchains", "-g", "-q", "--off-cpu-thresh", "0.25"),
        *("--min-block", "7"),
    )
    assert (chosen.target.kind, chosen.target.ids) == (Targets.PIDS, (1, 2))
    assert (chosen.output, chosen.period, chosen.ring_bytes) == ("out", 7, 1 << 20)
    assert (chosen.realtime_priority, chosen.duration_s, chosen.kernel_stacks) == (5, 0.5, False)
    assert [event.name for event in chosen.events] == ["cs", "cycles:u"]
    assert (chosen.threshold_ns, chosen.min_block_ns) == (250_000, 7_000)


@pytest.mark.parametrize(("words",), examples("unit/examples.txt", "impossible options of record"))
def test_impossible_values_name_the_option(words: str) -> None:
    with pytest.raises(UsageError, match=words.split(maxsplit=1)[0].rstrip("023x")):
        options(*words.split())


def test_more_digits_than_python_converts_are_no_frequency() -> None:
    with pytest.raises(UsageError, match="not a frequency in Hz"):
        options("-F", "9" * 5000)
    with pytest.raises(UsageError, match="not a frequency in Hz"):
        options("-F", "0" * 5000 + "9")


def test_compression_levels_are_attached_and_leave_the_command_alone() -> None:
    assert options().compression_level == 1
    assert options("-o", "-").compression_level == options("-z0").compression_level == 0
    found = options("-z", "sleep", "1")
    assert (found.compression_level, found.command) == (1, ("sleep", "1"))
    assert options("-z22", "sleep").compression_level == 22
    assert options("--compression-level=7").compression_level == 7


def test_rotation() -> None:
    assert options().rotation is None and options("--switch-output", "-a").rotation == Rotation()
    assert options("--switch-output=5M", "--switch-max-files", "3").rotation == Rotation(5 << 20, 0, 3)


@pytest.mark.parametrize(("words", "stack_bytes"), examples("unit/examples.txt", "copies of stacks"))
def test_how_user_stacks_are_taken(words: str, stack_bytes: str) -> None:
    assert options(*words.split()).stack_bytes == int(stack_bytes)


@pytest.mark.parametrize("option", ["-p", "-t", "-u", "-C", "-G", "--comm"])
def test_an_empty_list_is_an_error(option: str) -> None:
    with pytest.raises(UsageError, match=f"^{option} '': nothing is named"):
        options(option, "")
