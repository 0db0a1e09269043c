# SPDX-License-Identifier: Apache-2.0
"""Names of what threads waited for; locks by the variable that they are in, in programs that gcc made; `nm` says where
the variables are."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.compiled import addresses, build
from builders.examples import examples
from builders.hosts import host
from builders.recording import BASE, USER, S, comm, event, side, task, write
from builders.wait_objects import COUNTERS, WAITS, Call, described, thing, wait

from perf_offcpu.abi import offcpu
from perf_offcpu.abi.elf import SegmentFlag
from perf_offcpu.abi.records import RecordType
from perf_offcpu.abi.wait_objects import LockRole as Role
from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.abi.wait_objects import ObjectKind as K
from perf_offcpu.decode.join import JoinOptions
from perf_offcpu.decode.load import load_recording
from perf_offcpu.model.join import join
from perf_offcpu.model.profile import ObjectFact as Fact
from perf_offcpu.model.profile import Profile
from perf_offcpu.objects.elf.image import open_elf
from perf_offcpu.symbolize.load import join_profiles
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize

CLOCK = event("cpu-clock", (1,), BASE | S.CALLCHAIN)
EVENTS = [CLOCK, WAITS, COUNTERS]
SET = "[eventpoll] of a"
NAMES = [comm(CLOCK, 10, 10, "find"), comm(CLOCK, 20, 20, "xz"), comm(CLOCK, 30, 30, "postgres")]


def profile_of(path: Path, *records: bytes) -> Profile:
    profile = symbolize(load_recording(write(path / "x.data", EVENTS, [*NAMES, *records])))
    profile.check()
    return profile


def names(profile: Profile, column: str = "name") -> list[str]:
    texts = [profile.strings[row] for row in getattr(profile.objects, column).tolist()]
    return [texts[row] if row >= 0 else "" for row in profile.samples.object.tolist()]


def fields_of(text: str) -> dict[str, Any]:
    """Return name → value of the words `NAME=VALUE`: numbers, names of LockRole, texts."""
    pairs = (word.split("=", 1) for word in shlex.split(text))
    named, is_number = Role.__members__, re.compile(r"-?\d+|0x\w+").fullmatch
    return {name: int(value, 0) if is_number(value) else named.get(value, value) for name, value in pairs}


def one_wait(kind: K, fields: dict[str, Any]) -> tuple[bytes, bytes]:
    """Records of a wait for an object that has these fields."""
    return described(thing(7, kind, **fields)), wait(7, syscall=Call.READ)


def both(path: Path, *records: bytes) -> tuple[list[str], list[str]]:
    profile = profile_of(path, *records)
    return names(profile), names(profile, "stable")


@pytest.mark.parametrize(("kind", "fields", "name", "stable"), examples("unit/symbolize/objects.txt", "names"))
def test_names(kind: str, fields: str, name: str, stable: str, tmp_path: Path) -> None:
    assert both(tmp_path, *one_wait(K[kind], fields_of(fields))) == ([name], [stable])


PIPE = described(thing(7, K.PIPE, inode=5))


def test_the_two_ends_of_a_pipe_name_each_other(tmp_path: Path) -> None:
    """The kernel has one object; who waited in which system call tells the ends apart."""
    writes = wait(7, syscall=Call.WRITE)
    for call, word in ((Call.READ, "from"), (Call.POLL, "with")):
        other = wait(7, time=91, pid=20, tid=21, syscall=call)
        assert names(profile_of(tmp_path, PIPE, writes, other)) == ["pipe to xz (20)", f"pipe {word} find (10)"]
    both_read = [wait(7, time=90 + pid, pid=pid, syscall=Call.READ) for pid in (10, 20)]
    assert names(profile_of(tmp_path, PIPE, *both_read)) == ["pipe inode 5"] * 2, "they are at one end"


def test_the_recorder_may_tell_the_end_of_a_pipe(tmp_path: Path) -> None:
    for place, word in (("read end", "from"), ("write end", "to"), ("", "with")):
        pipe = described(thing(7, K.PIPE, inode=5, peer_pid=20, place=place))
        assert names(profile_of(tmp_path, pipe, wait(7, syscall=Call.POLL))) == [f"pipe {word} xz (20)"]


def test_shared_memory_without_a_name_is_one_where_children_inherited_it(tmp_path: Path) -> None:
    ids, place = [(7, 10, 0x7000), (8, 20, 0x7000), (9, 30, 0x9000)], "/dev/zero (deleted)+0x0"
    locks = [thing(id_, K.FUTEX, pid, address=address, place=place) for id_, pid, address in ids]
    waits = [wait(id_, time=90 + id_, pid=pid) for id_, pid, _ in ids]
    expected = [f"shared memory+0x0 at {address:#x}" for *_, address in ids]
    assert names(profile_of(tmp_path, described(*locks), *waits)) == expected


def test_who_ends_the_waits_is_at_the_other_end_of_a_pipe(tmp_path: Path) -> None:
    """Where nobody waited there and the recorder did not look; half of the waits are not enough."""
    waits = [
        wait(7, time=at, syscall=Call.READ, waker_pid=waker, waker_tid=waker, wakeup_ns=at)
        for at, waker in enumerate((20, 20, 30), 90)
    ]
    own = wait(7, time=99, syscall=Call.READ, waker_pid=10, waker_tid=11, wakeup_ns=98)
    for some, name in ((waits, "pipe from xz (20)"), (waits[1:], "pipe inode 5"), ([own], "pipe inode 5")):
        assert set(names(profile_of(tmp_path, PIPE, *some))) == {name}


def test_two_sockets_of_one_connection_find_each_other(tmp_path: Path) -> None:
    one = thing(7, K.SOCKET, protocol="tcp", local="127.0.0.1:40000", remote="127.0.0.1:5432")
    ends = {"local": "[::ffff:127.0.0.1]:5432", "remote": "[::ffff:127.0.0.1]:40000"}
    other = thing(8, K.SOCKET, 30, protocol="tcp", **ends)
    waits = (wait(7, syscall=Call.RECVFROM), wait(8, time=91, pid=30, syscall=Call.SENDTO))
    assert both(tmp_path, described(one, other), *waits) == (
        ["tcp 127.0.0.1:5432 (postgres 30)", "tcp 127.0.0.1:40000 (find 10)"],
        ["tcp 127.0.0.1:5432 (postgres)", "tcp 127.0.0.1 at :5432 (find)"],
    )


def test_unix_sockets_find_each_other_by_inode(tmp_path: Path) -> None:
    one = thing(7, K.SOCKET, protocol="unix", inode=50, peer_inode=51)
    other = thing(8, K.SOCKET, 30, protocol="unix", inode=51, local="/run/x.sock")
    waits = [wait(7 + at, time=90 + at, pid=pid, syscall=Call.READ) for at, pid in enumerate((10, 30))]
    shown = names(profile_of(tmp_path, described(one, other), *waits))
    assert shown == ["unix socket (postgres 30)", "unix /run/x.sock (find 10)"]


def test_private_locks_of_two_processes_are_two_and_shared_ones_are_one(tmp_path: Path) -> None:
    private = [thing(7 + at, K.FUTEX, pid, address=64, place="heap") for at, pid in enumerate((10, 20))]
    place = "/dev/shm/q+0x0"
    shared = [thing(17 + at, K.FUTEX, pid, address=64 + at, place=place) for at, pid in enumerate((10, 20))]
    waits = [wait(one["id"], time=90 + at, pid=one["pid"]) for at, one in enumerate([*private, *shared])]
    assert names(profile_of(tmp_path, described(*private, *shared), *waits)) == [
        "futex heap 0x40 (10)", "futex heap 0x40 (20)", *["shared /dev/shm/q+0x0"] * 2,
    ]  # fmt: skip


def test_files_of_one_leaf_name_are_told_apart(tmp_path: Path) -> None:
    files = described(*(thing(at, K.FILE, name="wal", inode=at) for at in (5, 6)))
    waits = [wait(at, time=90 + at, syscall=Call.READ) for at in (5, 6)]
    assert both(tmp_path, files, *waits) == (["wal (inode 5)", "wal (inode 6)"], ["wal", "wal"])


def test_sleeps_have_a_name_without_an_object(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, wait(0, syscall=Call.NANOSLEEP, asked_ns=5), wait(0, time=91), wait(99, time=92))
    assert names(profile) == ["sleep", "", ""]
    assert profile.samples.asked_ns.tolist() == [5, -1, -1]


@pytest.mark.parametrize(("exit_ns", "waker", "name"), [
    (79, 20, "any child"), (95_000, 20, ""), (79, 10, ""), (79, 30, ""),
], ids=["exits", "exits later", "of its process", "lives on"])  # fmt: skip
def test_a_signal_of_an_ending_process_is_that_of_a_child(exit_ns: int, waker: int, name: str, tmp_path: Path) -> None:
    ends = task(CLOCK, RecordType.EXIT, 20, 20, exit_ns)
    signalled = wait(0, syscall=Call.SUSPEND, waker_pid=waker, waker_tid=20 if waker == 10 else waker, wakeup_ns=80)
    assert names(profile_of(tmp_path, ends, signalled)) == [name]


def test_poll_of_nothing_without_a_time_limit_waits_for_a_signal(tmp_path: Path) -> None:
    nothing = described(thing(7, K.DESCRIPTORS, number=0))
    limited, forever = wait(7, syscall=Call.POLL, asked_ns=5), wait(7, syscall=Call.POLL, time=91)
    assert names(profile_of(tmp_path, nothing, limited, forever)) == ["sleep", "signal"]
    by_thread = wait(7, syscall=Call.PPOLL, waker_pid=20, waker_tid=20, wakeup_ns=80)
    assert names(profile_of(tmp_path, nothing, wait(7, time=91, syscall=Call.PPOLL), by_thread)) == ["signal", "sleep"]


def test_a_later_description_replaces_an_earlier_one_and_hostile_names_come_through(tmp_path: Path) -> None:
    """Output escapes them (`text.printable`), nothing else does."""
    for name in ("/whole/leaf", "/tmp/\x1b[31m\n<b>"):
        first, last = (described(thing(7, K.FILE, name=one)) for one in ("leaf", name))
        assert names(profile_of(tmp_path, first, wait(7), last)) == [name]


def test_ids_of_joined_recordings_do_not_clash(tmp_path: Path) -> None:
    """Two runs give one id to different files; the second run's other file describes an id of it alone."""
    a, b, c = (described(thing(id_, K.FILE, name=name)) for id_, name in ((7, "/a"), (7, "/b"), (8, "/c")))
    parts = {"a": [a, wait(7)], "b": [b, wait(7, time=91), wait(8, time=92)], "c": [c, wait(9, time=93)]}
    paths = [write(tmp_path / name, EVENTS, [*NAMES, *part]) for name, part in parts.items()]
    joined = join([load_recording(path) for path in paths], 4)
    joined.check()
    assert (np.diff(joined.objects.id.astype(np.int64)) > 0).all()
    assert names(symbolize(joined)) == ["/a", "/b", "/c", ""]


def test_hosts_have_files_of_their_own(tmp_path: Path) -> None:
    records = [described(thing(7, K.FILE, name="/a")), wait(7)]
    paths = [write(tmp_path / name, EVENTS, records, host(name)) for name in ("web1", "web2")]
    recordings = [load_recording(path) for path in paths]
    profile = join_profiles(recordings, SymbolizeOptions(), JoinOptions(from_start=True), merge=True)
    profile.check()
    assert names(profile) == ["web1:/a", "web2:/a"]


@pytest.mark.parametrize(("kind", "fields", "inward"), examples("unit/symbolize/objects.txt", "inward"))
def test_whose_events_are_work_that_comes_in(kind: str, fields: str, inward: str, tmp_path: Path) -> None:
    assert profile_of(tmp_path, *one_wait(K[kind], fields_of(fields))).objects.inward.tolist()[0] is bool(inward)


@pytest.mark.parametrize(("fields", "answers"), examples("unit/symbolize/objects.txt", "answering"))
def test_which_sockets_wait_for_answers(fields: str, answers: str, tmp_path: Path) -> None:
    assert profile_of(tmp_path, *one_wait(K.SOCKET, fields_of(fields))).objects.connected.tolist()[0] is bool(answers)


ENDED = {"pid": 10, "waker_pid": 10}


@pytest.mark.parametrize(("waits", "found"), [
    ([(1, ENDED | {"waker_tid": 2}), (2, ENDED | {"waker_tid": 1})], Fact.SEVERAL | Fact.BY_PEERS),
    ([(1, ENDED | {"waker_tid": 3}), (2, ENDED | {"waker_tid": 3})], Fact.SEVERAL | Fact.BY_OTHERS),
    ([(1, ENDED | {"waker_tid": 3}), (1, {"pid": 10})], Fact.BY_OTHERS),
    ([(1, {"pid": 10, "waker_pid": 99, "waker_tid": 99})], 0),  # a signal
    ([(1, ENDED | {"waker_tid": 3, "flags": offcpu.WaitFlag.WAKER_INTERRUPT})], 0),  # a timeout
    ([(2**32 - 5, ENDED | {"waker_tid": 3}), (1, {"pid": 10})], Fact.SEVERAL | Fact.BY_OTHERS),  # damaged
])  # fmt: skip
def test_who_ended_the_waits(waits: list[tuple[int, dict[str, Any]]], found: int, tmp_path: Path) -> None:
    things = described(*(thing(id_, K.FUTEX, address=0x1000 + 4 * (id_ - 7)) for id_ in (7, 8)))
    records = (wait(7 + at % 2, time=90 + at, tid=tid, **more) for at, (tid, more) in enumerate(waits))
    assert set(profile_of(tmp_path, things, *records).objects.facts.tolist()[:-1]) == {found}


def test_threads_that_signal_each_other_by_an_object_each_are_in_a_circle(tmp_path: Path) -> None:
    things = described(*(thing(tid, K.FUTEX, address=0x1000 * tid) for tid in (1, 2, 3, 4)))
    wakers = {1: 2, 2: 3, 3: 1, 4: 1}  # 4 only takes what 1 gives
    records = (wait(tid, time=90, tid=tid, pid=10, waker_pid=10, waker_tid=waker) for tid, waker in wakers.items())
    facts = profile_of(tmp_path, things, *records).objects.facts.tolist()
    assert facts[:4] == [*(Fact.BY_OTHERS | Fact.CIRCLE,) * 3, Fact.BY_OTHERS]


def test_who_rarely_ends_waits_does_not_tell_what_they_are_for(tmp_path: Path) -> None:
    """A thread that took a lock once, and never had to wait for it."""
    for waits, rare in ((10, 0), (8, Fact.BY_OTHERS)):
        tids = [(1, 2), (2, 1)] * (waits // 2) + [(1, 3)]
        records = (
            wait(7, time=at, tid=tid, pid=10, waker_pid=10, waker_tid=waker) for at, (tid, waker) in enumerate(tids, 90)
        )
        facts = profile_of(tmp_path, described(thing(7, K.FUTEX, address=0x1000)), *records).objects.facts.tolist()
        assert facts[0] == Fact.SEVERAL | Fact.BY_PEERS | rare


def test_processes_share_a_futex_without_a_name_if_its_operation_says_so(tmp_path: Path) -> None:
    for operation, found in ((0, Fact.SEVERAL | Fact.BY_PEERS), (128, 0)):
        locks = [thing(pid, K.FUTEX, pid, address=0x7F0000001000, operation=operation, number=2) for pid in (10, 20)]
        ends = ((10, 20), (20, 10))
        records = (wait(pid, time=90 + pid, pid=pid, tid=pid, waker_pid=waker, waker_tid=waker) for pid, waker in ends)
        facts = profile_of(tmp_path, described(*locks), *records).objects.facts.tolist()
        assert {fact & ~Fact.MUTEX for fact in facts[:2]} == {found}


def test_who_ended_waits_for_shared_memory(tmp_path: Path) -> None:
    things = described(*(thing(pid, K.FUTEX, pid, place="/dev/shm/x+0x40") for pid in (10, 20)))
    ends = ((10, 20), (20, 10), (20, 99))
    records = (wait(pid, time=90 + pid, pid=pid, waker_pid=waker, waker_tid=waker) for pid, waker in ends)
    found = Fact.SEVERAL | Fact.BY_PEERS | Fact.BY_STRANGERS | Fact.SHARED
    assert set(profile_of(tmp_path, things, *records).objects.facts.tolist()[:-1]) == {found}


@pytest.mark.parametrize(
    ("operation", "value", "ended_by", "found"), examples("unit/symbolize/objects.txt", "words of futexes")
)
def test_what_the_word_of_a_futex_tells(operation: str, value: str, ended_by: str, found: str, tmp_path: Path) -> None:
    """Thread 11 of process 10 exits at 200; thread 12 is one of another process."""
    births = [task(WAITS, RecordType.FORK, pid, tid, 1) for pid, tid in ((10, 10), (10, 11), (20, 12))]
    waker: dict[str, Any] = {"waker_pid": 10, "waker_tid": int(ended_by), "wakeup_ns": 190} if ended_by else {}
    one = described(thing(7, K.FUTEX, address=0x1000, operation=int(operation), number=int(value)))
    profile = profile_of(tmp_path, *births, one, wait(7, time=195, **waker), task(WAITS, RecordType.EXIT, 10, 11, 200))
    assert profile.objects.facts.tolist()[:-1] == [sum(Fact[name] for name in found.split("|") if name)]


FUTEXES = """
#include <pthread.h>
#include <stdlib.h>
pthread_mutex_t ledger_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t table;
struct { long a[5]; pthread_mutex_t m; } accounts[4];
__thread long own;
namespace_line
int transfer(void) { return pthread_mutex_lock(&ledger_lock); }
int main(void) { own = (long)malloc(9);
  return transfer() + pthread_rwlock_rdlock(&table) + !accounts[1].a[0]; }
"""


def compiled(directory: Path, *options: str, language: str = "c") -> Path:
    extra = "namespace bank { long total[4]; }" if language == "c++" else ""
    source = directory / "x.c"
    source.write_text(FUTEXES.replace("namespace_line", extra))
    command = ["gcc", "-g", "-O1", "-x", language, *options, "-o", "bank", "x.c", "-lpthread"]
    subprocess.run(command, cwd=directory, check=True, timeout=60)
    return directory / "bank"


def futex_names(
    program: Path, futexes: list[int], bias: int, place: str = "", chain: tuple[int, ...] = ()
) -> list[str]:
    """The names of futexes at addresses as in the file, in a process that has it mapped at `bias`."""
    with open_elf(str(program)) as image:
        (code,) = image.loads[(image.loads["p_flags"] & np.uint64(SegmentFlag.X)) != 0]
        build_id = image.build_id
    offset, vaddr, size = (int(code[f"p_{name}"]) for name in ("offset", "vaddr", "filesz"))
    start, pgoff = bias + vaddr - offset % 4096, offset - offset % 4096
    mapping = side(
        CLOCK, RecordType.MMAP2, 2 | 1 << 14, pid=10, tid=10, addr=start, len=-(-size // 4096) * 4096 + 4096,
        pgoff=pgoff, build_id_size=len(build_id), reserved_1=0, reserved_2=0, build_id=build_id.ljust(20, b"\0"),
        prot=5, flags=2, filename=str(program).encode(),
    )  # fmt: skip
    objects = [thing(at, ObjectKind.FUTEX, address=bias + futex, place=place) for at, futex in enumerate(futexes, 1)]
    stack = (USER, *(bias + address for address in chain)) if chain else ()
    waits = [wait(one["id"], time=100 + one["id"], chain=stack) for one in objects]
    records = [comm(CLOCK, 10, 10, "bank"), mapping, described(*objects), *waits]
    profile = symbolize(load_recording(write(program.with_suffix(".data"), [CLOCK, WAITS, COUNTERS], records)))
    profile.check()
    return [profile.strings[profile.objects.name[row]] for row in profile.samples.object.tolist()]


LAYOUTS = {
    "pie": (("-pie", "-fPIE"), 0x55D0C8A00000),
    "not pie": (("-no-pie",), 0),
    "library": (("-shared", "-fPIC"), 0x7F1200000000),
    "prelinked": (("-shared", "-fPIC", "-Wl,-Ttext-segment=0x40000000"), 0x7F1200000000),
    "static": (("-static", "-no-pie"), 0),
    "clang's order": (("-Wl,-z,noseparate-code", "-pie", "-fPIE"), 0x55D0C8A00000),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_locks_are_named_by_their_variables(layout: str, tmp_path: Path) -> None:
    options, bias = LAYOUTS[layout]
    program = compiled(tmp_path, *options)
    known = addresses(program)
    places = [known["ledger_lock"], known["table"] + 12, known["accounts"] + 2 * 80 + 40, known["accounts"]]
    assert futex_names(program, places, bias) == [
        "ledger_lock in bank", "table+0xc in bank", "accounts+0xc8 in bank", "accounts in bank",
    ]  # fmt: skip


@pytest.mark.parametrize("place", ["", "/usr/bin/bank"])
def test_outside_of_the_data_there_is_no_variable(place: str, tmp_path: Path) -> None:
    program = compiled(tmp_path, "-pie", "-fPIE")
    known, bias = addresses(program), 0x55D0C8A00000
    (name,) = futex_names(program, [known["_end"] + 0x10000], bias, place)
    assert name == f"futex{' in bank' if place else ''} {bias + known['_end'] + 0x10000:#x}"


def test_a_label_without_type_names_no_variable(tmp_path: Path) -> None:
    """A stripped program has `__bss_start` in .dynsym where it is linked so; the place stays a number."""
    program = compiled(tmp_path, "-pie", "-fPIE", "-rdynamic")
    known, bias = addresses(program), 0x55D0C8A00000
    subprocess.run(["strip", program], check=True)
    assert futex_names(program, [known["ledger_lock"]], bias) == ["ledger_lock in bank"], "in .dynsym"
    assert futex_names(program, [known["table"]], bias) == [f"futex in bank+{known['table']:#x}"]


def test_variables_of_cpp_are_demangled_and_the_heap_has_none(tmp_path: Path) -> None:
    program = compiled(tmp_path, "-no-pie", language="c++")
    known = addresses(program)
    assert futex_names(program, [known["_ZN4bank5totalE"] + 8], 0) == ["bank::total+0x8 in bank"]
    assert futex_names(program, [known["ledger_lock"]], 0, "heap") == [f"futex heap {known['ledger_lock']:#x}"]


def test_other_builds_name_nothing(tmp_path: Path) -> None:
    program = compiled(tmp_path, "-no-pie")
    address = addresses(program)["ledger_lock"]
    assert futex_names(program, [address], 0) == ["ledger_lock in bank"]
    data = program.with_suffix(".data").read_bytes()
    compiled(tmp_path, "-no-pie", "-O2", "-DOTHER", "-Wl,--build-id=0x1234567890123456789012345678901234567890")
    program.with_suffix(".data").write_bytes(data)
    profile = symbolize(load_recording(program.with_suffix(".data")))
    assert profile.strings[int(profile.objects.name[0])] == f"futex {address:#x}"


@pytest.mark.parametrize(
    ("function", "noun"), [("pthread_mutex_lock", "lock"), ("__new_sem_wait_slow64.constprop.0", "semaphore")]
)
def test_the_caller_of_the_lock_function_names_a_lock_on_the_heap(function: str, noun: str, tmp_path: Path) -> None:
    """The stack ends in a lock function, here one of this name in the program itself."""
    source = tmp_path / "x.c"
    source.write_text(
        f'int take(void) __asm__("{function}");\n'
        'int __attribute__((noinline)) take(void) { __asm__("nop"); return 1; }\n'
        "int __attribute__((noinline)) transfer(void) { return take() + 1; }\n"
        "int main(void) { return transfer() + 1; }\n"
    )
    program = build(source, tmp_path / "bank", "-O1", "-no-pie")
    known = addresses(program)
    chain = (known[function] + 1, known["transfer"] + 5, known["main"] + 5)
    assert futex_names(program, [0x99990], 0, "heap", chain) == [f"{noun} heap 0x99990 (via transfer)"]
