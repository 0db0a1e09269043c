# SPDX-License-Identifier: Apache-2.0
"""`scripts/suitetest`: the same tests with each Debian's perf, Python and bcc, on the running kernel. Emulation is not
needed for that: a root of the suite (tests/vm/roots.py) becomes that of a mount namespace (by pivot_root: a chroot
allows no user namespaces). It is the lower layer of an overlay, so it stays as it is."""

import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from vm import host, roots, table

DESCRIPTION = """\
Run tests with the perf, the Python and the bcc of other Debians, on the running kernel. Needs root, and
about 1 GB in the cache for each suite."""
EPILOG = f"""\
  scripts/suitetest                       {", ".join(roots.SUITES)}: what depends on perf, Python or bcc
  scripts/suitetest sid -- tests/unit     one suite, other tests

The output of a run is kept in {host.CACHE / "results"}."""
# What perf makes of our files, and ours of perf's; both doors of offcpu.py; all of Python; recording.
TESTS = (
    *("tests/unit", "tests/roundtrip", "tests/golden"),
    *(f"tests/kernel/test_{name}.py" for name in ("perf_opens", "script_as_perf", "inject", "dump_as_perf")),
    *(f"tests/kernel/test_{name}.py" for name in ("record", "bpf_program", "join", "doctor", "jit")),
)
# Make a prepared directory $root the root, with this machine's /proc, /sys and /dev.
PIVOT = """
cd "$root"
for name in proc sys dev; do mount --rbind "/$name" "$name"; done
mkdir -p old
pivot_root . old
umount -l old
"""
# $1: root, $2: scratch directory, $3: results; then the command.
ENTER = f"""
set -e
root=$1; scratch=$2; results=$3; shift 3
mount -t tmpfs tmpfs "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
mount -t overlay overlay -o "lowerdir=$root,upperdir=$scratch/upper,workdir=$scratch/work" "$scratch/root"
root=$scratch/root
cd "$root"
cp -f /etc/resolv.conf etc/resolv.conf
mkdir -p perf-offcpu results
mount --bind "$results" results
mount --bind /var/tmp var/tmp  # a disk, which some tests wait for
tar xf "$results/project.tar" -C perf-offcpu --no-same-owner
{PIVOT}
cd /perf-offcpu
exec "$@"
"""
PYTEST = "python -m pytest -p no:cacheprovider --junitxml=/results/junit.xml -o timeout=900"
PATH = f"{roots.VENV}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
VERSIONS = """
import platform, subprocess, bcc
perf = subprocess.run(["perf", "--version"], capture_output=True, text=True).stdout.split()[-1]
print(f"perf {perf}, Python {platform.python_version()}, bcc {bcc.__version__}")
"""


def main() -> int:
    words, tests = host.split_words()
    parser = host.parser("suitetest", DESCRIPTION, EPILOG, "[SUITE...] [-- TESTS]")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(roots.SUITES))
    chosen = host.chosen_suites(parser.parse_args(words), roots.SUITES, roots.SUITES)
    runs: dict[str, table.Run] = {}
    bad = False
    for suite in chosen:
        results = host.CACHE / "results" / suite
        bad |= _run_in(suite, results, tests or list(TESTS)) != 0
        runs[suite] = table.read(results / "junit.xml")
    print(table.render(runs))
    return int(bad)


def _run_in(suite: str, results: Path, tests: list[str]) -> int:
    root = roots.root(suite)
    with host.locked(f"results/{suite}"):
        shutil.rmtree(results)
        results.mkdir()
        _pack(results / "project.tar")
        host.say(f"Debian {suite}: {_enter(root, results, ['python', '-c', VERSIONS])[1].strip()}")
        status, output = _enter(root, results, ["bash", "-c", f"{PYTEST} {shlex.join(tests)}"])
        (results / "output").write_text(output)
        (results / "project.tar").unlink()
    host.say(f"  status {status}; see {results}/output")
    return status


def _enter(root: Path, results: Path, command: list[str]) -> tuple[int, str]:
    """(exit status, output) of a command in the project's directory inside the root."""
    with tempfile.TemporaryDirectory(prefix="suitetest.") as scratch:
        words = [*"nice unshare -m sh -c".split(), ENTER, "sh", *map(str, (root, scratch, results)), *command]
        env = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False, env=env
        )
    return done.returncode, done.stdout


def _pack(path: Path) -> None:
    import tarfile

    with tarfile.open(path, "w") as archive:
        for name in roots.project_files():
            archive.add(host.CHECKOUT / name, name)


if __name__ == "__main__":
    sys.exit(main())
