# SPDX-License-Identifier: Apache-2.0
"""symbolize(): samples without callchains, cookies, kept addresses; frames without a symbol, named by certain calls."""

import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builders.chains import recording_of_chains
from builders.elf import AARCH64, ALLOC, EXEC, RELA, X86_64, ElfBuilder, Load, Sec, Sym
from builders.profile import functions_of

from perf_offcpu import losses
from perf_offcpu.abi.records import CpuMode
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.model.callchains import frames_of
from perf_offcpu.model.profile import Profile
from perf_offcpu.model.recording import Recording, Spaces
from perf_offcpu.script.fields import FieldChoice
from perf_offcpu.script.frames import FrameTexts
from perf_offcpu.symbolize import symbolizer
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import COOKIE, symbolize

KERNEL, USER, WAITING = (int(CallchainContext.KERNEL), int(CallchainContext.USER), int(CallchainContext.USER_DEFERRED))
TEXT = 2**64 - 2**31


@pytest.fixture
def kallsyms(tmp_path: Path) -> str:
    """A kernel with padding in front of its functions, 0x10 bytes long."""
    names = ["_text", "__pfx_first", "first", "__pfx_second", "second", "_etext"]
    places = [0, 0x100, 0x110, 0x200, 0x210, 0x1000]
    path = tmp_path / "kallsyms"
    path.write_text("".join(f"{TEXT + at:x} T {name}\n" for at, name in zip(places, names, strict=True)))
    return str(path)


def recording(chains: list[list[int]], **columns: list[int]) -> Recording:
    """One sample a chain, None of it mapped but two processes' code at different places."""
    mapped = [(space, start, start + 0x1000, 0, "/nowhere/app") for space, start in enumerate((0x1000, 0x5000))]
    return recording_of_chains(chains, *mapped, columns=columns, spaces=Spaces.filled(2, pid=[1, 2]))


def names(profile: Profile, sample: int = 0) -> list[str]:
    """symbol+offset of a sample's frames, leaf first; the dso where there is no symbol."""
    frames, text = profile.frames, profile.strings
    return [
        f"{text[frames.symbol[row]]}+{int(frames.offset[row]):#x}" if frames.symbol[row] else text[frames.dso[row]]
        for row in reversed(frames_of(profile.stacks.parent, profile.stacks.frame, int(profile.samples.stack[sample])))
    ]


@pytest.mark.parametrize(("callers", "shown"), [
    ([0x200], ["first+0xf0"]),  # looked up a byte before, and shown as recorded
    ([0x210, 0x211], ["second+0x0", "second+0x1"]),  # an interrupt: before is padding, in which nothing is called
])  # fmt: skip
def test_return_addresses_belong_to_the_call_before_them(callers: list[int], shown: list[str], kallsyms: str) -> None:
    """The leaf is where the CPU was."""
    chain = [KERNEL, TEXT + 0x120, *(TEXT + at for at in callers)]
    assert names(symbolize(recording([chain]), SymbolizeOptions(kallsyms=kallsyms))) == ["first+0x10", *shown]


def test_a_sample_without_callchain_has_its_address(kallsyms: str) -> None:
    columns: dict[str, Any] = {
        "callchain": [-1, -1, -1, 0, -1], "ip": [TEXT + 0x110, 0x1234, 0, 0x1500, 0x1234], "space": [0] * 5,
        "cpumode": [CpuMode.KERNEL, CpuMode.USER, CpuMode.USER, CpuMode.USER, CpuMode.HYPERVISOR],
    }  # fmt: skip
    profile = symbolize(recording([[]], **columns), SymbolizeOptions(kallsyms=kallsyms))
    profile.check()
    assert [names(profile, row) for row in (0, 1, 3)] == [["first+0x0"], ["/nowhere/app"], ["/nowhere/app"]]
    assert profile.samples.stack[[2, 4]].tolist() == [-1, -1]


def test_a_cookie_is_no_code() -> None:
    """It has the value of an address that is mapped, and is still none."""
    profile = symbolize(recording([[USER, 0x1500], [WAITING, 0x1500]]), SymbolizeOptions(keep_ips=True))
    assert names(profile, 0) == ["/nowhere/app"]
    assert names(profile, 1) == [f"{COOKIE}+0x0"]
    assert profile.frames.ip.tolist() == [0x1500, 0x1500]


def test_the_same_code_of_two_processes_is_one_frame_unless_addresses_are_kept() -> None:
    both = recording([[USER, 0x1500], [USER, 0x5500]], space=[0, 1])
    profile = symbolize(both)
    assert len(profile.frames) == 1
    assert profile.frames.ip.tolist() == [0]
    kept = symbolize(both, SymbolizeOptions(keep_ips=True))
    assert sorted(kept.frames.ip.tolist()) == [0x1500, 0x5500]
    assert kept.frames.address.tolist() == [0x500, 0x500]


def test_blocks_of_samples_share_their_locations(monkeypatch: pytest.MonkeyPatch) -> None:
    chains = [[USER, 0x1500], [USER, 0x5500, 0x1500], []]
    columns = {"callchain": [0, 1, -1, 0, 1, 2, 1], "space": [0, 1, 0, 1, 1, 0, -1]}
    for more in ({}, {"waker_callchain": [-1, 0, 0, -1, 1, -1, -1]}):
        whole = symbolize(recording(chains, **columns, **more))
        monkeypatch.setattr(symbolizer, "_BLOCK", 2)
        profile = symbolize(recording(chains, **columns, **more))
        monkeypatch.undo()
        assert profile.samples.stack.tolist() == whole.samples.stack.tolist()
        assert profile.samples.waker_stack.tolist() == whole.samples.waker_stack.tolist()
        assert (profile.samples.stack >= 0).tolist() == [True, True, False, True, True, False, True]
        assert (profile.samples.waker_stack >= 0).sum() == (3 if more else 0)
        assert names(profile) == names(whole)


CALL, OWN, STUB, SLOT = 0x78, 0xA0, 0xD0, 0x8008
"""Addresses in the program, of CALL also the offset: where files with one segment begin."""
WAIT, IN_WAIT, HANDLER_END = 0x80, 0xA0, 0xC0
"""Addresses in the library: wait() is exported, the others have no symbol."""
PROGRAM, LIBRARY = 0x400000, 0x7F0000000000
GLOB_DAT, JUMP_SLOT, POINTER, JUMP_SLOT_ARM64 = 6, 7, 1, 1026


def relative(opcode: bytes, target: int, at: int = CALL) -> bytes:
    return opcode + struct.pack("<i", target - at - len(opcode) - 4)


def arm64(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


PLT = bytes(STUB - 0xC0) + relative(b"\xff\x25", SLOT, STUB).ljust(16, b"\x90")
PLT_ARM64 = bytes(STUB - 0xC0) + arm64(0x90000050, 0xF9400611, 0x91002210, 0xD61F0220)
GUARDED_ARM64 = bytes(STUB - 0xC0) + arm64(0xD503245F, 0x90000050, 0xF9400611, 0x91002210, 0xD61F0220)
BL = arm64(0x94000000 | (STUB - CALL) // 4)
CALL_STUB = relative(b"\xe8", STUB)
CUT = relative(b"\xe8", STUB, 0xFFE).rjust(0x1003 - CALL, b"\x90")


def program(
    call: bytes, kind: int = JUMP_SLOT, plt: bytes = PLT, machine: int = X86_64, first: int = CALL, size: int = 24
) -> bytes:
    """Return a file with a call, and a stub and a slot for wait(). `kind` is that of the relocation of the slot; the
    segment begins at `first`, in the file as in memory; `size` are the bytes of the relocations, as the file claims."""
    relocation = struct.pack("<QQq", SLOT, 1 << 32 | kind, 0)
    sections = [Sec(".text", CALL, call.ljust(0xC0 - CALL, b"\x90")), Sec(".plt", 0xC0, plt)]
    sections.append(Sec(".rela.plt", 0, relocation, RELA, ALLOC, size, entsize=24))
    symbols, load = [Sym("wait", 0, section=0), Sym("own", OWN, 8)], Load(first, first, 0x2000)
    return ElfBuilder([], symbols, sections, [load], type=EXEC, machine=machine).build()


def library(export: str = "wait") -> bytes:
    text = bytes(HANDLER_END - CALL) + bytes.fromhex("48c7c00f0000000f05") + bytes(64)
    return ElfBuilder([], [Sym(export, WAIT, 16)], [Sec(".text", CALL, text)]).build()


def symbolized(directory: Path, program: bytes, library: bytes, chains: Sequence[Sequence[int]]) -> Profile:
    """Return the profile of callchains of a process that has both files mapped."""
    paths = [str(directory / name) for name in ("program", "library")]
    for path, content in zip(paths, (program, library), strict=True):
        Path(path).write_bytes(content)
    recording = recording_of_chains(
        [[CallchainContext.USER, *chain] for chain in chains],
        (0, PROGRAM, PROGRAM + 0x2000, 0, paths[0]), (0, LIBRARY, LIBRARY + 0x1000, 0, paths[1]),
    )  # fmt: skip
    profile = symbolize(recording)
    profile.check()
    return profile


def named(profile: Profile, sample: int = 0) -> list[str]:
    return functions_of(profile, int(profile.samples.stack[sample]))[::-1]


CERTAIN: dict[str, tuple[bytes, dict[str, Any]]] = {
    "call of a PLT stub": (CALL_STUB, {}),
    "call through a slot": (relative(b"\xff\x15", SLOT), {"kind": GLOB_DAT}),
    "call through a slot at a fixed address": (b"\xff\x14\x25" + struct.pack("<i", SLOT), {"kind": GLOB_DAT}),
    "bl": (BL, {"kind": JUMP_SLOT_ARM64, "plt": PLT_ARM64, "machine": AARCH64}),
    "bl, stub with bti": (BL, {"kind": JUMP_SLOT_ARM64, "plt": GUARDED_ARM64, "machine": AARCH64}),
}
UNCERTAIN: dict[str, tuple[bytes, dict[str, Any]]] = {
    "through a register": (b"\x90\x90\x90\xff\xd0", {}),
    "pointer that may have changed": (relative(b"\xff\x15", SLOT), {"kind": POINTER}),
    "other slot": (relative(b"\xff\x15", SLOT + 8), {}), "middle of a stub": (relative(b"\xe8", STUB + 2), {}),
    "function of the program": (relative(b"\xe8", OWN), {}), "instruction cut by the segment": (CUT, {"first": 0x1000}),
    "begin of the file": (b"", {"first": 0}), "relocations beyond the file": (CALL_STUB, {"size": 1 << 40}),
    "code of another machine": (CALL_STUB, {"machine": AARCH64}),
}  # fmt: skip


@pytest.mark.parametrize("case", [*CERTAIN, *UNCERTAIN])
def test_imported_functions(case: str, tmp_path: Path) -> None:
    call, options = (CERTAIN | UNCERTAIN)[case]
    returns_to = PROGRAM + CALL + len(call) if call else PROGRAM + 3
    file, chain = program(call, **options), [LIBRARY + IN_WAIT, returns_to]
    profile = symbolized(tmp_path, file, library(), [chain])
    assert named(profile) == ["wait" if case in CERTAIN else "", ""]
    profile = symbolized(tmp_path, file, library("other"), [chain])
    assert named(profile) == ["", ""], "of another file that exports it"


@pytest.mark.parametrize(("target", "frame", "name"), [(OWN, 0xB0, "own"), (OWN + 4, 0xB0, ""), (0xB0, 0xB4, "")])
def test_functions_of_the_same_file(target: int, frame: int, name: str, tmp_path: Path) -> None:
    chain = [PROGRAM + frame, PROGRAM + CALL + 5]
    assert named(symbolized(tmp_path, program(relative(b"\xe8", target)), library(), [chain])) == [name, ""]


def test_each_call_names_its_frames_only(tmp_path: Path) -> None:
    """What a signal interrupted after a call did not call the handler, nor the code that ends it."""
    called, other = [LIBRARY + IN_WAIT, PROGRAM + CALL + 5], [LIBRARY + IN_WAIT, PROGRAM + CALL + 20]
    handler = [LIBRARY + IN_WAIT, LIBRARY + HANDLER_END, PROGRAM + CALL + 5]
    profile = symbolized(tmp_path, program(CALL_STUB), library(), [called, other, handler])
    assert [named(profile, row) for row in range(3)] == [["wait", ""], ["", ""], ["", "", ""]]
    assert profile.losses[losses.NO_SYMBOL] == 4, "the inner function, the end of the handler and two callers"
    profile = symbolized(tmp_path, program(CALL_STUB), library(), [called])
    assert profile.losses[losses.NO_SYMBOL] == 1
    lines = FrameTexts(profile, FieldChoice(frozenset({"sym", "symoff"}))).lines(int(profile.samples.stack[0]))
    assert lines == "\twait (called)\n\t[unknown]\n"


def test_damaged_files_name_nothing_else(tmp_path: Path) -> None:
    files, draw = [program(CALL_STUB), library()], random.Random(7)
    chain, answers = [LIBRARY + IN_WAIT, PROGRAM + CALL + 5], set[str]()
    for number in range(60):
        damaged = [bytearray(file) for file in files]
        file = damaged[number % 2]
        if number < 20:
            del file[draw.randrange(len(file)) :]
        else:
            for _ in range(3):
                file[draw.randrange(len(file))] = draw.choice((0, 1, 0x7F, 0xFF))
        damaged_program, damaged_library = map(bytes, damaged)
        answers.add(named(symbolized(tmp_path, damaged_program, damaged_library, [chain]))[0])
    assert {"wait", ""} <= answers, answers
    assert all(len(answer) <= 4 for answer in answers), answers
