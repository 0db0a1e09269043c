# SPDX-License-Identifier: Apache-2.0
"""Run the command `perf-offcpu`: find the verb, run it, turn errors into one line and an exit status.

A verb is a module of `commands/` with two functions, `add_parser(subparsers)` and `run(args)`. It imports
numpy, bcc and the like when it runs, so help needs none of them and appears at once.

Exit status: 0 success, 1 failure, 2 done as far as a cut recording can be read, 129 wrong usage (as perf),
130 interrupted, 141 the reader of a pipe went away; `record` returns that of the recorded command."""

import contextlib
import errno
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence

from perf_offcpu.commands.shared.parsers import PROGRAM, VERBS, load_verb, make_parsers, spelled_like
from perf_offcpu.commands.shared.streams import replace_closed_streams
from perf_offcpu.environment import ignore_variables_of_others
from perf_offcpu.errors import PerfOffcpuError, UsageError

_WITHOUT_NUMPY = frozenset({"doctor", "completion"})
_PACKAGES = ("numpy", "pyelftools", "zstandard", "multi-demangle")
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
EXIT_USAGE = UsageError.exit_status
EXIT_CUT = 2
EXIT_INTERRUPTED = 128 + 2
EXIT_BROKEN_PIPE = 128 + 13


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (None: sys.argv) and return the exit status; errors are one line on stderr. With
    --traceback (or PERF_OFFCPU_TRACEBACK in the environment) they are raised: PerfOffcpuError, OSError."""
    if argv is None:
        with _rare_collections():
            return main(sys.argv[1:])
    options, verb, words = _split(argv)
    developer = "--traceback" in options or bool(os.environ.get("PERF_OFFCPU_TRACEBACK"))
    prefix = f"{PROGRAM} {verb}" if verb in VERBS else PROGRAM
    return guard(prefix, lambda: _run(options, verb, words), developer=developer)


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Make Python's cyclic garbage collection rare in the `with` block, and leave it out at exit: it would take a tenth
    of a short run. Most objects are modules, functions and columns, which live until the end."""
    gc.set_threshold(100_000)
    try:
        yield
    finally:
        gc.freeze()


def guard(prefix: str, run: Callable[[], int], *, developer: bool = False) -> int:
    """Call `run` and return its exit status. An error becomes one line on stderr that begins with `prefix`, and the
    status that it means; for a `developer` it is raised."""
    replace_closed_streams()
    if ignored := ignore_variables_of_others():
        notice = "variables that name programs or paths are ignored for root with the environment of another user"
        print(f"{prefix}: {notice}: {', '.join(ignored)}", file=sys.stderr)
    try:
        status = _status(run)
        sys.stdout.flush()  # a closed pipe is noticed here, not when Python has shut down
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        with open(os.devnull, "w") as null:  # direct: so that Python's flush at exit cannot fail
            os.dup2(null.fileno(), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except (PerfOffcpuError, OSError) as problem:
        if developer:
            raise
        return _explain(prefix, problem)


def _status(run: Callable[[], int]) -> int:
    try:
        return run()
    except SystemExit as stop:  # from argparse: the help was printed, with Python 3.14 not yet flushed
        return stop.code if isinstance(stop.code, int) else 0


def _split(argv: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """Split a command line: return options before the verb, which take no values, the verb or None, words after it."""
    words = list(argv)
    for index, word in enumerate(words):
        if not word.startswith("-"):
            return words[:index], word, words[index + 1 :]
    return words, None, []


def _run(options: list[str], verb: str | None, words: list[str]) -> int:
    """Parse the parts of the command line (`_split`), run the verb and return the exit status."""
    if verb is not None and verb not in VERBS:
        instead = spelled_like(verb, VERBS)
        raise UsageError(f"'{verb}' is not a verb of {PROGRAM} ({instead}see '{PROGRAM} --help')")
    parser, verbs = make_parsers(VERBS if verb is None else (verb,))
    chosen = parser.parse_args(options)
    if chosen.version:
        _print_versions(chosen.verbose)
        return 0
    if verb is None:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    args = verbs[verb].parse_args(verbs[verb].attached(words))
    if verb not in _WITHOUT_NUMPY:
        _import_numpy()
    args.cut = []
    status = int(load_verb(verb).run(args))
    return EXIT_CUT if args.cut and not status else status


def _import_numpy() -> None:
    """Import numpy without threads of BLAS, which nothing here uses: it would start one for each CPU. The environment
    variable for that is removed again, as a recorded command must not see it."""
    if "numpy" not in sys.modules and _BLAS_THREADS not in os.environ:
        os.environ[_BLAS_THREADS] = "1"
        try:
            importlib.import_module("numpy")
        finally:
            del os.environ[_BLAS_THREADS]


def _print_versions(verbose: int) -> None:
    """Print the version; if `verbose` is 2 or more, also the environment, for bug reports."""
    from perf_offcpu.resources import version

    print(f"{PROGRAM} version {version()}")
    if verbose >= 2:
        for name, version_text in _environment().items():
            print(f"{name:>20}: {version_text}")


def _environment() -> dict[str, str]:
    import platform

    from perf_offcpu.collect.bpf.compile import import_bcc
    from perf_offcpu.resources import PACKAGE, installed_version

    try:
        bcc = import_bcc()
        bcc_text = f"{getattr(bcc, '__version__', 'unknown version')}, {bcc.__file__}"
    except PerfOffcpuError as problem:
        bcc_text = str(problem)
    return {
        "installed in": PACKAGE,
        "python": f"{platform.python_version()}, {sys.executable}",
        "kernel": f"{platform.release()} {platform.machine()}",
        "bcc": bcc_text,
    } | {name: installed_version(name) or "not installed" for name in _PACKAGES}


_NAMELESS = {errno.ENOSPC: "standard output or a temporary file (in $TMPDIR or /tmp): "}
"""errno → begin of the message of an OSError that has no file name."""


def _explain(prefix: str, problem: PerfOffcpuError | OSError) -> int:
    """Print an error as one line on stderr, after `prefix`, control characters escaped; return its exit status."""
    from perf_offcpu.text import printable

    text = str(problem)
    if isinstance(problem, OSError) and problem.strerror:
        name = f"{os.fsdecode(problem.filename)}: " if problem.filename else _NAMELESS.get(problem.errno or 0, "")
        remedy = ": raise the limit with ulimit -n" if problem.errno == errno.EMFILE else ""
        text = f"{name}{problem.strerror}{remedy}"
    print(f"{prefix}: {printable(text)}", file=sys.stderr)
    return problem.exit_status if isinstance(problem, PerfOffcpuError) else 1
