# SPDX-License-Identifier: Apache-2.0
"""`scripts/vmtest`: kernels one after another, each with the Debian of its time, then the table."""

import argparse
import datetime
import shlex
import signal
import sys
from pathlib import Path

from vm import boot, boots, host, kernels, machines, roots, selection, table

DESCRIPTION = """\
Run tests of tests/kernel on Debian's kernels, under qemu's software emulation: those that a kernel may change
the answer of (tests/vm/selection.txt), or all. Needs root, and about 2 GB in the cache for each of bookworm,
trixie and sid, in whose roots the kernels of their time run."""
EPILOG = f"""\
  scripts/vmtest                              {", ".join(kernels.DEFAULT)}: what may differ
  scripts/vmtest --all 7.2                    all of tests/kernel, which takes hours
  scripts/vmtest 6.1 -- tests/kernel/test_record.py -k known
  scripts/vmtest 5.10                         too old: that recording says so in one sentence
  scripts/vmtest 7.2 --run 'perf-offcpu doctor'
  scripts/vmtest arm64:6.12                   the same on arm64; arm64 alone: the usual three
  scripts/vmtest --two-boots 6.12             that the second boot records without compiling, and without bcc
  scripts/vmtest --kept                       the last whole run on each, for Documentation/kernels.md

KERNEL is [ARCH:]VERSION[-PAGES] with the beginning of a version; the newest of Debian's suites that fits is
taken. Linux 5.15 is the oldest that can work. The output of a run is kept in {host.CACHE / "results"};
that of chosen tests or --run in a directory KERNEL.part there."""
OLDEST = (5, 15)
TOO_OLD = "tests/vm/too_old.py"
PATIENCE = "PERF_OFFCPU_TEST_PATIENCE=20"
PYTEST = (
    "PYTHONPATH=tests python -m pytest -p no:cacheprovider -p vm.at_once -v --tb=no "
    "--junitxml=/results/junit.xml -o timeout=900"
)


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    words, tests = host.split_words()
    parser = host.parser("vmtest", DESCRIPTION, EPILOG, "[OPTIONS] [KERNEL...] [-- TESTS]")
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", default=list(kernels.DEFAULT))
    parser.add_argument("--all", action="store_true", help="all of tests/kernel")
    parser.add_argument("--list", action="store_true", help="print what is run without --all, and why")
    parser.add_argument("--kept", action="store_true", help="run nothing: print the last whole run on each, by feature")
    parser.add_argument(
        "--two-boots", action="store_true", help="boot twice: compiled programs survive (tests/vm/boots.py)"
    )
    parser.add_argument("--root", choices=roots.SUITES, help="use this Debian, not that of the kernel's time")
    parser.add_argument("--run", metavar="COMMAND", help="run a command instead of the tests, show its output")
    parser.add_argument("--timeout", metavar="S", type=float, default=7200, help="per kernel (default 7200)")
    return parser.parse_args(words), tests


def _results(release: str, part: bool = False) -> Path:
    """Return the directory of a kernel's last run; a run of chosen tests has one of its own."""
    return host.CACHE / "results" / (f"{release}.part" if part else release)


def _command(kernel: kernels.Kernel, options: argparse.Namespace, tests: list[str]) -> str:
    chosen_tests = ["tests/kernel"] if options.all else list(selection.TESTS)
    selected = tests or (chosen_tests if kernel.version >= OLDEST else [TOO_OLD])
    return options.run or f"{PATIENCE} {PYTEST} {shlex.join(selected)}"


def _run_on(kernel: kernels.Kernel, options: argparse.Namespace, tests: list[str]) -> bool:
    """Run the command; return whether its status is 0. Its output is in the results."""
    suite = options.root or roots.suite_of(kernel)
    image = roots.image(suite, kernel.machine)
    results = _results(kernel.release, bool(tests or options.run))
    host.say(f"Linux {kernel.release} with Debian {suite}")
    outcome = boot.run_inside(kernel, image, _command(kernel, options, tests), results, options.timeout)
    host.say(f"  ended after {outcome.seconds:.0f} s, status {outcome.status}; see {results}")
    if (options.run or outcome.status is None) and (results / "output").exists():
        print((results / "output").read_text(errors="replace"), end="")
    return outcome.status == 0


def _boot_twice(kernel: kernels.Kernel, options: argparse.Namespace) -> bool:
    host.say(f"Linux {kernel.release}, two boots")
    image = roots.image(options.root or roots.suite_of(kernel), kernel.machine)
    return boots.survive(kernel, image, _results(kernel.release), options.timeout)


def _table(releases: list[str], part: bool) -> str:
    """Return kept results by feature, those of chosen tests by test; then checkout and day of each run."""
    found = {name.replace("-cloud-", "-").removesuffix("-amd64"): _results(name, part) for name in releases}
    runs = {
        name: table.read(path / "junit.xml") if (path / "junit.xml").exists() else table.read_console(path / "console")
        for name, path in found.items()
    }
    lines = [table.render(runs)] if part else [table.matrix(runs, selection.FEATURES), "", *table.failures(runs)]
    for name, path in found.items():
        checkout = path / "checkout"
        if checkout.exists():
            day = datetime.date.fromtimestamp(checkout.stat().st_mtime)
            lines.append(f"{name}: checkout {checkout.read_text().strip()}, {day}")
    return "\n".join(lines)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that qemu ends, too
    options, tests = _arguments()
    if options.list:
        print(selection.LIST, end="")
        return 0
    if options.kept:
        print(_table([kernels.find(name)[1] for name in kernels.each_of(options.kernels)], bool(tests)))
        return 0
    host.check()
    chosen = [kernels.fetch(name) for name in kernels.each_of(options.kernels)]
    for machine in {kernel.machine.arch: kernel.machine for kernel in chosen}.values():
        machines.prepare(machine)
    if options.two_boots:
        return int(not all([_boot_twice(kernel, options) for kernel in chosen]))
    good = [_run_on(kernel, options, tests) for kernel in chosen]
    if not options.run:
        print(_table([kernel.release for kernel in chosen], bool(tests)))
        if not (tests or options.all):
            print(f"{selection.share()}: what a kernel may change (vmtest --list); all: vmtest --all")
    return int(not all(good))


sys.exit(main())
