# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu scripts: install this project's script where perf finds it by name.

`perf script record NAME` and `perf script report NAME` run PERF_EXEC_PATH/scripts/python/bin/NAME-record and
NAME-report (tools/perf/builtin-script.c: get_script_path), next to perf's own scripts. `install` makes these
two shell scripts and a link to offcpu.py; `perf script -l` lists them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from perf_offcpu.commands.shared.option_tables import add_options
from perf_offcpu.directories import Directory
from perf_offcpu.environment import child_environment
from perf_offcpu.errors import CapabilityError, PerfOffcpuError

NAME = "offcpu"

EXAMPLES = """examples:
  perf-offcpu scripts                          where perf looks, and whether the scripts are there
  sudo perf-offcpu scripts --install           put them next to perf's own
  perf-offcpu scripts --install ~/perf-exec    elsewhere; then: export PERF_EXEC_PATH=~/perf-exec

afterwards:
  perf script record offcpu -- ./program
  perf script report offcpu -- --flamegraph out.html
"""

_RECORD = """#!/bin/sh
# Written by "perf-offcpu scripts --install".
exec {program} record "$@"
"""

_REPORT = """#!/bin/sh
# description: off-cpu time: folded stacks, a flame graph, or another format of perf-offcpu convert
# args: [options of perf script] [-- [--folded|--flamegraph|...] [OUT]]
# Written by "perf-offcpu scripts --install". Options before -- are perf's, the others are the script's.
seen=
script=${{PERF_EXEC_PATH:-{directory}}}/scripts/python/offcpu.py
left=$#
perf version --build-options 2>/dev/null | grep -q 'libpython: *[[] on' && inside=yes || inside=
while [ "$left" -gt 0 ]; do
    word=$1 left=$((left - 1))
    shift
    if [ "$word" != -- ] || [ "$seen" ]; then
        set -- "$@" "$word"
    else
        seen=yes
        [ -z "$inside" ] || set -- "$@" -s "$script" --
    fi
done
# Without embedded Python in perf, the script reads the recording by itself.
[ "$inside" ] || exec {python} "$script" "$@"
[ "$seen" ] || set -- "$@" -s "$script"
exec perf script "$@"
"""


_OPTIONS = """
--install DIR: install the scripts in DIR/scripts/python (default: where perf looks)
--remove DIR: remove them
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb's options."""
    parser = subparsers.add_parser(
        "scripts",
        help="let perf find the script: perf script record offcpu, perf script report offcpu",
        description="Show where perf looks for scripts, and install there what 'perf script record offcpu' "
        "and 'perf script report offcpu' run.",
        epilog=EXAMPLES,
    )
    group = parser.add_mutually_exclusive_group()
    here = {"nargs": "?", "const": ""}
    add_options(group, _OPTIONS, install=here, remove=here)


def run(args: argparse.Namespace) -> int:
    """Run the verb and return the exit status."""
    wanted = next((one for one in (args.install, args.remove) if one is not None), "")
    directory = Path(wanted).expanduser().absolute() if wanted else perf_directory()
    if args.install is not None:
        install(directory)
        print(f"perf-offcpu scripts: installed in {directory / 'scripts' / 'python'}")
    elif args.remove is not None:
        for path in (*files(directory), _link(directory)):
            path.unlink(missing_ok=True)  # direct: names that `install` makes; no link is followed
    _print_state(directory, perf_directory())
    return 0


def perf_directory() -> Path:
    """Return the directory where perf on this machine looks for its scripts."""
    if "PERF_EXEC_PATH" in os.environ:
        return Path(os.environ["PERF_EXEC_PATH"])
    perf = shutil.which("perf")
    if perf is None:
        raise CapabilityError("there is no perf on this machine", "install it (Debian: linux-perf)")
    command = [perf, "--exec-path"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=child_environment())
    if done.returncode != 0 or not done.stdout.startswith("/"):
        raise PerfOffcpuError(f"'perf --exec-path' failed: {done.stderr.strip() or done.stdout.strip()}")
    return Path(done.stdout.strip())


def files(directory: Path) -> dict[Path, str]:
    """Return path → text of the shell scripts below a directory."""
    python = shlex.quote(sys.executable)
    bin_ = directory / "scripts" / "python" / "bin"
    return {
        bin_ / f"{NAME}-record": _RECORD.format(program=f"{python} -m perf_offcpu"),
        bin_ / f"{NAME}-report": _REPORT.format(directory=shlex.quote(str(directory)), python=python),
    }


def _link(directory: Path) -> Path:
    return directory / "scripts" / "python" / "offcpu.py"


def install(directory: Path) -> None:
    """Write the scripts, in place of old ones."""
    script, link = find_script(), _link(directory)
    for path, text in files(directory).items():
        path.parent.mkdir(parents=True, exist_ok=True)  # direct: the user named it; open to all by umask
        with Directory.named(str(path.parent)) as place, place.replacing(path.name) as file:
            file.write(text.encode())
            os.fchmod(file.fileno(), 0o755)
    with Directory.named(str(link.parent)) as place:
        place.remove(link.name)
        place.link(link.name, str(script))


def find_script() -> Path:
    """Return offcpu.py of this installation: in a checkout, or where the wheel puts it."""
    package = Path(__file__).resolve().parents[1]  # direct: the package's own
    for place in (package.parent / "scripts", Path(sys.prefix) / "share" / "perf-offcpu"):
        if (place / "offcpu.py").is_file():  # direct: the package's own
            return place / "offcpu.py"
    raise CapabilityError("offcpu.py is missing", "install perf-offcpu again")


def _print_state(directory: Path, of_perf: Path) -> None:
    print(f"perf looks for scripts in {of_perf / 'scripts'}")
    if not all(path.is_file() for path in files(directory)):  # direct: asks whether they are installed
        print("'perf script record offcpu' is not installed: perf-offcpu scripts --install")
    elif directory == of_perf:
        print("'perf script record offcpu' and 'perf script report offcpu' are installed")
    else:
        print(f"for 'perf script record offcpu':  export PERF_EXEC_PATH={shlex.quote(str(directory))}")
