# SPDX-License-Identifier: Apache-2.0
"""The kept table of the running kernel: the same names, as long as what they depend on is the same."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from builders.chains import recording_of_chains
from unit.symbolize.kernel.test_kallsyms import KERNEL, MODULES, names_at

from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.build_ids import kernel_build_id
from perf_offcpu.cache import DiskCache
from perf_offcpu.model.recording import Meta
from perf_offcpu.symbolize.kernel import files, names
from perf_offcpu.symbolize.kernel.files import running_kallsyms
from perf_offcpu.symbolize.kernel.kallsyms import Kallsyms, parse_kallsyms
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize

ENTRY, MODULE, BPF = 0xFFFFFFFF81000130, 0xFFFFFFFFC0A81000, 0xFFFFFFFFC0B00000


class Kernel:
    """Stands for the running kernel: its text, its state, and how often it was read."""

    def __init__(self) -> None:
        self.text, self.reads = KERNEL + MODULES, 0
        self.state: tuple[str, str] | None = ("boot", "modules")

    def load(self, path: str = "") -> Kallsyms:
        self.reads += 1
        return parse_kallsyms(self.text)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(files, "load_kallsyms", made.load)
    monkeypatch.setattr(names, "load_kallsyms", made.load)
    monkeypatch.setattr(files, "_state", lambda: made.state)
    return made


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(str(tmp_path / "cache"))


def names_in(kallsyms: Kallsyms) -> list[tuple[int, int, str, str]]:
    table = kallsyms.symbols
    names = ((table.name(row), kallsyms.module_name(row)) for row in range(len(table)))
    return [(*place, *name) for *place, name in zip(table.start.tolist(), table.end.tolist(), names, strict=True)]


def test_the_second_time_nothing_is_read(kernel: Kernel, cache: DiskCache) -> None:
    first, second = running_kallsyms(cache), running_kallsyms(cache)
    assert kernel.reads == 1
    assert (first.is_partial, second.is_partial) == (False, True)
    lasting = [row for row in names_in(first) if row[3] != "[bpf]"]
    assert len(lasting) == len(first.symbols) - 1
    assert names_in(second) == lasting
    assert second.references == first.references
    addresses = [ENTRY, MODULE, BPF + 1, 0, 2**64 - 1]
    expected = ["" if name.startswith("bpf_prog") else name for name in names_at(first, *addresses)]
    assert names_at(second, *addresses) == expected


def test_another_boot_or_module_is_read_again(kernel: Kernel, cache: DiskCache) -> None:
    running_kallsyms(cache)
    kernel.state = ("boot", "other modules")
    assert not running_kallsyms(cache).is_partial
    assert kernel.reads == 2


def test_without_cache_or_state_nothing_is_kept(kernel: Kernel, cache: DiskCache) -> None:
    running_kallsyms(None)
    kernel.state = None
    running_kallsyms(cache)
    assert kernel.reads == 2
    kernel.state = ("boot", "modules")
    kernel.text = b"0000000000000000 T _text\n0000000000000000 t f\n"
    assert running_kallsyms(cache).hidden and running_kallsyms(cache).hidden
    assert kernel.reads == 4, "hidden addresses are not kept"
    assert not os.path.exists(cache.directory)


def test_a_new_module_prevents_keeping(kernel: Kernel, cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    states: Iterator[tuple[str]] = iter([("before",), ("after",), ("after",), ("after",)])
    monkeypatch.setattr(files, "_state", lambda: next(states))
    running_kallsyms(cache)
    assert not os.path.exists(cache.directory)
    running_kallsyms(cache)
    assert len(os.listdir(cache.directory)) == 1


def test_columns_that_are_no_table_are_refused() -> None:
    good = files._lasting_columns(parse_kallsyms(KERNEL + MODULES))
    assert files._from_columns(good) is not None
    assert files._from_columns({**good, "module": good["module"][1:]}) is None
    assert files._from_columns({**good, "module": np.full_like(good["module"], 99)}) is None
    for name in ("module", "modules", "references", "start"):
        assert files._from_columns({key: good[key] for key in good if key != name}) is None


@pytest.mark.kernel
def test_what_is_not_in_the_kept_table_is_looked_up_in_the_kernels_own(kernel: Kernel, cache: DiskCache) -> None:
    """Programs of BPF come and go; the recording does not say their names either."""

    def shown(*addresses: int) -> set[str]:
        chain, meta = [CallchainContext.KERNEL, *addresses], Meta(kernel_build_id=kernel_build_id().hex())
        recording = recording_of_chains([chain], columns={"space": [-1]}, meta=meta)
        profile = symbolize(recording, SymbolizeOptions(cache=cache))
        return {profile.strings[row] for row in profile.frames.symbol.tolist()}

    assert shown(ENTRY + 4) == {"entry"}
    assert shown(ENTRY + 4, MODULE + 0x80) == {"entry", "nf_nat_ipv4_fn"}
    assert kernel.reads == 1
    kernel.text = kernel.text.replace(b"prog", b"later_prog")
    assert "later_prog" in " ".join(shown(ENTRY + 4, BPF + 4))
    assert kernel.reads == 2


def test_the_state_of_this_kernel_can_be_told_and_lasts() -> None:
    state = files._state()
    assert state is not None
    assert state == files._state()
    assert Path("/proc/sys/kernel/random/boot_id").read_bytes() in state
