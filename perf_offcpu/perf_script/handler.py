# SPDX-License-Identifier: Apache-2.0
"""Handle the samples of `perf script -s scripts/offcpu.py`, and run the script by hand.

Inside perf (up to 7.3) its dicts become a Recording (`events`), and the script is `perf-offcpu convert` from
there on. perf calls `process_event(dict)` for each sample, in time order, and passes no mappings, comms or
losses: these are read from perf's input file, which its command line names. For a pipe there is no file: then
kernel names are those of perf, and user addresses of raw callchains stay addresses, with a note.

`sample["values"]` is never read: that crashes perf.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from perf_offcpu.errors import FormatError
from perf_offcpu.model.profile import Profile
from perf_offcpu.perf_script.events import Event, name_by_perf, profile_of_file, recorded_in_pipe
from perf_offcpu.symbolize.symbolizer import symbolize

_USUAL = "perf.data"
_TAKEN = ("pid", "tid", "cpu", "ip", "time", "period", "cpumode")
PIPE_NOTE = "perf reads a pipe: user addresses of off-cpu samples cannot be named; give perf a file with -i"


class PerfScriptHandler:
    """Handlers that perf calls, for `convert` with the arguments after the script's name.

    No exception may leave a handler: perf would call abort(). The first one is kept and the later samples are
    ignored; `trace_end` prints it and ends perf with a status.

    Args:
        argv: arguments of `perf-offcpu convert`; `--folded` and standard output are the defaults, and the
            output may be a plain word: `-- --folded OUT`.

    Raises:
        SystemExit: the arguments are wrong, or ask for help.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._events: list[Event] = []
        self._problem: Exception | None = None
        self._args = argparse.Namespace()
        status = _guarded(lambda: self._parse(argv))
        if not vars(self._args):
            sys.exit(status)

    def _parse(self, argv: Sequence[str]) -> int:
        self._args = _parse_arguments(argv)
        return 0

    def process_event(self, event: Event) -> None:
        """Keep one sample: as little as possible, since perf calls this for each."""
        try:
            if self._problem is None:
                sample = event["sample"]
                taken = {key: sample[key] for key in _TAKEN}
                taken |= {"name": event["ev_name"], "attr": event["attr"], "comm": event["comm"]}
                taken |= {"raw": event["raw_buf"], "chain": event["callchain"]}
                self._events.append(taken)
        except Exception as problem:
            self._problem = problem

    def trace_end(self) -> None:
        """Write the output.

        Raises:
            SystemExit: with a status other than 0, after one line on stderr.
        """
        from perf_offcpu.commands.convert import convert, prepared

        if (path := _input_of(_perf_command_line())) not in (None, _USUAL):
            self._args.input = [path]  # for commands that the page shows
        args = self._args
        if status := _guarded(lambda: convert(args, lambda options: prepared(args, self._profile(), options))):
            sys.exit(status)

    def _profile(self) -> Profile:
        from perf_offcpu.analysis.select import select_samples
        from perf_offcpu.commands.shared.profile import selection_from_args, symbol_options

        if self._problem is not None:
            raise FormatError("perf script", "sample", f"not understood: {self._problem!r}")
        path, options = _input_of(_perf_command_line()), symbol_options(self._args)
        if path is None:
            print(f"offcpu.py: {PIPE_NOTE}", file=sys.stderr)
            profile = name_by_perf(symbolize(recorded_in_pipe(self._events), options), self._events)
        else:
            profile = profile_of_file(path, self._events, options)
        return select_samples(profile, selection_from_args(self._args))


def main(argv: Sequence[str]) -> int:
    """Run the script by hand, or from a perf that runs scripts as programs (7.4 on)."""
    from perf_offcpu.commands.convert import run

    return _guarded(lambda: run(_parse_arguments(argv)))


def _parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the script's command line; raise UsageError if it is wrong, SystemExit if it asks for help."""
    from perf_offcpu.commands import convert
    from perf_offcpu.commands.shared.parsers import Parser
    from perf_offcpu.convert.registry import FORMATS

    words = list(argv[1:] if argv[:1] == ["--"] else argv)
    if not any(word == f"--{name}" for word in words for name in FORMATS):
        words.insert(0, "--folded")
    top: argparse.ArgumentParser = Parser(prog="offcpu.py")
    verb = top.add_subparsers()
    convert.add_parser(verb)
    parser = verb.choices["convert"]
    parser.prog = "offcpu.py"
    parser.add_argument("out", nargs="?", metavar="OUT", help="same as -o OUT; default: -")
    args = parser.parse_args(words)
    args.output = args.output or args.out or "-"
    return args


def _guarded(run: Callable[[], int]) -> int:
    from perf_offcpu.cli import guard

    return guard("offcpu.py", run)


def _input_of(argv: Sequence[str]) -> str | None:
    """Return the file that a `perf script` command line reads; None for a pipe."""
    name = _USUAL
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        if word == "--":
            break
        if word in ("-i", "--input"):
            name = following
        elif word.startswith("--input="):
            name = word.removeprefix("--input=")
        elif word.startswith("-i") and not word.startswith("--"):
            name = word[2:]
    return None if name == "-" else name


def _perf_command_line() -> list[str]:
    """Return the arguments of the process that this script runs in."""
    with open("/proc/self/cmdline", "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
