# SPDX-License-Identifier: Apache-2.0
"""Disks that are soon full. Needs root."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(disk: Path, size: str) -> Iterator[Path]:
    """Mount a file system of a size (16M) in memory, and unmount it at the end."""
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)
