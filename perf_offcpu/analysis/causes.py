# SPDX-License-Identifier: Apache-2.0
"""Name the function of the program in which each sample waits: the function that explains the wait.

The innermost function says how a thread sleeps (`epoll_wait`), not why. The name is the first that exists of:

    1 if a loop waits for its next event or command: the function of the rule (`analysis.classes.program_rules`)
    2 the innermost named function of the program, not of a library or runtime (see below); if a rule decided,
      only functions that called the function of the rule count
    3 such a function of Python's standard library                          `_worker (thread.py)`
    4 the function of the rule, unless it is a wrapper of libc              `take_gil`
    5 the system call and the dso of the innermost code without a name      `write() of [dash]`
    6 the system call                                                       `read()`

Waits for a CPU (run queue, throttled) and stops have no name: they can happen anywhere in the program. Libraries and
runtimes are known by file (libc, libstdc++, interpreters, the JVM) and by function: wrappers of
`analysis.classes.wait_classes`, and those of interpreters.toml. Functions of Python have a source file."""

import re
from collections import Counter

import numpy as np

from perf_offcpu.analysis.classes.classify import Waits
from perf_offcpu.analysis.classes.program_rules import fits
from perf_offcpu.analysis.classes.wait_classes import WaitClass, class_of_wrapper, matches
from perf_offcpu.analysis.interpreters import RUNTIME_FILES, RUNTIME_FUNCTIONS, RUNTIME_SOURCES
from perf_offcpu.analysis.stack_walk import innermost_node, outermost_node, used_frames
from perf_offcpu.model.columns import I64, Bool, distinct, group
from perf_offcpu.model.profile import Profile
from perf_offcpu.objects.perf_map import is_jit_memory
from perf_offcpu.structs import frozen
from perf_offcpu.text import SYMBOL_SUFFIX, basename, frame_label, printable

_NAME_LENGTH = 60
_PERF_MAP = re.compile(r".*/perf-\d+\.map")
_PARAMETERS = re.compile(r"(?<=[\w>])(?<!\{lambda)(?<!\boperator)\(.*|(?<=\boperator\(\))\(.*|(?<=\})::operator\(.*")
_LAMBDA = re.compile(r"(?<![\w:])[\w:]+(?:<[^<>(){}]*>::\w+)?(?:\([^(){}]*\))?(?: const)?::\{lambda\([^{}]*\)#\d+\}")
_JAVAS_RESULT = re.compile(r"^[\w.$\[\]]+ (?=[\w$+/-]+(\.[\w$+/<>-]+)+$)")  # `void` of `void Bank.transfer`


@frozen
class Causes:
    """Functions in which n samples wait, or system calls in place of unknown functions, as columns."""

    names: list[str]  # printable, without parameters and result; the first is "", not known
    function: I64  # int64[n], index into names


def causes_of(profile: Profile, waits: Waits) -> Causes:
    """Return the program's function that explains each sample's wait, else the call. `waits`: `classify(profile)`."""
    samples, frames, strings = profile.samples, profile.frames, profile.strings
    is_loop = waits.for_work & np.isin(waits.wait_class, (WaitClass.POLL, WaitClass.NETWORK))
    first, group_of = group(samples.stack, waits.rule, waits.syscall, is_loop.view(np.uint8))
    leaf, rule = samples.stack[first].astype(np.int64), waits.rule[first].astype(np.int64)
    of_rule, start = _of_rules(profile, waits, leaf, rule)
    is_plain, is_nameless = _kinds(profile)
    used = np.flatnonzero(used_frames(profile, of_rule))
    says_more = (class_of_wrapper(SYMBOL_SUFFIX.sub("", strings[row])) is None for row in frames.symbol[used].tolist())
    is_named = np.zeros(len(frames), np.bool_)
    is_named[used] = (~frames.is_kernel() & (frames.symbol > 0))[used] & np.fromiter(says_more, np.bool_, len(used))
    of_rule = np.where(np.append(is_named[profile.stacks.frame], False)[of_rule], of_rule, -1)
    cause = np.where(is_loop[first] & (of_rule >= 0), of_rule, _of_program(profile, start, is_plain))
    cause = np.where(cause < 0, of_rule, cause)
    cause = np.where(cause < 0, innermost_node(profile, leaf, is_nameless), cause)
    frame = np.append(profile.stacks.frame, -1).astype(np.int64)[cause]
    calls = [f"{printable(name)}()" if name else "" for name in waits.syscall_names]
    names: dict[str, int] = {"": 0}
    numbers = np.empty(len(first), np.int64)
    for index, (row, call) in enumerate(zip(frame.tolist(), waits.syscall[first].tolist(), strict=True)):
        symbol, dso = (strings[frames.symbol[row]], strings[frames.dso[row]]) if row >= 0 else ("", "")
        name = _short(symbol, dso, calls[call])
        numbers[index] = names.setdefault(name, len(names))
    anywhere = (WaitClass.RUNQUEUE, WaitClass.THROTTLED, WaitClass.STOPPED)
    return Causes(list(names), np.where(np.isin(waits.wait_class, anywhere), 0, numbers[group_of]))


def program_functions(profile: Profile, leaf: I64) -> tuple[list[str], I64]:
    """Find the innermost named function of the program in n stacks, which may be of wakers. `leaf`: int64[n], rows in
    stacks; -1 for none. Return printable names, the first "" (not known), and int64[n]: index in them."""
    first, group_of = group(leaf)
    node = _of_program(profile, leaf[first], _kinds(profile)[0])
    frame = np.append(profile.stacks.frame, -1)[node].tolist()
    numbers: dict[str, int] = {"": 0}
    symbols, strings = profile.frames.symbol, profile.strings
    named = ["" if row < 0 else _short(strings[symbols[row]], "", "") for row in frame]
    number = np.array([numbers.setdefault(name, len(numbers)) for name in named], np.int64)
    return list(numbers), number[group_of]


def _short(symbol: str, dso: str, call: str) -> str:
    if not symbol:
        file = frame_label("", dso) if dso and not is_jit_memory(dso) and not _PERF_MAP.fullmatch(dso) else ""
        return " of ".join(filter(None, (call, file)))
    if symbol.startswith("std::") and (lambdas := _LAMBDA.findall(symbol)):  # compiled into what calls it
        symbol = Counter(lambdas).most_common(1)[0][0]
    name = _JAVAS_RESULT.sub("", _PARAMETERS.sub("", SYMBOL_SUFFIX.sub("", printable(symbol))))
    return name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH - 3]}..."


def _of_rules(profile: Profile, waits: Waits, leaf: I64, rule: I64) -> tuple[I64, I64]:
    """Find the outermost frame in each of n stacks whose function the stack's rule names. `leaf`: int64[n], rows in
    stacks. `rule`: int64[n], index in `waits.rules`, -1 none. Return int64[n] twice: node of this frame, -1 none; node
    from which on to look for the cause: its caller (-1: it has none), or `leaf` if there is no such frame."""
    node, start = np.full(len(leaf), -1, np.int64), leaf.copy()
    frames, strings = profile.frames, profile.strings
    for number in distinct(rule[rule >= 0]).tolist():
        rule_of_stacks = waits.rules[number]
        rows = np.flatnonzero(rule == number)
        used = np.flatnonzero(used_frames(profile, leaf[rows]))
        texts = zip(frames.symbol[used].tolist(), frames.dso[used].tolist(), strict=True)
        names = [strings[symbol] or frame_label("", strings[dso]) for symbol, dso in texts]
        met, callers = np.zeros((2, len(frames)), np.bool_)
        met[used] = [fits(rule_of_stacks.frames, name) for name in names]
        if rule_of_stacks.callers:
            callers[used] = [fits(rule_of_stacks.callers, name) for name in names]
        node[rows] = outermost_node(profile, leaf[rows], met, callers if rule_of_stacks.callers else None)
        start[rows] = np.where(node[rows] >= 0, np.append(profile.stacks.parent, -1)[node[rows]], leaf[rows])
    return node, start


def _kinds(profile: Profile) -> tuple[Bool, Bool]:
    """Return bool[frames] twice: True for named functions of the program; True for its code without a symbol."""
    frames, strings = profile.frames, profile.strings
    dsos, of_dso = np.unique(frames.dso, return_inverse=True)
    own_file = np.array([not matches(RUNTIME_FILES, basename(strings[dso])) for dso in dsos.tolist()], np.bool_)
    of_program = ~frames.is_kernel() & own_file[of_dso]
    symbols, of_symbol = np.unique(np.where(of_program, frames.symbol, 0), return_inverse=True)
    names = (SYMBOL_SUFFIX.sub("", strings[symbol]) for symbol in symbols.tolist())
    own_name = [name and not matches(RUNTIME_FUNCTIONS, name) and class_of_wrapper(name) is None for name in names]
    return of_program & np.array(own_name, np.bool_)[of_symbol], of_program & (frames.symbol == 0)


def _of_program(profile: Profile, leaf: I64, is_plain: Bool) -> I64:
    """Return int64[n], rows in stacks: the innermost frame of each stack with a function of the program (`is_plain`,
    bool[frames], by `_kinds`), of Python's standard library only if it has no other; -1 none."""
    files, of_file = np.unique(profile.frames.file, return_inverse=True)
    is_runtime = np.array([matches(RUNTIME_SOURCES, profile.strings[file]) for file in files.tolist()], np.bool_)
    own = innermost_node(profile, leaf, is_plain & ~is_runtime[of_file])
    return np.where(own < 0, innermost_node(profile, leaf, is_plain), own) if is_runtime.any() else own
