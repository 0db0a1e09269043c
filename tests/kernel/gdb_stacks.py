# SPDX-License-Identifier: Apache-2.0
"""The stacks of a stopped process, frame by frame, as gdb and as this project unwind them.

usage, as a command: PYTHONPATH=tests python -m kernel.gdb_stacks STOPS COMMAND [ARGS]

gdb attaches, and gives of each thread its registers, the top of its stack and its frames; from the first two
our frames are made. Frames that gdb shows for inlined functions and for tail calls (which it infers from
debug information) are not on the stack, and do not count."""

import json
import platform
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from builders.program import PATIENCE

from perf_offcpu.collect.existing.maps import parse_maps
from perf_offcpu.model.callchains import Ragged, Snapshots
from perf_offcpu.model.columns import Strings
from perf_offcpu.model.recording import Dsos, Maps, Meta, Recording, Spaces
from perf_offcpu.objects.search import Search
from perf_offcpu.unwind.state import End
from perf_offcpu.unwind.unwinder import Unwinder

STACK_BYTES = 32768
_X86 = ["rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "rip", *(f"r{n}" for n in range(8, 16))]
_ARM = [*(f"x{n}" for n in range(31)), "sp", "pc"]
# gdb's names of registers, and their bits in sample_regs_user
_NAMES, _BITS = {"x86_64": (_X86, [*range(9), *range(16, 24)]), "aarch64": (_ARM, [*range(33)])}[platform.machine()]
_SP = next(place for place, name in enumerate(_NAMES) if name.endswith("sp"))

_IN_GDB = f"""
import gdb, json
for thread in gdb.selected_inferior().threads():
    thread.switch()
    frame = gdb.newest_frame()
    registers = [int(frame.read_register(name)) % 2**64 for name in {_NAMES}]
    sp, stack = registers[{_SP}], b""
    for page in range({STACK_BYTES} // 256):
        try:
            stack += bytes(gdb.selected_inferior().read_memory(sp + 256 * page, 256))
        except gdb.MemoryError:
            break
    pcs = []
    while frame is not None:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            pcs.append(frame.pc())
        frame = frame.older()
    print("THREAD", json.dumps([registers, stack.hex(), pcs]))
"""


@dataclass(frozen=True)
class Stop:
    """One thread at one moment: code addresses by gdb and by us, and how our walk ended."""

    gdb: list[int]
    ours: list[int]
    end: End

    @property
    def agrees(self) -> bool:
        return self.gdb == self.ours


def stop(pid: int) -> list[Stop]:
    """Stop a process, look at each of its threads, let it go on. No threads: it had ended."""
    options = ["-nx", "-ex", "set debuginfod enabled off", "-ex", "set backtrace past-main on"]
    command = ["gdb", "-batch", *options, "-p", str(pid), "-ex", f"python exec({_IN_GDB!r})"]
    with open(f"/proc/{pid}/maps", "rb") as file:
        maps = file.read()
    limit_s = 60 * PATIENCE
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False)
    lines = [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith("THREAD ")]
    return _unwound([json.loads(line) for line in lines], maps)


def _unwound(threads: list[list[Any]], maps: bytes) -> list[Stop]:
    if not threads:
        return []
    registers = [[row[0][place] for place in np.argsort(_BITS)] for row in threads]
    stacks = [np.frombuffer(bytes.fromhex(row[1]), np.uint64).tolist() for row in threads]
    masks = np.full(len(threads), sum(1 << bit for bit in _BITS), np.uint64)
    snapshots = Snapshots(masks, Ragged.from_lists(registers), Ragged.from_lists(stacks))
    unwinder = Unwinder(_recording(maps), Search())
    found = unwinder.unwind(snapshots, np.arange(len(threads)), np.zeros(len(threads), np.int32))
    return [Stop(row[2], found.chains.row(n).tolist(), End(int(found.ends[n]))) for n, row in enumerate(threads)]


def _recording(maps: bytes) -> Recording:
    code = sorted((area for area in parse_maps(maps) if b"x" in area.permissions), key=lambda area: area.start)
    strings, size = Strings(), len(code)
    dsos = Dsos.filled(size, path=strings.intern_all(area.name for area in code))
    start, end, pgoff = np.array([(area.start, area.end, area.offset) for area in code], np.uint64).T
    table = Maps.filled(size, start=start, end=end, pgoff=pgoff, dso=np.arange(size))
    meta = Meta(arch=platform.machine())
    return Recording(strings=strings, spaces=Spaces.filled(1), maps=table, dsos=dsos, meta=meta)


def random_stops(command: list[str], number: int) -> Iterator[Stop]:
    """Yield threads of a command at random moments; it is started again, not for ever, if it ends or gdb shows none."""
    moments, seen = random.Random(6), 0
    for _ in range(number):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                while seen < number and process.poll() is None:
                    time.sleep(moments.uniform(0.02, 0.15))
                    if not (threads := stop(process.pid)):
                        break
                    seen += len(threads)
                    yield from threads
            finally:
                process.kill()
        if seen >= number:
            return
    raise AssertionError(f"gdb showed {seen} threads, not {number}, in {number} starts of {command[0]}")


def main(number: int, command: list[str]) -> int:
    ends: Counter[str] = Counter()
    for one in random_stops(command, number):
        ends["same frames" if one.agrees else "other frames"] += 1
        ends[f"ours ended: {one.end.name}"] += 1
        if not one.agrees:
            print("gdb ", [f"{pc:x}" for pc in one.gdb], "ours", [f"{pc:x}" for pc in one.ours], one.end.name)
    print(*(f"{count} {what}" for what, count in sorted(ends.items())), sep=", ")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
