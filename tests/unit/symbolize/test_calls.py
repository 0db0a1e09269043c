# SPDX-License-Identifier: Apache-2.0
"""Frames without a symbol are named by the calls that led to them, and only where that is certain."""

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
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.model.profile import Profile
from perf_offcpu.script.fields import FieldChoice
from perf_offcpu.script.frames import FrameTexts
from perf_offcpu.symbolize.symbolizer import symbolize

CALL, OWN, STUB, SLOT = 0x78, 0xA0, 0xD0, 0x8008
"""Addresses in the program, of CALL also the offset: where files with one segment begin."""
WAIT, INNER, HANDLER_END = 0x80, 0xA0, 0xC0
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


def names(profile: Profile, sample: int = 0) -> list[str]:
    """Return the symbols of a sample, leaf first."""
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
    file, chain = program(call, **options), [LIBRARY + INNER, returns_to]
    profile = symbolized(tmp_path, file, library(), [chain])
    assert names(profile) == ["wait" if case in CERTAIN else "", ""]
    profile = symbolized(tmp_path, file, library("other"), [chain])
    assert names(profile) == ["", ""], "of another file that exports it"


@pytest.mark.parametrize(("target", "frame", "name"), [(OWN, 0xB0, "own"), (OWN + 4, 0xB0, ""), (0xB0, 0xB4, "")])
def test_functions_of_the_same_file(target: int, frame: int, name: str, tmp_path: Path) -> None:
    chain = [PROGRAM + frame, PROGRAM + CALL + 5]
    assert names(symbolized(tmp_path, program(relative(b"\xe8", target)), library(), [chain])) == [name, ""]


def test_each_call_names_its_frames_only(tmp_path: Path) -> None:
    """What a signal interrupted after a call did not call the handler, nor the code that ends it."""
    called, other = [LIBRARY + INNER, PROGRAM + CALL + 5], [LIBRARY + INNER, PROGRAM + CALL + 20]
    handler = [LIBRARY + INNER, LIBRARY + HANDLER_END, PROGRAM + CALL + 5]
    profile = symbolized(tmp_path, program(CALL_STUB), library(), [called, other, handler])
    assert [names(profile, row) for row in range(3)] == [["wait", ""], ["", ""], ["", "", ""]]
    assert profile.losses[losses.NO_SYMBOL] == 4, "the inner function, the end of the handler and two callers"
    profile = symbolized(tmp_path, program(CALL_STUB), library(), [called])
    assert profile.losses[losses.NO_SYMBOL] == 1
    lines = FrameTexts(profile, FieldChoice(frozenset({"sym", "symoff"}))).lines(int(profile.samples.stack[0]))
    assert lines == "\twait (called)\n\t[unknown]\n"


def test_damaged_files_name_nothing_else(tmp_path: Path) -> None:
    files, draw = [program(CALL_STUB), library()], random.Random(7)
    chain, answers = [LIBRARY + INNER, PROGRAM + CALL + 5], set[str]()
    for number in range(60):
        damaged = [bytearray(file) for file in files]
        file = damaged[number % 2]
        if number < 20:
            del file[draw.randrange(len(file)) :]
        else:
            for _ in range(3):
                file[draw.randrange(len(file))] = draw.choice((0, 1, 0x7F, 0xFF))
        damaged_program, damaged_library = map(bytes, damaged)
        answers.add(names(symbolized(tmp_path, damaged_program, damaged_library, [chain]))[0])
    assert {"wait", ""} <= answers, answers
    assert all(len(answer) <= 4 for answer in answers), answers
