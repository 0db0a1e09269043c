# SPDX-License-Identifier: Apache-2.0
"""Rules by functions of programs: classes and work of waits, a user's own rules, and how rules are found in stacks."""

import lzma
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from builders.examples import examples
from builders.profile import Code, ProfileBuilder, classes_of, kernel, stack

from perf_offcpu import losses
from perf_offcpu.analysis.classes import rules_file
from perf_offcpu.analysis.classes import wait_classes as rules
from perf_offcpu.analysis.classes.classify import classify, of_idle_threads
from perf_offcpu.analysis.classes.program_rules import Rules, built_in_rules
from perf_offcpu.analysis.classes.rules_file import parse_rules, usual_rules
from perf_offcpu.analysis.classes.wait_classes import CLASSES, WaitClass, matches
from perf_offcpu.analysis.selection.select import Selection, select_samples
from perf_offcpu.errors import UsageError
from perf_offcpu.model.profile import ObjectFact, Profile, ProgramRule
from perf_offcpu.model.recording import SampleFlag
from perf_offcpu.text import SYMBOL_SUFFIX

S, D = 1, 2
EPOLL = (kernel("__x64_sys_epoll_wait"), kernel("ep_poll"))
FUTEX = (kernel("__x64_sys_futex"), kernel("futex_wait"))


def profile_of(*path: str | Code, state: int = S, comm: str = "a", syscall: int = -2) -> Profile:
    return ProfileBuilder(meta={"arch": "x86_64"}).sample(comm, list(path), 1000, state=state, syscall=syscall).build()


def judged(profile: Profile) -> tuple[str, bool]:
    waits = classify(profile)
    (idle,) = of_idle_threads(profile, waits.for_work).tolist()
    return WaitClass(int(waits.wait_class[0])).label, idle


@pytest.mark.parametrize(("wait_class", "idle", "frames"), examples("unit/analysis/stacks.txt", "programs"))
def test_functions_of_programs_name_the_wait(wait_class: str, idle: str, frames: str) -> None:
    assert judged(profile_of(*stack(frames))) == (wait_class, idle == "idle")


def test_runtimes_name_their_own_threads() -> None:
    assert judged(profile_of("JVM_Sleep", "pthread_cond_timedwait", *FUTEX, comm="Keep-Alive-Time")) == ("lock", True)
    assert judged(profile_of("JVM_Sleep", "pthread_cond_timedwait", *FUTEX, comm="main")) == ("sleep", False)
    unblocker = "JVM_TakeVirtualThreadListToUnblock", "PlatformEvent::park", "pthread_cond_wait", *FUTEX
    assert judged(profile_of(*unblocker, comm="VirtualThread-u")) == ("lock", True)
    assert judged(profile_of(Code("", "/x/beam.smp"), kernel("pipe_read"), comm="sys_sig_dispatc")) == ("pipe", True)


@pytest.mark.parametrize(("facts", "idle"), [(None, False), (0, True), (ObjectFact.BY_OTHERS, False)])
def test_an_event_that_no_thread_sets_is_idle(facts: int | None, idle: bool) -> None:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    thing = -1 if facts is None else builder.thing("semaphore", facts=facts)
    builder.sample("a", ["Event.wait (threading.py)", "sem_clockwait", *FUTEX], 1000, state=S, object=thing)
    assert judged(builder.build()) == ("lock", idle)


@pytest.mark.parametrize(("tid", "idle"), [(1, False), (2, True)])
def test_the_main_thread_of_node_is_blocked_by_atomics_wait(tid: int, idle: bool) -> None:
    path: list[str | Code] = ["v8::internal::FutexEmulation::WaitJs32", "pthread_cond_wait", *FUTEX]
    builder = ProfileBuilder(meta={"arch": "x86_64"}).sample("node", path, 1000, state=S, tid=tid, pid=1)
    assert judged(builder.build()) == ("lock", idle)


@pytest.mark.parametrize(("wakers", "idle"), [
    ((2, 3, 1), False), ((9, 9, 9), True), ((9, 1, 2), True), ((2, 9, 1), True), ((-1, -1, -1), True),
    ((2, 1, 1, 2), False), ((9, 9, 1, 2), True),
], ids=["a pool", "a queue", "a pipeline", "both", "not known", "two get nothing", "two stages"])  # fmt: skip
@pytest.mark.parametrize(
    "frame", ["Queue.get (queue.py)", "java.util.concurrent.SynchronousQueue.take", "ObjectSynchronizer::wait"]
)
def test_items_that_threads_put_back_are_no_work(wakers: tuple[int, ...], idle: bool, frame: str) -> None:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    for tid, waker in enumerate(wakers, 1):
        path: list[str | Code] = ["handle (app.py)", frame, "pthread_cond_wait", *FUTEX]
        builder.sample("a", path, 1000, state=S, tid=tid, pid=1, waker_tid=waker, waker_pid=1)
    assert set(classify(builder.build()).for_work.tolist()) == {idle}


def test_sums_of_waits_for_a_pool_are_no_work() -> None:
    """Sums have no Python functions: they are judged like the single waits at the same place."""
    builder, main = ProfileBuilder(meta={"arch": "x86_64"}), Code("main", "/x/python")
    get = Code("Queue.get (queue.py)", "", file="/x/queue.py")
    for tid, waker in ((1, 2), (2, 1)):
        path = [main, get, "pthread_cond_wait", *FUTEX]
        builder.sample("a", path, 1000, state=S, tid=tid, pid=1, waker_tid=waker, waker_pid=1, syscall=202)
    flags = SampleFlag.AGGREGATED
    builder.sample("a", [main, "pthread_cond_wait"], 9000, state=S, tid=1, pid=1, syscall=202, flags=flags)
    assert classify(builder.build()).for_work.tolist() == [False] * 3


def test_conditions_on_callers_are_those_of_the_rule_alone() -> None:
    classes = {"one": "network", "two": "pipe"}.items()
    rules = tuple(ProgramRule("p", name, frames="take", callers=name, wait_class=label) for name, label in classes)
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    for path in (["one", "take"], ["two", "take"], ["two", "other", "take"], ["take"], ["two", "one", "take"]):
        builder.sample("a", path, 1, state=S)
    assert classes_of(replace(builder.build(), rules=rules)) == ["network", "pipe", "other", "other", "network"]


def test_waits_that_no_rule_changes() -> None:
    assert judged(profile_of("ProcSleep", state=0)) == ("runqueue", False)
    fault = (kernel("asm_exc_page_fault"), kernel("filemap_fault"))
    assert judged(profile_of("ProcSleep", *fault, state=D)) == ("fault", False)
    # After SIGCONT the system call is restart_syscall, whatever goes on: its wrapper tells.
    assert judged(profile_of("main", "clock_nanosleep", syscall=219))[0] == "sleep"


def test_built_in_rules_are_in_the_form_of_a_users_file() -> None:
    path = Path(rules_file.__file__).with_name("program_rules.toml")
    assert parse_rules(path.read_bytes(), str(path)) == built_in_rules()
    for rule in built_in_rules():
        assert rule.frames or rule.comm or rule.syscall, rule


def test_the_first_rule_decides_and_a_users_rules_come_first() -> None:
    mine = ProgramRule("ours", "x", frames="ProcSleep", comm="post.*", wait_class="disk")
    profile = replace(profile_of("ProcSleep", *EPOLL, comm="postgres"), rules=(mine,))
    assert judged(profile) == ("disk", True)  # it says nothing of idleness, so a poll stays one for work
    assert judged(replace(profile_of("ProcSleep", *EPOLL, comm="mine"), rules=(mine,))) == ("lock", False)
    assert Rules((mine,)).by_comm(1) and not Rules((mine,)).by_comm(2) and not Rules().by_comm(1)


def test_rules_by_system_call_and_kernel_function() -> None:
    rule = ProgramRule("ours", "x", frames="ep_poll", syscall="epoll_.*", wait_class="child", for_work=False)
    assert judged(replace(profile_of("main", *EPOLL), rules=(rule,))) == ("child", False)
    rule = rule._replace(syscall="poll")
    assert judged(replace(profile_of("main", *EPOLL), rules=(rule,))) == ("poll", True)


def test_what_was_left_out_as_idle_is_said() -> None:
    builder = ProfileBuilder(meta={"arch": "x86_64"})
    for tid in (1, 2):
        builder.sample("pool", ["main", *EPOLL], 4_000_000, tid=tid, state=S)
    builder.sample("busy", ["main", kernel("hrtimer_nanosleep")], 8, tid=3, state=S)
    profile = builder.build()
    hidden = select_samples(profile, Selection(idle="hide"))
    assert hidden.samples.tid.tolist() == [3]
    assert (hidden.losses[losses.IDLE_THREADS], hidden.losses[losses.IDLE_MS]) == (2, 8)
    assert losses.IDLE_THREADS not in select_samples(profile, Selection(idle="only")).losses


def test_a_file_of_rules() -> None:
    text = b"""
[[rule]]
program = "ours"
frames = ["a", "b.*"]
callers = "c"
waits = "lock poll"
class = "network"
idle = true
[[rule]]
comm = "x"
idle = false
"""
    assert parse_rules(text, "f") == (
        ProgramRule("ours", "", "a b.*", "c", waits="lock poll", wait_class="network", for_work=True),
        ProgramRule("", "", comm="x", for_work=False),
    )
    assert parse_rules(b"", "f") == ()


UNREADABLE = [
    ("\udcff", "f: not TOML"), ("x = " + "[" * 5000, "f: not TOML"), ("x = " + "9" * 5000, "f: not TOML"),
    ("[[rule]]⏎frames = '" + "(" * 5000 + ")" * 5000 + "'⏎idle = true", "is not a regular expression"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), [*examples("unit/sentences.txt", "rules"), *UNREADABLE])
def test_a_wrong_file_gets_one_sentence(text: str, says: str) -> None:
    with pytest.raises(UsageError) as problem:
        parse_rules(text.replace("⏎", "\n").encode("utf-8", "surrogateescape"), "f")
    assert says in str(problem.value)


def test_rules_in_the_configuration_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert usual_rules() == ()
    path = tmp_path / "perf-offcpu" / "rules.toml"
    path.parent.mkdir()
    path.write_text("[[rule]]\ncomm = 'x'\nidle = true\n")
    (rule,) = usual_rules()
    assert rule.comm == "x"
    path.unlink()
    path.symlink_to("/dev/zero")
    assert usual_rules() == ()


KEPT = Path(__file__).parents[2] / "data" / "functions.txt.xz"
WHOLE = re.compile(r"(_\*|__)?[^_]+_\\w\+")
"""A rule for all functions of a part of the kernel, by one word: what else begins so is of that part, too."""
BEGIN = 7
"""Letters in which kept names agree with one that a rule fits."""


def meaning(name: str) -> str:
    """Return what the rules say: class in the kernel, class of a wrapper, its meaning for a futex."""
    kernel, user, means = (
        rules.class_of_function(name), rules.class_of_wrapper(name), rules.meaning_of_wrapper(name),
    )  # fmt: skip
    return " ".join("-" if one is None else one.name.lower() for one in (kernel, user, means))


def kept() -> dict[str, str]:
    return dict(line.split(" ", 1) for line in lzma.decompress(KEPT.read_bytes()).decode().splitlines())


def test_each_rule_fits_what_it_means() -> None:
    wrong = {name: (meaning(name), means) for name, means in kept().items() if meaning(name) != means}
    assert not wrong, "(now, before): if this is meant, run this file as a program"


def is_of_whole_part(name: str) -> bool:
    """Return True for names that only prefixes fit."""
    fitting = [rule for one in CLASSES for rule in one.row.functions.split() if matches(rule, name)]
    return bool(fitting) and all(WHOLE.fullmatch(rule) for rule in fitting)


def write(names: set[str]) -> None:
    fitting = {name for name in names if meaning(name) != "- - -" and not is_of_whole_part(name)}
    begins = {name.lstrip("_")[:BEGIN] for name in fitting}
    near = (name for name in names if name.lstrip("_")[:BEGIN] in begins and not is_of_whole_part(name))
    text = "".join(f"{name} {meaning(name)}\n" for name in sorted(near))
    KEPT.write_bytes(lzma.compress(text.encode(), preset=9))
    print(len(text.splitlines()), KEPT.stat().st_size)
    print("\n".join(f"{name} {meaning(name)}" for name in sorted(fitting)))


if __name__ == "__main__":
    found = set(kept()) if KEPT.exists() else set()
    for path in sys.argv[1:]:
        words = (line.split() for line in Path(path).read_text().splitlines())
        found |= {SYMBOL_SUFFIX.sub("", word[2]) for word in words if len(word) > 2 and word[1] in "tTwWiI"}
    write({name for name in found if re.fullmatch(r"\w+", name)})
