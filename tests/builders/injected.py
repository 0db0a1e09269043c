# SPDX-License-Identifier: Apache-2.0
"""What `perf-offcpu inject` makes of a recording, without its command line."""

import os
from pathlib import Path
from typing import Any

from perf_offcpu.inject.header import RewriteOptions
from perf_offcpu.inject.rewrite import rewrite
from perf_offcpu.inject.samples import Rewritten


def inject(source: Path, target: Path, **options: Any) -> Rewritten:
    """Rewrite `source` into the file `target`; options as RewriteOptions has them."""
    fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        return rewrite(str(source), fd, str(target), RewriteOptions(**options))
    finally:
        os.close(fd)
