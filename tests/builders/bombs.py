# SPDX-License-Identifier: Apache-2.0
"""Little that becomes much."""

import zstandard

_PIECE = bytes(4 << 20)


def zeros_packed(size: int, head: bytes = b"") -> bytes:
    """`head` and at least so many zeros as a zstd frame, 30 bytes a megabyte; never all of them in memory."""
    packer = zstandard.ZstdCompressor().compressobj()
    packed = [packer.compress(head)]
    packed += [packer.compress(_PIECE) for _ in range(-(-size // len(_PIECE)))]
    return b"".join([*packed, packer.flush()])
