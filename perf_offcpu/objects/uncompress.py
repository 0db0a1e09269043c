# SPDX-License-Identifier: Apache-2.0
"""Uncompress parts of files with code, within a bound: sections, .gnu_debugdata, kernel modules."""

from __future__ import annotations

import lzma
import zlib
from typing import Final

_LZMA_MEMORY: Final = 1 << 27  # xz -9 takes 65 MiB
_GZIP: Final = 31  # zlib's wbits for a gzip header


def uncompress(kind: str, data: bytes, most: int) -> bytes:
    """Uncompress all of `data`, of the kind "zlib", "gzip", "xz" or "zstd", to at most `most` bytes.

    Raises:
        ValueError: it is damaged, becomes more, is of another kind, or its package is not installed.
    """
    if kind == "zstd":
        return _uncompress_zstd(data, most)
    unpacker: lzma.LZMADecompressor | zlib._Decompress
    try:
        if kind == "xz":
            unpacker = lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)
        elif kind in ("zlib", "gzip"):
            unpacker = zlib.decompressobj(zlib.MAX_WBITS if kind == "zlib" else _GZIP)
        else:
            raise ValueError(f"it is compressed in an unknown way ({kind})")
        unpacked = unpacker.decompress(data, most + 1)
    except (lzma.LZMAError, zlib.error) as problem:
        raise ValueError(str(problem)) from None
    if not unpacker.eof or len(unpacked) > most:
        raise ValueError(f"it is cut off, or unpacks to more than {most} bytes")
    return unpacked


def _uncompress_zstd(data: bytes, most: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise ValueError("the Python package zstandard is not installed") from None
    try:
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            unpacked = bytes(reader.read(most + 1))
    except zstandard.ZstdError as problem:
        raise ValueError(str(problem)) from None
    if len(unpacked) > most:
        raise ValueError(f"it unpacks to more than {most} bytes")
    return unpacked
