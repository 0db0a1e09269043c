# SPDX-License-Identifier: Apache-2.0
"""Run the command `perf-offcpu` as `python -m perf_offcpu`."""

import sys

from perf_offcpu.cli import main

if __name__ == "__main__":
    sys.exit(main())
