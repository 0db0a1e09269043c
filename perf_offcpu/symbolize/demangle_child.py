# SPDX-License-Identifier: Apache-2.0
"""Demangle the names on standard input, as a process: python demangle_child.py DIRECTORY SECONDS.
perf_offcpu/symbolize/demangle.py starts it with the bare interpreter, so it imports nothing of this project. DIRECTORY
holds multi_demangle, SECONDS is the CPU time that is allowed. Names come and go as UTF-8, each ended by a NUL, and each
result is written at once: results before a crash of the library, or before this process is killed, are not lost."""

import os
import resource
import sys

_MEMORY = 512 << 20
_PER_NAME_BYTE = 16  # the names themselves, decoded and split
_MAX_READABLE = 1 << 14
_MAX_GROWTH = 64  # some 2 are usual


def _limit(resources: int, wanted: int) -> None:
    hard = resource.getrlimit(resources)[1]
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resources, (soft, hard))


def _main(directory: str, seconds: int) -> None:
    sys.path.insert(0, directory)
    import multi_demangle

    data = sys.stdin.buffer.read()
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, seconds)
    _limit(resource.RLIMIT_AS, _MEMORY + _PER_NAME_BYTE * len(data))
    options = multi_demangle.DemangleOptions(return_type=False, parameters=False)
    left = _MAX_READABLE + _MAX_GROWTH * len(data)
    for name in data.decode().split("\0")[:-1]:
        try:
            readable = multi_demangle.demangle_symbols([name], options)[0]
        except BaseException:  # a panic in the library is no Exception
            readable = name
        if len(readable) > _MAX_READABLE or len(readable) > left:
            readable = name
        left -= len(readable)
        os.write(1, readable.replace("\0", "").encode() + b"\0")


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
