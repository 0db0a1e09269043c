# SPDX-License-Identifier: Apache-2.0
"""The command line: one line for an error, exit status, instant help."""

import argparse
import gzip
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.examples import examples

from perf_offcpu import cli
from perf_offcpu.commands.shared.parsers import VERBS
from perf_offcpu.convert.registry import FORMATS
from perf_offcpu.errors import CapabilityError, PerfOffcpuError, UsageError

Run = Callable[[argparse.Namespace], int]


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Return a function that makes `perf-offcpu fake [--number N]` run another."""

    def make(run: Run) -> None:
        module = types.ModuleType("perf_offcpu.commands.fake")

        def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
            subparsers.add_parser("fake").add_argument("--number", type=int)

        module.add_parser, module.run = add_parser, run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(VERBS, "fake", "fake")

    monkeypatch.delenv("PERF_OFFCPU_TRACEBACK", raising=False)
    return make


def failing(problem: BaseException) -> Run:
    def run(_: argparse.Namespace) -> int:
        raise problem

    return run


def test_the_verb_gives_the_status(verb: Callable[[Run], None]) -> None:
    verb(lambda args: args.number)
    assert cli.main(["fake", "--number", "7"]) == 7


@pytest.mark.parametrize(("problem", "status", "line"), [
    (PerfOffcpuError("x.data: nothing in it"), 1, "x.data: nothing in it"),
    (UsageError("impossible"), 129, "impossible"),
    (CapabilityError("no BTF", "build the kernel with it"), 1, "no BTF: build the kernel with it"),
    (FileNotFoundError(2, "No such file or directory", "a\x1b[2J"), 1, "a\\x1b[2J: No such file or directory"),
    (
        OSError(28, "No space left on device"), 1,
        "standard output or a temporary file (in $TMPDIR or /tmp): No space left on device",
    ),
    (OSError(28, "No space left on device", "out"), 1, "out: No space left on device"),
    (OSError(24, "Too many open files", "f"), 1, "f: Too many open files: raise the limit with ulimit -n"),
    (PerfOffcpuError("two\nlines"), 1, "two\\nlines"),
])  # fmt: skip
def test_an_error_is_one_line(
    verb: Callable[[Run], None], capsys: pytest.CaptureFixture[str], problem: Exception, status: int, line: str
) -> None:
    verb(failing(problem))
    assert cli.main(["fake"]) == status
    assert capsys.readouterr() == ("", f"perf-offcpu fake: {line}\n")


@pytest.mark.parametrize(("problem", "words", "variable"), [
    (PerfOffcpuError("x"), ["--traceback"], ""), (PerfOffcpuError("x"), [], "PERF_OFFCPU_TRACEBACK"),
    (ZeroDivisionError(), [], ""),
])  # fmt: skip
def test_developers_see_the_traceback_and_nobody_misses_a_bug(
    verb: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch, problem: Exception, words: list[str], variable: str
) -> None:
    verb(failing(problem))
    if variable:
        monkeypatch.setenv(variable, "1")
    with pytest.raises(type(problem)):
        cli.main([*words, "fake"])


def test_ctrl_c_is_quiet(verb: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    verb(failing(KeyboardInterrupt()))
    assert cli.main(["fake"]) == 128 + signal.SIGINT
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("words", "message"), examples("unit/sentences.txt", "usage"))
def test_wrong_usage(verb: Callable[[Run], None], capsys: pytest.CaptureFixture[str], words: str, message: str) -> None:
    verb(lambda args: 0)
    assert cli.main(words.split()) == 129
    formats = " ".join(f"--{name}" for name in FORMATS)
    out, err = capsys.readouterr()
    assert (
        out == "" and err.startswith(message.replace("FORMATS", formats)) and err.count("\n") == 1 and "--help" in err
    )


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(any(f"\n    {name}{end}" in shown for end in " \n") for name in VERBS)
    assert cli.main(["--version"]) == 0
    assert re.fullmatch(r"perf-offcpu version \d+\.\d+\.\d+\n", capsys.readouterr().out)
    assert cli.main(["--version", "-vv"]) == 0
    shown_names = [line.partition(":")[0].strip() for line in capsys.readouterr().out.splitlines()[1:]]
    assert {"python", "kernel", "bcc", "numpy"} <= set(shown_names)
    assert cli.main([]) == 129
    out, err = capsys.readouterr()
    assert out == "" and err == shown


def cpu_seconds(*argv: str) -> float:
    """Return the CPU time of a run, which does not depend on other load as the clock does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "perf_offcpu", *argv], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_is_instant() -> None:
    """The help of a verb costs more than that only if it imports what the next test looks for."""
    assert min(cpu_seconds("record", "--help") for _ in range(3)) < 0.4


def test_help_of_every_verb_imports_nothing_that_costs() -> None:
    script = (
        "import sys; from perf_offcpu.cli import main; costly = {'numpy', 'bcc', 'elftools', 'networkx'}\n"
        "for name in sys.argv[1:]: print(name, main([name, '--help']), costly & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", script, *VERBS], check=True, capture_output=True, text=True)
    for name in VERBS:
        assert f"usage: perf-offcpu {name} " in done.stdout and f"\n{name} 0 set()\n" in done.stdout


def test_a_report_imports_nothing_that_costs_and_is_not_used() -> None:
    script = (
        "import sys; from perf_offcpu.cli import main; status = main(sys.argv[1:]);"
        "sys.exit(status or ' '.join({'numpy.ma', 'tomllib', 'bcc'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", script, "report", "-f", "-i", str(DEMO)], check=True, capture_output=True)


def test_a_closed_pipe_ends_it_quietly() -> None:
    """As in `perf-offcpu --help | true`."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "perf_offcpu", "--help"]
    # With unbuffered output, argparse from Python 3.12 on hides the error.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with os.fdopen(write_end, "wb") as nobody:
        done = subprocess.run(command, check=False, stdout=nobody, stderr=subprocess.PIPE, env=env, timeout=30)
    assert (done.returncode, done.stderr) == (141, b"")


DEMO = Path(__file__).parents[1] / "data" / "demo.data"


def closing(redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = f"exec {shlex.join([sys.executable, '-m', 'perf_offcpu', *arguments])} {redirection}"
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("words", [
    "report -f -i DEMO", "convert -f --pprof -o - -i DEMO", "inject -f -o - -i DEMO", "completion bash",
    *(pytest.param(words, marks=pytest.mark.long)
      for words in ("script -f -F comm -i DEMO", "dump -f -i DEMO", "convert -f --folded -o - -i DEMO")),
])  # fmt: skip
def test_closed_standard_output_is_one_sentence(words: str) -> None:
    done = closing(">&-", *words.replace("DEMO", str(DEMO)).split())
    assert (done.returncode, done.stdout) == (1, "")
    verb, problem = words.partition(" ")[0], "standard output(: cannot write the recording:| is closed)"
    assert re.fullmatch(rf"perf-offcpu {verb}: {problem}[^\n]*\n", done.stderr)


def zeroed(data: bytes) -> bytes:
    """Return a recording as a crash of the machine can leave it: a late record and what follows are zeros."""
    record = data.rindex(b"\x09\x00\x00\x00\x01\x00")  # PERF_RECORD_SAMPLE
    return data[:record] + bytes(64) + data[record + 64 :]


def run_on(recording: Path, line: str, directory: Path) -> int:
    """Run a command line in which CUT is a recording, SOUND an intact one and OUT a name in a directory."""
    places = {"CUT": str(recording), "SOUND": str(DEMO), "OUT": str(directory / "OUT")}
    words = [places.get(word, word) for word in line.split()]
    return cli.main([words[0], "-f", *words[1:], *([] if "-i" in words else ["-i", str(recording)])])


@pytest.mark.parametrize("line", [
    *("report", "report --json", "report --locks", "report --html OUT", "report --diff CUT -i SOUND"),
    *("script", "script --header-only", "dump", "inject -o OUT", "convert --folded -o OUT"),
    *("convert --perfetto -o OUT", "convert --parquet OUT -i CUT -i SOUND"),
])  # fmt: skip
def test_a_cut_recording_is_said_and_read_so_far(line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recording = tmp_path / "CUT"
    recording.write_bytes(zeroed(DEMO.read_bytes()))
    assert run_on(recording, line, tmp_path) == 2
    out, err = capfd.readouterr()
    assert re.match(rf"perf-offcpu: {recording}: \d+ bytes skipped after a record of impossible size\n", err)
    assert len(out) > 300 or list(tmp_path.glob("OUT*"))


@pytest.mark.parametrize(("change", "status", "sentence"), [
    (lambda data: data[:3000], 2, "68568 bytes missing at the end of the file, which is cut"),
    (lambda data: data[:-3], 2, "3 bytes missing at the end of the file, which is cut"),  # in a feature
    (zeroed, 2, " bytes skipped after a record of impossible size"),
    (lambda data: gzip.compress(data)[:5000], 2, "1 packed files that are damaged"),
    (lambda data: data[:48] + bytes(8) + data[56:30_000], 0, "1 end of the data missing: the recorder was"),
    (lambda data: data, 0, ""),
], ids=["no sample left", "feature cut", "zeros", "cut gzip", "killed recorder", "sound"])  # fmt: skip
def test_ends_of_recordings(
    change: Callable[[bytes], bytes], status: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = tmp_path / "CUT"
    recording.write_bytes(change(DEMO.read_bytes()))
    for line in ("report", "archive -o OUT.tar".replace("OUT", str(tmp_path / "OUT"))):
        assert run_on(recording, line, tmp_path) == status
        out, err = capsys.readouterr()
        assert (sentence in err.splitlines()[0]) if sentence else "perf-offcpu: " not in err
        assert line != "report" or sentence in out.splitlines()[0]


def test_messages_for_closed_standard_error_are_not_in_the_output(tmp_path: Path) -> None:
    done = closing("2>&-", "report", "-i", "nowhere")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    out = tmp_path / "out.data"
    assert closing("<&- >&- 2>&-", "inject", "-v", "-f", "-i", str(DEMO), "-o", str(out)).returncode == 0
    assert closing("", "inject", "-v", "-f", "-i", str(DEMO), "-o", f"{out}.2").returncode == 0
    assert out.read_bytes() == Path(f"{out}.2").read_bytes()


def test_closed_standard_input_is_empty() -> None:
    done = closing("<&-", "report", "-i", "-")
    assert done.returncode == 1
    assert done.stderr.startswith("perf-offcpu report: standard input: file header at offset 0x0: 0 bytes")


def test_an_output_with_a_slash_at_its_end_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["convert", "-f", "--folded", "-i", str(DEMO), "-o", f"{tmp_path}/x/"]) == 129
    assert capsys.readouterr().err.endswith("x/: is the name of a directory: give that of a file\n")
    assert list(tmp_path.iterdir()) == []
