# SPDX-License-Identifier: Apache-2.0
"""Options of symbolization."""

from perf_offcpu.cache import DiskCache
from perf_offcpu.objects.search import Search
from perf_offcpu.structs import frozen


@frozen
class SymbolizeOptions:
    """Says which files to read for symbols, and what frames contain."""

    demangle: bool = True  # show C++ and Rust names as written
    kallsyms: str | None = None  # a kallsyms file of the recorded kernel; None: the running kernel's if it is the same
    vmlinux: str | None = None  # an ELF file of the recorded kernel; None: look for one where there is no kallsyms
    symfs: str | None = None  # look for files below this directory; None: at the recorded paths
    buildid_dir: str | None = None  # a cache of files by build-id, as perf's; None: PERF_BUILDID_DIR or ~/.debug
    keep_ips: bool = False  # frames keep their addresses (`Frames.ip`): one code in two processes makes two frames
    inline: bool = False  # inlined functions get frames of their own, and frames have source lines
    srcline: bool = False  # frames have source lines; without `inline`, the line of the innermost inlined function
    force: bool = False  # accept maps of generated code (/tmp/perf-PID.map) of any user
    cache: DiskCache | None = None  # keeps symbol tables and source lines between runs; None: nothing is kept
    other_kernel: bool = False  # kallsyms, vmlinux and SYMFS/proc/kallsyms are not of the recorded kernel, and not used

    def search(self) -> Search:
        """Return the directories in which files are looked up, and the cache."""
        return Search.usual(self.symfs, self.buildid_dir, self.cache)
