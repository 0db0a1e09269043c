# SPDX-License-Identifier: Apache-2.0
"""A profile in any format of `convert`, and a recording as `inject` rewrites it, without their command lines."""

import io
from pathlib import Path
from typing import Any

from perf_offcpu.convert.registry import FORMATS, Options
from perf_offcpu.inject.header import RewriteOptions
from perf_offcpu.inject.rewrite import rewrite
from perf_offcpu.inject.samples import Rewritten
from perf_offcpu.model.profile import Profile


def converted_bytes(name: str, profile: Profile, **options: Any) -> bytes:
    format_ = FORMATS[name]
    out: Any = io.BytesIO() if format_.binary else io.StringIO()
    format_.write(profile, out, Options(**options))
    return bytes(out.getvalue() if format_.binary else out.getvalue().encode())


def converted(name: str, profile: Profile, **options: Any) -> str:
    return converted_bytes(name, profile, **options).decode()


def inject(source: Path, target: Path, **options: Any) -> Rewritten:
    with target.open("w+b") as out:
        return rewrite(str(source), out.fileno(), str(target), RewriteOptions(**options))
