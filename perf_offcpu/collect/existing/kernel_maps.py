# SPDX-License-Identifier: Apache-2.0
"""Records of the kernel's own code: its text, its modules, and the BPF programs it has compiled.

Without a record of the text perf warns that "kernel address maps were restricted" and names no kernel symbol. Addresses
come from /proc/kallsyms, which shows zeros to users who may not see them (kernel.kptr_restrict); then no records are
made, and kernel frames stay numbers.

Source: tools/perf/util/synthetic-events.c: perf_event__synthesize_kernel_mmap() and following."""

import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from perf_offcpu.abi.records import KSYMBOL_TYPE_BPF, CpuMode, RecordType
from perf_offcpu.build_ids import kernel_build_id, module_build_id
from perf_offcpu.collect.existing.records import KERNEL_PID, mmap2, synthesized
from perf_offcpu.collect.system.btf import KALLSYMS, symbol_address
from perf_offcpu.files import kernel_lines, read_kernel_if_any

_MODULES = "/proc/modules"
KERNEL_DSO = b"[kernel.kallsyms]"

_LAST_BYTES = 4096  # assumed length of the last BPF program in memory; that of the others follows from their neighbours


@dataclass(slots=True)
class KnownKernel:
    """Records of the kernel made for an earlier file, with the facts that show whether they are still valid."""

    changes: int = 0  # number of symbols that the kernel has announced: BPF programs that came or went
    made_at: int = -1  # value of `changes` when the records were made
    modules: bytes = b""  # text of /proc/modules when the records were made
    records: tuple[bytes, ...] = ()  # records of the kernel, its modules and BPF programs; empty before the first file
    files: dict[bytes, bytes] = field(default_factory=dict)  # name → build-id, as in `KernelMaps`


class KernelMaps:
    """Make MMAP2 and KSYMBOL records of kernel text, modules and BPF programs. `known`: records of an earlier file;
    replaced by the records of this one. `files`: name → build-id of the kernel and of each module that has one."""

    def __init__(self, known: KnownKernel | None = None) -> None:
        self.files: dict[bytes, bytes] = {}
        self._known = known or KnownKernel()

    @functools.cached_property
    def _kallsyms(self) -> bytes:
        return read_kernel_if_any(str(KALLSYMS))

    def records(self) -> Iterator[bytes]:
        """Yield the records of the kernel, its modules and its BPF programs; the known ones if nothing has changed."""
        cached, modules = self._known, read_kernel_if_any(_MODULES)
        changes = cached.changes
        if not cached.records or (cached.made_at, cached.modules) != (changes, modules):
            cached.records = (*self._kernel(), *self._modules(modules), *self._bpf_programs())
            cached.made_at, cached.modules, cached.files = changes, modules, dict(self.files)
        self.files.update(cached.files)
        yield from cached.records

    def _kernel(self) -> Iterator[bytes]:
        ends = [symbol_address(self._kallsyms, name) for name in (b"_edata", b"_etext")]
        for name in (b"_text", b"_stext"):
            start, end = symbol_address(self._kallsyms, name), ends[0] or ends[1]
            if start and end > start:
                # pgoff repeats the address: a report compares it with where the symbol is by then.
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

    def _bpf_programs(self) -> Iterator[bytes]:
        programs = bpf_symbols(self._kallsyms)
        following = [*programs[1:], *((address + _LAST_BYTES, b"") for address, _ in programs[-1:])]
        for (address, name), (end, _) in zip(programs, following, strict=True):
            if address and 0 < end - address < 1 << 32:
                symbol = {"addr": address, "len": end - address, "name": name}
                yield synthesized(RecordType.KSYMBOL, 0, symbol | {"ksym_type": KSYMBOL_TYPE_BPF, "flags": 0})


def bpf_symbols(kallsyms: bytes) -> list[tuple[int, bytes]]:
    """Return (address, name) of all BPF programs and trampolines in kernel memory, ascending."""
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
