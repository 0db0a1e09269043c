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

from perf_offcpu.symbolize.load import load_profile  # noqa: E402
from perf_offcpu.symbolize.options import SymbolizeOptions  # noqa: E402

DESIGNS = "threads,24 threads,asyncio,recursion,generators,C between,made again,libraries,gunicorn".split(",")


def main() -> None:
    """Print a line for each design."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="+")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--design", choices=DESIGNS, action="append")
    parser.add_argument("--checkout", default=ROOT, help="path of the checkout where PYTHON runs")
    args = parser.parse_args()
    print(f"{'design':<13} {'waits':>6} {'functions':>10} {'lines':>8} {'cut':>4} {'wrong':>5}")
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
        noted, functions, lines, cut, wrong = judge(profile, logged(done.stdout))
        share, share_of_lines = (f"{100 * part / max(noted, 1):.2f} %" for part in (functions, lines))
        print(f"{design:<13} {noted:>6} {share:>10} {share_of_lines:>8} {cut:>4} {wrong:>5}", flush=True)


if __name__ == "__main__":
    main()
