# SPDX-License-Identifier: Apache-2.0
"""What people type because perf knows it: options that change nothing here, and advice on those that are not.

Only what is refused reaches the advice: it takes the place of "unrecognized arguments".
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping

_AS_ALWAYS = {
    "record": (
        ("--off-cpu",),
        ("-T", "--timestamp"),
        ("-P", "--period"),
        ("--sample-cpu",),
        ("--sample-identifier",),
    ),
    "report": (
        ("--stdio",),
        ("--no-children",),
        ("-n", "--show-nr-samples"),
        ("--show-total-period",),
        ("-v", "--verbose"),
    ),
    "script": (("-v", "--verbose"),),
}
_DUMP = "perf-offcpu dump prints all records, with their times"
_FILTER = "it chooses by --comm, --pid, --tid, --cpu, --cgroup, --state, --class and --time, not by function"
_SCRIPTS = (
    "it runs no scripts: perf script does, see 'perf-offcpu scripts' for ours, 'convert' for other formats"
)

_COMMON = {
    ("-D", "--dump-raw-trace"): _DUMP,
    ("-S", "--symbols", "-d", "--dsos", "--parent", "--symbol-filter"): _FILTER,
    ("--max-stack",): "stacks are shown whole",
    ("--itrace", "--stitch-lbr", "--insn-trace", "--call-trace"): "it decodes no processor traces: perf does",
    ("--guest", "--guestmount", "--guestkallsyms", "--guestvmlinux"): "it knows nothing of guests: perf does",
    ("--percent-limit", "--percentage"): "report --limit N bounds the rows of each table",
}
_ADVICE: Mapping[str, Mapping[tuple[str, ...], str]] = {
    "record": {
        ("-D", "--delay"): "it begins at once; script, report and convert take --time",
        ("-i", "--no-inherit"): "children are recorded, too; choose among them when reading, with --pid",
        ("-k", "--clockid"): "times are always of CLOCK_MONOTONIC",
        ("--user-callchains",): "--no-kernel-callchains leaves the kernel's part out",
        ("-K", "--all-kernel", "-U", "--all-user"): "name the event so: -e cycles:k, -e cycles:u",
        ("-B", "--no-buildid", "-N", "--no-buildid-cache"): "files are copied for --buildid-cache alone",
        ("--filter",): "it chooses by -p, -t, -u, -C, -G, --comm, --switch-states and --min-block",
        ("-z",): "levels are -z1 to -z22; without -z nothing is compressed",
        ("-b", "--branch-any", "-j", "--branch-filter", "-d", "--data", "-W", "--weight", "-I", "--intr-regs",
         "--user-regs", "--phys-data", "-S", "--snapshot", "--overwrite", "--aux-sample", "--per-thread",
         "--control", "--group", "-s", "--stat", "-R", "--raw-samples",
         "-n", "--no-samples"): "perf record does that; record with both, and give both files to -i",
    },
    "report": _COMMON
    | {
        ("--tui", "--gtk", "--stdio2"): "it prints text, through a pager on a terminal",
        ("-F", "--fields"): "columns are fixed; --sort says by what, --json has everything",
        ("--header", "--header-only", "-I", "--show-info"): "perf-offcpu script --header-only prints that",
        ("--stats", "--tasks", "--mmaps", "--ns"): _DUMP,
        ("--group", "--mem-mode", "-b", "--branch-stack"): "perf report does that, on what inject writes",
        ("-q", "--quiet", "-w", "-t", "--field-separator"): "for programs there is --json",
    },
    "script": _COMMON
    | {
        ("-s", "--script", "-g", "--gen-script", "-l", "--list", "record", "report"): _SCRIPTS,
        ("-I", "--show-info"): "--header prints what is known of machine and run",
        ("--reltime", "--deltatime"): "times are the recording's; -F +switch_out says when waits began",
        ("--tod",): "--header says when the recording was made",
    },
    "inject": {
        ("-b", "--build-ids", "--buildid-all"): "build-ids are kept; perf inject -b adds more",
        ("-s", "--sched-stat"): "--switches makes off-cpu time of context switches",
        ("-j", "--jit"): "perf inject --jit comes first; its names are kept",
        ("--itrace", "--strip"): "it decodes no processor traces: perf does",
    },
}  # fmt: skip

VERBS = {
    "version": "perf-offcpu --version",
    "help": "perf-offcpu --help, and perf-offcpu VERB --help",
    "diff": "perf-offcpu convert --flamegraph --diff OLD",
    "merge": "several -i of perf-offcpu report, script or convert, which show recordings as one",
    "evlist": "perf-offcpu script --header-only",
    "buildid-list": "perf-offcpu archive, which packs files by build-id",
    "sched": "perf-offcpu report, which reads recordings of perf sched, too",
    "trace": "perf-offcpu script -F trace:comm,time,event,trace",
}
"""Verbs of perf → what to use here. Those of which there is nothing here are perf's."""


def add_as_always(parser: argparse.ArgumentParser, verb: str) -> None:
    """Accept the options that ask for what is done anyway."""
    for names in _AS_ALWAYS[verb]:
        parser.add_argument(*names, action="store_true", dest="_as_always", help=argparse.SUPPRESS)


def advice_of(verb: str) -> dict[str, str]:
    """Option that is refused → a sentence without full stop."""
    return {name: text for names, text in _ADVICE.get(verb, {}).items() for name in names}


def advice_on(words: Iterable[str], advice: Mapping[str, str]) -> str | None:
    """What to say of words that a parser did not know; None if nothing."""
    for word in words:
        option = word.partition("=")[0]
        for name in (option, option[:2] if option[:2] != "--" else option):
            if name in advice:
                return f"{name}: {advice[name]}"
        if not word.startswith("-") and os.path.exists(word):
            return f"{word}: name the recording with -i"
    return None
