# SPDX-License-Identifier: Apache-2.0
"""Records of the kernel's own code: its text, its modules, and the BPF programs it has compiled.

Without a record of the text perf warns that "kernel address maps were restricted" and names no kernel symbol. Addresses
come from /proc/kallsyms, which shows zeros to users who may not see them (kernel.kptr_restrict); then no records are
made, and kernel frames stay numbers.

Source: tools/perf/util/synthetic-events.c: perf_event__synthesize_kernel_mmap() and following."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from perf_offcpu.abi.records import KSYMBOL_TYPE_BPF, CpuMode, RecordType
from perf_offcpu.build_ids import kernel_build_id, module_build_id
from perf_offcpu.collect.existing.records import KERNEL_PID, mmap2, synthesized
from perf_offcpu.collect.system.btf import KALLSYMS, symbol_address
from perf_offcpu.files import kernel_lines, read_kernel_if_any

_MODULES = "/proc/modules"
KERNEL_DSO = b"[kernel.kallsyms]"

_LAST_BYTES = 4096  # assumed length of the last BPF program in memory; that of the others follows from their neighbours


class KernelMaps:
    """Make MMAP2 and KSYMBOL records of kernel text, modules and BPF programs, and keep them for later files.

    Attributes:
        changes: number of KSYMBOL records from the kernel (BPF programs that came or went), counted by the caller.
        files: name in the last records → build-id, of the kernel and of each module that has one.
    """

    def __init__(self) -> None:
        self.changes = 0
        self.files: dict[bytes, bytes] = {}
        self._made_of: tuple[int, bytes] = 0, b""  # `changes` and text of /proc/modules when the records were made
        self._records: list[bytes] = []

    def records(self) -> list[bytes]:
        """Return the records of kernel, modules and BPF programs, made again only if these have changed."""
        state = self.changes, read_kernel_if_any(_MODULES)
        if not self._records or state != self._made_of:
            self.files, kallsyms = {}, read_kernel_if_any(str(KALLSYMS))
            self._records = [*self._kernel(kallsyms), *self._modules(state[1]), *_bpf_programs(kallsyms)]
            self._made_of = state
        return self._records

    def _kernel(self, kallsyms: bytes) -> Iterator[bytes]:
        ends = [symbol_address(kallsyms, name) for name in (b"_edata", b"_etext")]
        for name in (b"_text", b"_stext"):
            start, end = symbol_address(kallsyms, name), ends[0] or ends[1]
            if start and end > start:
                # pgoff repeats the address: a report compares it with the symbol's address at that time.
                yield self._mmap(KERNEL_DSO, name, start, end - start, start, kernel_build_id())
                return

    def _modules(self, text: bytes) -> Iterator[bytes]:
        modules = [line.split() for line in kernel_lines(text)]
        files = _module_files() if modules else {}
        for module in modules:
            name, size, address = module[0], int(module[1]), int(module[5], 16)
            if address:
                path = files.get(name, b"[" + name + b"]")
                yield self._mmap(path, b"", address, size, 0, module_build_id(os.fsdecode(name)))

    def _mmap(self, dso: bytes, suffix: bytes, start: int, size: int, pgoff: int, build_id: bytes) -> bytes:
        if build_id:
            self.files[dso] = build_id
        place = {"addr": start, "len": size, "pgoff": pgoff, "filename": dso + suffix}
        return mmap2(CpuMode.KERNEL, {"pid": KERNEL_PID, "tid": 0, "prot": 0, "flags": 0, **place}, build_id)


def _bpf_programs(kallsyms: bytes) -> Iterator[bytes]:
    programs = bpf_symbols(kallsyms)
    following = [*programs[1:], *((address + _LAST_BYTES, b"") for address, _ in programs[-1:])]
    for (address, name), (end, _) in zip(programs, following, strict=True):
        if address and 0 < end - address < 1 << 32:
            symbol = {"addr": address, "len": end - address, "name": name}
            yield synthesized(RecordType.KSYMBOL, 0, symbol | {"ksym_type": KSYMBOL_TYPE_BPF, "flags": 0})


def bpf_symbols(kallsyms: bytes) -> list[tuple[int, bytes]]:
    """Return (address, name) of each BPF program and trampoline in the text of /proc/kallsyms, by address."""
    # They come after the kernel's own symbols, so that most of the text need not be searched.
    begin = kallsyms.rfind(b"\n", 0, max(0, kallsyms.find(b"\t[bpf]"))) + 1
    matches = re.findall(rb"^([0-9a-f]+) . (\S+)\t\[bpf\]$", kallsyms[begin:], re.MULTILINE)
    return sorted((int(address, 16), name) for address, name in matches)


def _module_files() -> dict[bytes, bytes]:
    """Return module name (with _ for -) → path of its file, from the modules.dep that depmod makes."""
    directory = Path("/lib/modules", os.uname().release)
    files = {}
    for line in kernel_lines(read_kernel_if_any(str(directory / "modules.dep"))):
        path = line.partition(b":")[0]
        name = path.rpartition(b"/")[2].partition(b".")[0].replace(b"-", b"_")
        files[name] = os.fsencode(directory) + b"/" + path
    return files
