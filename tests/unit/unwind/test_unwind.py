# SPDX-License-Identifier: Apache-2.0
"""Stacks made by hand are unwound: every kind of rule, every kind of end, and rules made to harm."""

import gc
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from builders.cfi import RBP, RBX, RIP, RSP, USUAL, cie, section, table_of, uleb
from builders.chains import chains_of

from perf_offcpu import losses
from perf_offcpu.abi.attr import Attr
from perf_offcpu.abi.sample import CallchainContext
from perf_offcpu.model.callchains import Ragged, Snapshots
from perf_offcpu.model.columns import U64, Bool
from perf_offcpu.model.recording import Dsos, Evsel, Maps, Meta, Recording, SampleFlag, Samples, Spaces
from perf_offcpu.objects.search import Search
from perf_offcpu.objects.symtab import NO_ADDRESS
from perf_offcpu.symbolize.symbolizer import symbolize
from perf_offcpu.unwind import unwinder as module
from perf_offcpu.unwind.cfi.program import Cfa
from perf_offcpu.unwind.expression import Op
from perf_offcpu.unwind.lookup import FileTable
from perf_offcpu.unwind.step import Walk
from perf_offcpu.unwind.unwinder import unwind

KERNEL, USER = int(CallchainContext.KERNEL), int(CallchainContext.USER)
CODE, JIT, STACK = 0x400000, 0x7000000, 0x7FF000
PLAIN, FRAMED, ROOT, BARE = 0x1000, 0x1100, 0x1200, 0x1300
PERF_BP, PERF_SP, PERF_IP = 6, 7, 8
MASK = 1 << PERF_BP | 1 << PERF_SP | 1 << PERF_IP

FUNCTIONS = [
    (PLAIN, 0x40, bytes([Cfa.DEF_CFA_OFFSET, 24])),  # RSP+24
    (FRAMED, 0x40, bytes([Cfa.DEF_CFA, RBP, 16, 0x80 | RBP, 2])),  # push rbp; mov rsp, rbp
    (ROOT, 0x40, bytes([Cfa.UNDEFINED, RIP])),
]


class Tables:
    """Frame rules in place of those of the recording's files."""

    def __init__(self, content: bytes) -> None:
        self.table = table_of(content)

    def of_dso(self, dso: int, _: bool) -> FileTable | None:
        return FileTable(self.table, lambda offsets: offsets, "") if dso == 0 else None

    def calls(self, dso: int, offsets: U64) -> tuple[Bool, U64]:
        """Every address but the first of a function follows a call through a pointer."""
        return (offsets & np.uint64(0x3F)) > 0, np.full(len(offsets), NO_ADDRESS)


def recording_of(
    stacks: Sequence[Sequence[int]], pcs: Sequence[int], *, fps: Sequence[int] | None = None,
    chain: Sequence[int] = (KERNEL, 2**64 - 5000, USER, CODE + 1), arch: str = "x86_64",
) -> Recording:  # fmt: skip
    """Samples of one process, each with a stack from STACK on; a file is mapped at CODE, JIT code at JIT."""
    number = len(stacks)
    registers = [[fp, STACK, pc] for fp, pc in zip(fps or [0] * number, pcs, strict=True)]
    recording = Recording(
        samples=Samples.filled(
            number, evsel=-1, time_ns=np.arange(number), space=0, callchain=0, snapshot=np.arange(number),
            flags=int(SampleFlag.NO_USER_STACK),
        ),
        callchains=Ragged.from_lists([list(chain)]),
        snapshots=Snapshots(
            np.full(number, MASK, np.uint64), Ragged.from_lists(registers),
            Ragged.from_lists([list(stack) for stack in stacks]),
        ),
        spaces=Spaces.filled(1),
        maps=Maps.filled(
            2, start=np.array([CODE, JIT], np.uint64),
            end=np.array([CODE + 0x10000, JIT + 0x10000], np.uint64), dso=np.array([0, 1]),
        ),
        dsos=Dsos.filled(2),
        meta=Meta(arch=arch),
    )  # fmt: skip
    recording.check()
    return recording


def unwound(
    monkeypatch: pytest.MonkeyPatch, recording: Recording, content: bytes | None = None, search: Search | None = None
) -> tuple[Recording, list[list[int]]]:
    tables = Tables(section(*FUNCTIONS) if content is None else content)
    monkeypatch.setattr(module, "FrameTables", lambda *_: tables)
    result = unwind(recording, search)
    result.check()
    assert not len(result.snapshots)
    return result, chains_of(result)


def test_a_stack_is_followed_to_its_root(monkeypatch: pytest.MonkeyPatch) -> None:
    framed = STACK + 24 + 8  # where FRAMED keeps its caller's frame pointer
    stack = [7, 7, CODE + FRAMED + 5, 9, 0, CODE + ROOT + 8]
    result, chains = unwound(monkeypatch, recording_of([stack], [CODE + PLAIN], fps=[framed]))
    user = [USER, CODE + PLAIN, CODE + FRAMED + 5, CODE + ROOT + 8]
    assert chains == [[KERNEL, 2**64 - 5000, *user]]
    assert result.samples.flags.tolist() == [0] and result.losses == {}


@pytest.mark.parametrize(("outermost", "callers", "flags"), [
    (ROOT + 5, [FRAMED + 5, FRAMED + 6, ROOT + 5], 0),
    (BARE + 5, [FRAMED + 5], SampleFlag.TRUNCATED | SampleFlag.NO_CFI),  # it leads astray
])  # fmt: skip
def test_a_frame_pointer_that_is_not_known_is_found_by_the_records_of_frames(
    outermost: int, callers: list[int], flags: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = STACK + 8 * 10  # the record of the caller, to which an older, lower record links, too
    stale, own = [outer, CODE + FRAMED + 7], [outer, CODE + FRAMED + 6]
    stack = [7, 7, CODE + FRAMED + 5, 9, *stale, 9, *own, 9, 1, CODE + outermost]
    recording = recording_of([stack], [CODE + PLAIN], chain=())
    recording.snapshots.mask[:] = 1 << PERF_SP | 1 << PERF_IP
    recording.snapshots.registers = Ragged.from_lists([[STACK, CODE + PLAIN]])
    result, chains = unwound(monkeypatch, recording)
    assert chains == [[USER, CODE + PLAIN, *(CODE + caller for caller in callers)]]
    assert result.samples.flags.tolist() == [flags]


def test_a_recording_ends_with_its_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cycle of the unwinder keeps it until the collector comes: `top` and the agent unwind one after the other."""
    recording = recording_of([[7, 7, CODE + ROOT + 5]], [CODE + PLAIN])
    seen = weakref.ref(recording.snapshots.registers.values)
    gc.collect()
    gc.disable()
    try:
        unwound(monkeypatch, recording)
        del recording
        assert seen() is None
    finally:
        gc.enable()


def test_many_stacks_of_different_depth_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    depths = [1, 2, 30, 5, 900, 3]
    stacks = [[0, 0, CODE + PLAIN + 4] * (depth - 1) + [0, 0, CODE + ROOT + 1] for depth in depths]
    _, chains = unwound(monkeypatch, recording_of(stacks, [CODE + PLAIN] * len(depths), chain=()))
    for depth, chain in zip(depths, chains, strict=True):
        callers = [CODE + PLAIN + 4] * (depth - 1)
        assert chain == [USER, CODE + PLAIN, *callers, CODE + ROOT + 1]


@pytest.mark.parametrize(("words", "stack_bytes", "cause"), [
    (4, 32, losses.COPY_EXHAUSTED), (4, 8, losses.COPY_EXHAUSTED),  # of a wait: four times as much
    (4, 8192, losses.STACK_TOO_DEEP),  # the copy ends where the stack does
    (4096, 32768, losses.STACK_TOO_DEEP), (4096, 8192, losses.STACK_TOO_DEEP),
])  # fmt: skip
def test_the_end_of_the_copy_is_said_with_advice_where_more_would_help(
    words: int, stack_bytes: int, cause: losses.LossCause, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = recording_of([([0, 0, CODE + PLAIN + 4] * words)[:words]], [CODE + PLAIN])
    recording.evsels.append(Evsel("offcpu-time", Attr(sample_stack_user=stack_bytes)))
    recording.samples.evsel = np.zeros(1, np.int32)
    result, chains = unwound(monkeypatch, recording)
    assert chains[0][-1] == CODE + PLAIN + 4
    assert result.samples.flags.tolist() == [SampleFlag.TRUNCATED | SampleFlag.STACK_EXHAUSTED]
    assert result.losses == {cause: 1}


def test_frames_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    result, (chain,) = unwound(monkeypatch, recording_of([[0, 0, CODE + PLAIN + 4] * 2000], [CODE + PLAIN], chain=()))
    assert len(chain) == 1 + 1024 and result.samples.has(SampleFlag.TRUNCATED).all()


CUT = SampleFlag.TRUNCATED
JITTED = [CODE + PLAIN, JIT + 0x100]
NO_RA = section((BARE, 0x40, b""), common=cie(bytes([Cfa.DEF_CFA, RSP, 8])))


@pytest.mark.parametrize(("stack", "fp", "user", "flags"), [
    # a return address outside of every map is no frame
    ([0, 0, 0xDEAD0000, 0, 0], 0, [CODE + PLAIN], CUT | SampleFlag.OUTSIDE_MAPS),
    # code without rules is passed by its frame pointer
    ([1, 2, JIT + 0x100, 3, 0, CODE + ROOT + 1], STACK + 32, [*JITTED, CODE + ROOT + 1], 0),
    # code without rules and frame pointer ends the stack, also where that leads to no code
    ([1, 2, JIT + 0x100, 3, 0, 0x1234], 12345, JITTED, CUT | SampleFlag.NO_CFI),
    ([1, 2, JIT + 0x100, 3, 0, 0x1234], STACK + 32, JITTED, CUT | SampleFlag.NO_CFI),
    # a frame pointer of zero is the outermost frame
    ([0, 0, JIT + 8, 1], 0, [CODE + PLAIN, JIT + 8], 0),
    # memory that could not be read is an empty copy
    ([], 0, [CODE + PLAIN], CUT | SampleFlag.STACK_EXHAUSTED),
    # rules that leave the return address out end the stack
    ([CODE + BARE + 4] * 50, 0, [CODE + BARE], CUT | SampleFlag.NO_CFI),
])  # fmt: skip
def test_stacks_end(stack: list[int], fp: int, user: list[int], flags: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content = NO_RA if user[0] == CODE + BARE else None
    result, chains = unwound(monkeypatch, recording_of([stack], user[:1], fps=[fp]), content)
    assert chains == [[KERNEL, 2**64 - 5000, USER, *user]]
    assert result.samples.flags.tolist() == [flags]


@pytest.mark.parametrize("size, call", [(0xF, 10), (0xB, 6)], ids=["with endbr64", "without"])
def test_pythons_trampolines_are_passed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int, call: int) -> None:
    """Two Python functions, and one that is not Python's but as large."""
    (tmp_path / "tmp").mkdir()
    names = ["py::inner:/x.py", "py::outer:/x.py", "other"]
    lines = [f"{JIT + 0x10 * at:x} {size:x} {name}\n" for at, name in enumerate(names)]
    (tmp_path / "tmp/perf-77.map").write_text("".join(lines))
    inner, outer, other = (JIT + 0x10 * at + call for at in range(3))
    python = [0, 0, inner, 0, CODE + PLAIN + 4, 0, 0, outer, 0, CODE + ROOT + 1]
    recording = recording_of([python, [0, 0, other, 0, CODE + ROOT + 1]], [CODE + PLAIN] * 2, fps=[12345] * 2, chain=())
    recording.spaces.pid[:] = 77
    result, chains = unwound(monkeypatch, recording, search=Search(symfs=str(tmp_path)))
    assert chains[0] == [USER, CODE + PLAIN, inner, CODE + PLAIN + 4, outer, CODE + ROOT + 1]
    assert chains[1] == [USER, CODE + PLAIN, other]
    assert result.samples.flags.tolist() == [0, SampleFlag.TRUNCATED | SampleFlag.NO_CFI]


def test_frames_of_javas_compilers_and_interpreter_are_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled function has no frame pointer, but a frame of known size; the interpreter has one, and below it the
    stack pointer of its caller, which had made room for arguments."""
    size, begin, interpreter, bare = 0x30, 0xC, JIT + 0x100, JIT + 0x200
    lines = [f"{JIT:x} 40 void A.f()", f"{interpreter:x} 100 Interpreter", f"{bare:x} 40 stub"]
    text = "\n".join([*lines, f":frame {JIT:x} {size:x} {begin:x}", f":frame {bare:x} ffffff 0", ""]).encode()
    frame = [0] * (size // 8 - 2)
    fp, method = STACK + 8 * 16, STACK + (1 << 30)
    inner, outer = [*frame, fp, interpreter + 0x10], [*frame, 0, CODE + ROOT + 1]
    variables, constants, sender = fp + 24, JIT + 0x1000, fp + 32
    interpreted = [variables, constants, 0, 0, method, 0, sender, 0, JIT + 0x20, 0, 0]
    stack = [0, 0, JIT + 0x20, *inner, *interpreted, *outer]
    recordings = [recording_of([stack], [CODE + PLAIN], fps=[12345], chain=()) for _ in range(5)]
    stacks = [[0, 0, place, *stack[3:]] for place in (JIT + begin, bare + 9, bare + 0x80)]
    others = recording_of(stacks, [CODE + PLAIN] * 3, fps=[fp] * 3, chain=())
    for recording in (*recordings, others):
        recording.spaces.pid[:] = 77
        recording.perf_maps = {77: text}
    recordings[1].perf_maps = {78: text}
    for recording in recordings[2:]:
        recording.perf_maps = {77: text + b":method %x 58 long A.g(int)\n" % method}
    flags = SampleFlag.STILL_BLOCKED, SampleFlag.OFFCPU, SampleFlag.OFFCPU
    for recording, flag in zip(recordings[2:], flags, strict=True):
        recording.samples.flags = recording.samples.flags | np.uint32(flag)
        recording.samples.pid[:], recording.samples.time_ns[:] = 77, 5000
    recordings[3].perf_maps[77] += b":apart 5001\n"
    recordings[4].perf_maps[77] += b":apart 5000\n"
    results, chains = zip(*(unwound(monkeypatch, recording) for recording in (*recordings, others)), strict=True)
    called = [USER, CODE + PLAIN, JIT + 0x20]
    assert chains[0] == [[*called, interpreter + 0x10, JIT + 0x20, CODE + ROOT + 1]]
    assert chains[1] == [called], "of another process"
    cut = [[USER, CODE + PLAIN, place] for place in (JIT + begin, bare + 9, bare + 0x80)]
    assert chains[2] == [[*called, method + 1, JIT + 0x20, CODE + ROOT + 1]]
    profile = symbolize(results[2])
    assert "long A.g(int)" in {profile.strings[row] for row in profile.frames.symbol.tolist()}
    assert chains[3] == chains[0], "another wait may have the copy, too"
    assert chains[4] == chains[2], "it ended after BPF programs began to tell methods apart"
    assert chains[5] == cut, "at the begin of a function, a frame beyond the stack, code that the map lacks"


def test_rules_that_do_not_advance_end_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    still = bytes([Cfa.DEF_CFA_OFFSET, 0, 0x05]) + uleb(RIP) + uleb(0)
    back = bytes([Cfa.DEF_CFA_OFFSET_SF]) + b"\x01"  # RSP-8
    content = section(*FUNCTIONS, (BARE, 0x20, still), (BARE + 0x20, 0x20, back))
    stack = [CODE + BARE + 4] * 50
    result, chains = unwound(monkeypatch, recording_of([stack, stack], [CODE + BARE, CODE + BARE + 0x24]), content)
    assert max(map(len, chains)) <= 6
    assert (result.samples.flags & np.uint32(SampleFlag.TRUNCATED)).all()


def test_a_plt_stub_and_its_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    # What linkers write: CFA = rsp + 8 + ((rip & 15) >= 11) * 8
    block = bytes([Op.BREG0 + 7, 8, Op.BREG0 + 16, 0, 0x3F, Op.AND, 0x3B, Op.GE, 0x33, Op.SHL, Op.PLUS])
    content = section(*FUNCTIONS, (BARE, 0x20, bytes([Cfa.DEF_CFA_EXPRESSION, len(block)]) + block))
    recording = recording_of([[CODE + ROOT + 1, 0], [7, CODE + ROOT + 1]], [CODE + BARE + 0x10, CODE + BARE + 0x1B])
    result, chains = unwound(monkeypatch, recording, content)
    assert [chain[-1] for chain in chains] == [CODE + ROOT + 1] * 2
    assert result.samples.flags.tolist() == [0, 0]


def test_a_signal_frame_gives_the_registers_that_were_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def at(register: int, offset: int) -> bytes:
        block = bytes([Op.BREG0 + 7]) + bytes([offset])
        return bytes([Cfa.EXPRESSION, register, len(block)]) + block

    frame = bytes([Op.BREG0 + 7, 16, Op.DEREF])
    program = bytes([Cfa.DEF_CFA_EXPRESSION, 3]) + frame + at(RBP, 8) + at(RSP, 16) + at(RIP, 24)
    # The second CIE is after the first function: its FDEs count from there.
    content = section((BARE, 0x20, program), common=cie(USUAL + b"\0\0", b"zRS"))[:-4] + section(*FUNCTIONS)
    interrupted = CODE + FRAMED  # the first byte of a function: no byte before it would do
    stack = [0, STACK + 6 * 8, STACK + 5 * 8, interrupted, 0, 0, 0, CODE + ROOT + 1]
    result, chains = unwound(monkeypatch, recording_of([stack], [CODE + BARE + 1]), content)
    assert chains[0][-3:] == [CODE + BARE + 1, interrupted, CODE + ROOT + 1]
    assert result.samples.flags.tolist() == [0]


def test_a_frame_that_another_register_leads_to_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its callee has saved that register, and two others have not touched it; neighbours go without."""
    saves = bytes([Cfa.DEF_CFA_OFFSET, 24, 0x80 | RBX, 2])
    content = section(*FUNCTIONS, (BARE, 0x20, saves), (BARE + 0x20, 0x20, bytes([Cfa.DEF_CFA, RBX, 16])))
    inner = [7, STACK + 10 * 8, CODE + PLAIN + 4, 0, 0, CODE + BARE + 0x24]
    stack = [*inner, 1, 2, 3, 4, 5, CODE + ROOT + 1]
    other = [7, STACK + 10 * 8, CODE + PLAIN + 4, 0, 0, CODE + ROOT + 1]
    result, chains = unwound(monkeypatch, recording_of([other, stack, other], [CODE + BARE + 1] * 3), content)
    plain = [USER, CODE + BARE + 1, CODE + PLAIN + 4]
    assert chains[1][2:] == [*plain, CODE + BARE + 0x24, CODE + ROOT + 1]
    assert chains[0][2:] == chains[2][2:] == [*plain, CODE + ROOT + 1]
    assert result.samples.flags.tolist() == [0] * 3


def test_slow_rules_are_counted_by_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long recording of PLT stubs is no hostile one."""
    content = section(*FUNCTIONS, (BARE, 0x20, bytes([Cfa.DEF_CFA_EXPRESSION, 2, Op.BREG0 + 7, 8])))
    recording = recording_of([[CODE + ROOT + 1]] * 40, [CODE + BARE + 1] * 40)
    monkeypatch.setattr(module, "MAX_GENERAL", 8)
    monkeypatch.setattr(module, "BATCH", 1)
    monkeypatch.setattr(module, "MORE_GENERAL", 1)
    assert not unwound(monkeypatch, recording, content)[0].losses
    monkeypatch.setattr(module, "MORE_GENERAL", 0)
    assert unwound(monkeypatch, recording, content)[0].losses == {losses.NO_CFI: 32}


def hostile() -> tuple[Recording, bytes]:
    seeded, functions = np.random.default_rng(6), []
    for place in range(0, 0x8000, 0x40):
        program = bytes([Cfa.DEF_CFA, int(seeded.integers(20)), *uleb(int(seeded.integers(64)))])
        program += seeded.integers(256, size=6, dtype=np.uint8).tobytes()
        functions.append((0x1000 + place, 0x40, program))
    number = 300
    words = seeded.integers(CODE + 0x1000, CODE + 0x9000, size=(number, 64)).tolist()
    pcs = seeded.integers(CODE + 0x1000, CODE + 0x9000, size=number).tolist()
    return recording_of(words, pcs, fps=(STACK + 8 * seeded.integers(80, size=number)).tolist()), section(*functions)


def test_hostile_rules_and_stacks_cost_no_more_than_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    _, chains = unwound(monkeypatch, *hostile())
    assert len(chains) == 300 and max(map(len, chains)) <= 64 + 4
    assert all(word >= CODE for chain in chains for word in chain)


def test_walks_that_follow_only_what_is_asked_for_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    result, chains = unwound(monkeypatch, *hostile())
    all_followed = partial(Walk, follow_all=True)
    monkeypatch.setattr(module, "walk_up", lambda *arguments: all_followed(*arguments).run())
    whole, others = unwound(monkeypatch, *hostile())
    assert chains == others and result.samples.flags.tolist() == whole.samples.flags.tolist()


def test_a_machine_without_rules_here_keeps_its_callchains(monkeypatch: pytest.MonkeyPatch) -> None:
    result, chains = unwound(monkeypatch, recording_of([[0]], [CODE + PLAIN], arch="s390x"))
    assert chains == [[KERNEL, 2**64 - 5000, USER, CODE + 1]]
    assert result.losses == {losses.UNKNOWN_MACHINE: 1}
