# SPDX-License-Identifier: Apache-2.0
"""A profile in any format of `convert`."""

import io
from typing import Any

from perf_offcpu.convert.registry import FORMATS, Options
from perf_offcpu.model.profile import Profile


def converted_bytes(name: str, profile: Profile, **options: Any) -> bytes:
    format_ = FORMATS[name]
    out: Any = io.BytesIO() if format_.binary else io.StringIO()
    format_.write(profile, out, Options(**options))
    return bytes(out.getvalue() if format_.binary else out.getvalue().encode())


def converted(name: str, profile: Profile, **options: Any) -> str:
    return converted_bytes(name, profile, **options).decode()
