# SPDX-License-Identifier: Apache-2.0
"""Turn the DWARF of one object into a symcache, as a process: worker.py FD BYTES SECONDS DIRECTORY... (more folders of
packages). The object is open as FD, the symcache goes to standard output. Hostile DWARF can take any time or memory, or
crash the library that reads it; here that ends this process, not its parent. It imports nothing of this project,
because half of its cost is starting. Exit status: 0 done, 3 no package, 4 the DWARF cannot be read (why: on stderr)."""

import resource
import sys


def main() -> int:
    """Write the symcache of the object that argv names by a descriptor to standard output; return the exit status."""
    fd, memory, seconds = map(int, sys.argv[1:4])
    sys.path += sys.argv[4:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        from symbolic.debuginfo import Archive
    except ImportError:
        return 3
    try:
        (image,) = Archive.open(f"/proc/self/fd/{fd}").iter_objects()
        image.make_symcache().dump_into(sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except Exception as problem:  # the package's errors have no common base but this
        print(" ".join(str(problem).split())[:300] or type(problem).__name__, file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
