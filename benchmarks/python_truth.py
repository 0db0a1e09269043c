# SPDX-License-Identifier: Apache-2.0
"""Compare the Python functions of waits with those that the program itself notes:

    sudo python benchmarks/python_truth.py [--seconds N] [--design NAME]... -- PYTHON [ARGUMENTS]

Records python_waits.py in each design. PYTHON may be a command that ends with an interpreter, in a container or chroot
too (then --checkout). "gunicorn" needs gunicorn and SQLAlchemy (pip install --target DIRECTORY; PYTHONPATH=DIRECTORY).
Marks: functions 98 %, lines 95 %, wrong 0."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from kernel.recorder import PROGRAM  # noqa: E402
from kernel.test_python_names import judge, logged  # noqa: E402

from perf_offcpu.model.profile import Profile  # noqa: E402
from perf_offcpu.symbolize.load import load_profile  # noqa: E402
from perf_offcpu.symbolize.options import SymbolizeOptions  # noqa: E402

DESIGNS = "threads,24 threads,asyncio,recursion,generators,C between,made again,libraries,gunicorn".split(",")


def is_placed(profile: Profile, node: int) -> bool:
    """Return whether Python functions stand at calls of the interpreter in C, each call with one, but for calls next
    to the root of a stack with more functions than are read."""
    frames, has_function, is_bare = profile.frames, False, False
    while node >= 0:
        frame = int(profile.stacks.frame[node])
        if frames.file[frame] and not frames.dso[frame]:
            has_function = True
            if is_bare:
                return False
        elif profile.strings[int(frames.symbol[frame])].startswith("_PyEval_EvalFrameDefault"):
            has_function, is_bare = False, is_bare or not has_function
        node = int(profile.stacks.parent[node])
    return not has_function


def main() -> None:
    """Print a line for each design."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="+")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--design", choices=DESIGNS, action="append")
    parser.add_argument("--checkout", default=ROOT, help="path of the checkout where PYTHON runs")
    args = parser.parse_args()
    print(f"{'design':<11} {'waits':>6} {'functions':>10} {'lines':>10} {'placed':>10} {'wrong':>5}")
    for design in args.design or DESIGNS:
        with tempfile.TemporaryDirectory() as directory:
            command = [
                *PROGRAM,
                "--",
                *args.python,
                f"{args.checkout}/benchmarks/python_waits.py",
                str(args.seconds),
                design,
            ]
            done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
            profile = load_profile([f"{directory}/perf.data"], SymbolizeOptions(inline=False))
        rows, functions, lines, wrong = judge(profile, logged(done.stdout))
        placed = sum(is_placed(profile, int(profile.samples.stack[row])) for row in rows)
        shares = "".join(f" {100 * part / max(len(rows), 1):>8.2f} %" for part in (functions, lines, placed))
        print(f"{design:<11} {len(rows):>6}{shares} {wrong:>5}", flush=True)


if __name__ == "__main__":
    main()
