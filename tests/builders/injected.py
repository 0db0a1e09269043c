# SPDX-License-Identifier: Apache-2.0
"""What `perf-offcpu inject` makes of a recording, without its command line."""

from pathlib import Path
from typing import Any

from perf_offcpu.inject.header import RewriteOptions
from perf_offcpu.inject.rewrite import rewrite
from perf_offcpu.inject.samples import Rewritten


def inject(source: Path, target: Path, **options: Any) -> Rewritten:
    with target.open("w+b") as out:
        return rewrite(str(source), out.fileno(), str(target), RewriteOptions(**options))
