# SPDX-License-Identifier: Apache-2.0
"""`python -m perf_offcpu` is the command `perf-offcpu`."""

import sys

from perf_offcpu.cli import main

if __name__ == "__main__":
    sys.exit(main())
