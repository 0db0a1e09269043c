# SPDX-License-Identifier: Apache-2.0
"""`scripts/vmtest`: kernels one after another, each with the Debian of its time, then the table."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys

from vm import boot, host, kernels, roots, selection, table

DESCRIPTION = """\
Run tests of tests/kernel on Debian's kernels, under qemu's software emulation: those that a kernel may change
the answer of (tests/vm/selection.py), or all. Needs root, and about 2 GB in the cache for each of bookworm,
trixie and sid, in whose roots the kernels of their time run."""
EPILOG = f"""\
  scripts/vmtest                              {", ".join(kernels.DEFAULT)}: what may differ
  scripts/vmtest --all 7.2                    all of tests/kernel, which takes hours
  scripts/vmtest 6.1 -- tests/kernel/test_record.py -k known
  scripts/vmtest 5.10                         too old: that recording says so in one sentence
  scripts/vmtest 7.2 --run 'perf-offcpu doctor'

KERNEL is the beginning of a version; the newest of Debian's suites that fits is taken. Linux 5.15 is the
oldest that can work. Everything that a run gave is kept: {host.CACHE / "results"}."""
OLDEST = (5, 15)
TOO_OLD = "tests/vm/too_old.py"
PATIENCE = "PERF_OFFCPU_TEST_PATIENCE=20"
PYTEST = (
    "PYTHONPATH=tests python -m pytest -p no:cacheprovider -p vm.at_once -v --tb=no "
    "--junitxml=/results/junit.xml -o timeout=900"
)


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="vmtest",
        description=DESCRIPTION,
        epilog=EPILOG,
        usage="%(prog)s [OPTIONS] [KERNEL...] [-- TESTS]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", default=list(kernels.DEFAULT))
    parser.add_argument("--all", action="store_true", help="all of tests/kernel")
    parser.add_argument("--list", action="store_true", help="print what is run without --all, and why")
    parser.add_argument("--root", choices=roots.SUITES, help="use this Debian, not that of the kernel's time")
    parser.add_argument(
        "--run", metavar="COMMAND", help="run a command instead of the tests, show its output"
    )
    parser.add_argument("--timeout", metavar="S", type=float, default=7200, help="per kernel (default 7200)")
    return parser.parse_args(words[:at]), words[at + 1 :]


def main() -> int:
    """Boot each kernel; 0 if every test passed on every one."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that qemu ends, too
    options, tests = _arguments()
    if options.list:
        print(selection.text(), end="")
        return 0
    host.check()
    chosen = [kernels.fetch(name) for name in options.kernels]
    runs: dict[str, table.Run] = {}
    bad = False
    for kernel in chosen:
        suite = options.root or roots.suite_of(kernel)
        chosen_tests = ["tests/kernel"] if options.all else list(selection.TESTS)
        selected = tests or (chosen_tests if kernel.version >= OLDEST else [TOO_OLD])
        command = options.run or f"{PATIENCE} {PYTEST} {shlex.join(selected)}"
        image = roots.image(suite)
        host.say(f"Linux {kernel.release} with Debian {suite}")
        results = host.CACHE / "results" / kernel.release
        outcome = boot.run_inside(kernel, image, command, results, options.timeout)
        host.say(f"  ended after {outcome.seconds:.0f} s, status {outcome.status}; see {results}")
        bad |= outcome.status != 0
        run = (
            table.read(results / "junit.xml")
            if outcome.status is not None
            else table.read_console(results / "console")
        )
        runs[kernel.release.removesuffix("-cloud-amd64")] = run
        if (options.run or outcome.status is None) and (results / "output").exists():
            print((results / "output").read_text(errors="replace"), end="")
    if not options.run:
        print(table.render(runs))
        if not (tests or options.all):
            print(f"{selection.share()}: what a kernel may change (vmtest --list); all: vmtest --all")
    return int(bad)


sys.exit(main())
