# SPDX-License-Identifier: Apache-2.0
"""Show damaged recordings and datasets by each verb and view: `python tests/fuzz/views.py [--count N]`. Of four numbers
three are recordings (those of `mutate.py`), one is a dataset with a damaged file. Each command runs as from a shell, in
this process; a traceback, another status than STATUSES, or more time or memory than allowed is a failure. Options and
exit status are those of `mutate.py`."""

import contextlib
import functools
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

import mutate  # noqa: E402
import runner  # noqa: E402
from builders.mutations import mutated, timed  # noqa: E402

from perf_offcpu.cli import main as perf_offcpu  # noqa: E402
from perf_offcpu.convert.registry import FORMATS  # noqa: E402

MOST_KB = 1 << 20
STATUSES = (0, 1, 2, 129)
"""129: the recording lacks what an option needs."""
DATA = Path(__file__).resolve().parents[1] / "data"
PLAIN = f"--kallsyms {DATA / 'demo.kallsyms'} --symfs {{place}} --buildid-dir {{place}}"
REPORTS = (
    *("", "--json", "--locks", "--critical-path", "--bottlenecks", "--serial", "--budget-by pid"),
    *("--children", "--sort object,waker", "--diff {demo}", "--html {place}/page.html"),
)
GRAPHS = ("--callgraph --wakers", "--callgraph --cascade", "--callgraph --objects", "--folded --wakers")
RECORDING = (
    *(f"report -i {{file}} {PLAIN} {view}" for view in REPORTS),
    *(f"convert -i {{file}} {PLAIN} -o {{place}}/out --{name}" for name in FORMATS if name != "parquet"),
    *(f"convert -i {{file}} {PLAIN} -o {{place}}/out {view}" for view in GRAPHS),
    f"convert -i {{file}} {PLAIN} --parquet {{place}}/tables",
    f"script -i {{file}} {PLAIN} --header",
    *("dump -i {file}", "inject -i {file} -o {place}/injected", "archive -i {file} -o {place}/packed.tar.gz"),
)
DATASET = (
    *("report {tables}", "report {tables} --sort host,comm --json", "top {tables}", "compact {tables}"),
    *("flamegraph {tables} -o {place}/flames.html", "diff {tables}", "path {tables}"),
    "expire {tables} --older-than 1d",
)


@functools.cache
def dataset() -> Path:
    """Return a dataset of the demo, made by another process: threads of pyarrow do not survive a fork."""
    tables = Path(tempfile.mkdtemp(prefix="views-"), "tables")
    command = ["convert", "-i", DATA / "demo.data", "--parquet", tables]
    subprocess.run([sys.executable, "-m", "perf_offcpu", *command], capture_output=True, check=True)
    return tables


def prepare(number: int, place: Path) -> tuple[str, tuple[str, ...]]:
    """Write the input of a number; return its name and the commands for it."""
    if number % 4:
        name, data = mutate.damaged(number)
        (place / "file").write_bytes(data)
        return name, RECORDING
    shutil.copytree(dataset(), place / "dataset")
    draw = random.Random(number)
    file = draw.choice(sorted((place / "dataset").rglob("*.parquet")))
    file.write_bytes(mutated(file.read_bytes(), draw))
    return file.name, tuple(f"fleet {command}" for command in DATASET)


def check(number: int) -> tuple[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        name, commands = prepare(number, place)
        names = {"place": place, "file": place / "file", "tables": place / "dataset"}
        shown = (functools.partial(show, line.format(demo=DATA / "demo.data", **names)) for line in commands)
        return name, max(map(timed, shown))


def show(command: str) -> None:
    """Run a command without output; raise if it ends in another way than with a result or a sentence."""
    signal.setitimer(signal.ITIMER_VIRTUAL, runner.HANG_S)
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        status = perf_offcpu(command.split())
    assert status in STATUSES, f"status {status} of {command}"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < MOST_KB, command


def data_of(number: int) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        prepare(number, Path(directory))
        files = (path for path in Path(directory).rglob("*") if path.is_file())
        return max(files, key=lambda path: path.stat().st_mtime_ns).read_bytes()


if __name__ == "__main__":
    parser = runner.parser(__doc__, 4000)
    parser.set_defaults(memory=16 << 10)  # of addresses, which DuckDB takes without using them
    options = parser.parse_args()
    dataset()
    sys.exit(min(100, runner.run(options, check, data_of)))
