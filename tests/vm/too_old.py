# SPDX-License-Identifier: Apache-2.0
"""Run by `scripts/vmtest` on a kernel that is too old: recording says so in one sentence. Not elsewhere."""

import platform
import subprocess
from pathlib import Path


def test_recording_says_that_the_kernel_is_too_old(tmp_path: Path) -> None:
    done = subprocess.run(
        ["perf-offcpu", "record", "--", "true"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"perf-offcpu record: kernel {platform.release()} lacks ")
    assert done.stderr.endswith("boot Linux 5.15 or newer\n") and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
