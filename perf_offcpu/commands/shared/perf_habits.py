# SPDX-License-Identifier: Apache-2.0
"""Accept or explain options and verbs of perf that do not exist here.

Some are accepted without effect; for others advice replaces argparse's "unrecognized arguments".
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping

_WITHOUT_EFFECT = {
    "record": "--off-cpu -T --timestamp -P --period --sample-cpu --sample-identifier",
    "report": "--stdio --no-children -n --show-nr-samples --show-total-period -v --verbose",
    "script": "-v --verbose",
}
"""Verb → options that request its default behaviour."""
_DUMP = "perf-offcpu dump prints all records, with their times"
_FILTER = "it selects by --comm, --pid, --tid, --cpu, --cgroup, --state, --class and --time, not by function"
_SCRIPTS = (
    "it runs no scripts: perf script does, see 'perf-offcpu scripts' for ours, 'convert' for other formats"
)
_GUESTS = "guests are not supported: perf does that"

_COMMON = {
    ("-D", "--dump-raw-trace"): _DUMP,
    ("-S", "--symbols", "-d", "--dsos", "--parent", "--symbol-filter"): _FILTER,
    ("--max-stack",): "stacks are shown whole",
    ("--itrace", "--stitch-lbr", "--insn-trace", "--call-trace"): "it decodes no AUX area traces: perf does",
    ("--guest", "--guestmount", "--guestkallsyms", "--guestvmlinux"): _GUESTS,
    ("--percent-limit", "--percentage"): "report --limit N bounds the rows of each table",
}
_ADVICE: Mapping[str, Mapping[tuple[str, ...], str]] = {
    "record": {
        ("-D", "--delay"): "it starts at once; script, report and convert take --time",
        ("-i", "--no-inherit"): "child tasks are recorded, too; select among them when reading, with --pid",
        ("-k", "--clockid"): "timestamps are always CLOCK_MONOTONIC",
        ("--user-callchains",): "--no-kernel-callchains leaves kernel callchains out",
        ("-K", "--all-kernel", "-U", "--all-user"): "use event modifiers: -e cycles:k, -e cycles:u",
        ("-B", "--no-buildid", "-N", "--no-buildid-cache"): "files are copied only with --buildid-cache",
        ("--filter",): "it selects by -p, -t, -u, -C, -G, --comm, --switch-states and --min-block",
        ("-z",): "levels are -z1 to -z22; without -z nothing is compressed",
        ("-b", "--branch-any", "-j", "--branch-filter", "-d", "--data", "-W", "--weight", "-I", "--intr-regs",
         "--user-regs", "--phys-data", "-S", "--snapshot", "--overwrite", "--aux-sample", "--per-thread",
         "--group", "-s", "--stat", "-R", "--raw-samples",
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
        ("-I", "--show-info"): "--header prints what is known about machine and run",
        ("--reltime", "--deltatime"): "-F +switch_out prints when waits began",
        ("--tod",): "--header prints when the recording was made",
    },
    "inject": {
        ("-b", "--build-ids", "--buildid-all"): "build-ids are kept; perf inject -b adds more",
        ("-s", "--sched-stat"): "--switches adds off-cpu time from context switches",
        ("-j", "--jit"): "perf inject --jit comes first; its names are kept",
        ("--itrace", "--strip"): "it decodes no AUX area traces: perf does",
    },
}  # fmt: skip

VERBS = {
    "version": "perf-offcpu --version",
    "help": "perf-offcpu --help, and perf-offcpu VERB --help",
    "diff": "perf-offcpu report --diff OLD, or convert --flamegraph --diff OLD",
    "merge": "several -i of perf-offcpu report, script or convert, which show recordings as one",
    "evlist": "perf-offcpu script --header-only",
    "buildid-list": "perf-offcpu archive, which packs files by build-id",
    "sched": "perf-offcpu report, which reads recordings of perf sched, too",
    "trace": "perf-offcpu script --event offcpu-time -F comm,tid,time,period,syscall,object",
}
"""Verb of perf → what to use here."""


def accept_without_effect(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add perf's options that request the default behaviour of the verb, hidden from the help."""
    names = _WITHOUT_EFFECT[verb].split()
    parser.add_argument(*names, action="store_true", dest="_without_effect", help=argparse.SUPPRESS)


def advice_of(verb: str) -> dict[str, str]:
    """Return option of perf → replacement, as a clause without full stop."""
    return {name: text for names, text in _ADVICE.get(verb, {}).items() for name in names}


def advice_on(words: Iterable[str], advice: Mapping[str, str]) -> str | None:
    """Return the advice on the first unrecognized argument that has one; None for arguments without."""
    for word in words:
        option = word.partition("=")[0]
        for name in (option, option[:2] if option[:2] != "--" else option):
            if name in advice:
                return f"{name}: {advice[name]}"
        if not word.startswith("-") and os.path.exists(word):  # direct: words an advice
            return f"{word}: name the recording with -i"
    return None
