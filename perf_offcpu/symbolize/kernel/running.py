# SPDX-License-Identifier: Apache-2.0
"""Keep the symbol table of the running kernel on disk.

Reading and parsing /proc/kallsyms takes 0.1 s, a third of a report on a small recording. The table that was
parsed holds as long as this boot, for the same user, while /proc/kallsyms shows addresses (its first lines
are compared: kernel.kptr_restrict and capabilities decide) and the same modules are loaded.

Symbols that come and go without a trace are left out of the kept table: BPF programs, probes and trampolines.
So addresses without a name in it must be looked up in /proc/kallsyms itself.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

import numpy as np

from perf_offcpu.build_ids import kernel_build_id
from perf_offcpu.cache import Array, DiskCache, cache_name
from perf_offcpu.objects.symtab import NO_ADDRESS, VERSION, SymbolTable
from perf_offcpu.symbolize.kernel.kallsyms import LIVE, REFERENCES, Kallsyms, load_kallsyms

KIND: Final = f"kallsyms{VERSION}"
"""Kind of cache file."""
_PASSING: Final = ("[bpf]", "[__builtin__")
_HEAD: Final = 4096


def running_kallsyms(cache: DiskCache | None) -> Kallsyms:
    """Return the symbols of the running kernel, from the cache if they are kept there.

    Raises:
        OSError, FormatError: as `load_kallsyms`.
    """
    state = None if cache is None else _state()
    if cache is None or state is None:
        return load_kallsyms()
    name = cache_name(KIND, kernel_build_id(), *state)
    columns = cache.read(name)
    if kept := _from_columns(columns or {}):
        return kept
    kallsyms = load_kallsyms()
    if not kallsyms.hidden and _state() == state:
        cache.write(name, _lasting_columns(kallsyms))
    return kallsyms


def _state() -> tuple[object, ...] | None:
    """Return the state on which lasting symbols of /proc/kallsyms depend; None if it is unknown."""
    modules, nodes = list[list[bytes]](), list[tuple[str, int]]()
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            boot = file.read()
        with open(LIVE, "rb", buffering=0) as file:  # direct: /proc/kallsyms, of which the head is read
            head = file.read(_HEAD)
        with suppress(FileNotFoundError), open("/proc/modules", "rb") as file:  # a kernel without modules
            modules = [line.split() for line in file]
        with suppress(FileNotFoundError):
            # A module that was loaded again has another inode, even if it is at the same address.
            nodes = sorted((entry.name, entry.inode()) for entry in os.scandir("/sys/module"))
    except OSError:
        return None
    loaded = sorted((words[0], words[1], *words[4:6]) for words in modules)  # without use counts
    return boot, os.geteuid(), head, loaded, nodes


def _lasting_columns(kallsyms: Kallsyms) -> dict[str, Array]:
    """Return the columns of the symbols that last."""
    passing = [row for row, name in enumerate(kallsyms.modules) if name.startswith(_PASSING)]
    rows = np.flatnonzero(~np.isin(kallsyms.module, passing))
    addresses = [kallsyms.references.get(name, int(NO_ADDRESS)) for name in REFERENCES]
    return {
        **kallsyms.symbols.take(rows).columns(),
        "module": kallsyms.module[rows],
        "modules": np.frombuffer("\0".join(kallsyms.modules).encode(errors="surrogateescape"), np.uint8),
        "references": np.array(addresses, np.uint64),
    }


def _from_columns(columns: dict[str, Array]) -> Kallsyms | None:
    """Return the table of the columns of `_lasting_columns`; None if they do not fit together."""
    table, module = SymbolTable.from_columns(columns), columns.get("module")
    addresses, text = columns.get("references"), columns.get("modules")
    if table is None or module is None or addresses is None or text is None:
        return None
    modules = tuple(text.tobytes().decode(errors="surrogateescape").split("\0"))
    if len(module) != len(table) or (len(module) and int(module.max()) >= len(modules)):
        return None
    named = zip(REFERENCES, addresses.tolist(), strict=False)
    references = {name: address for name, address in named if address != NO_ADDRESS}
    return Kallsyms(table, module, modules, references, is_partial=True)
