# SPDX-License-Identifier: Apache-2.0
"""Processes, rights and system calls of the package stand in `Documentation/security.md`, with the reason.

A list of that page has a row for each module that starts a process, changes rights, limits or the priority
of one, signals one, calls the C library or the kernel without a function of Python, or loads code by a name.
The row lists the calls. The test finds them in the sources with `ast`, by the names of modules and functions:
a new call fails until its row says with whose rights it runs and why, and so does a row whose call is gone.
Variables that name code or paths are ignored for root (how: tests/kernel/test_hostile_users.py)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.examples import examples
from builders.sources import dotted

from perf_offcpu.environment import ALLOWED, FOLLOWED

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "perf_offcpu"
PAGE = ROOT / "Documentation" / "security.md"
HEADING = "## Processes, rights and system calls"

CALLS = re.compile(
    r"subprocess\.(run|call|check_call|check_output|Popen|getoutput|getstatusoutput)"
    r"|os\.(fork|forkpty|exec\w+|posix_spawnp?|spawn\w+|system|popen|kill|killpg|set\w*[ug]id|setgroups|initgroups"
    r"|setpgid|setpgrp|setns|unshare|setpriority|nice|sched_set\w+|pidfd_open|chroot)"
    r"|signal\.(pidfd_send_signal|pthread_kill|raise_signal)"
    r"|resource\.(setrlimit|prlimit)"
    r"|fcntl\.ioctl"
    r"|importlib\.(import_module|reload|util\.module_from_spec)|sys\.addaudithook"
    r"|asyncio\.create_subprocess_\w+|webbrowser\.open\w*|faulthandler\.register"
    r"|eval|exec|compile|__import__"
)
IMPORTS = frozenset("multiprocessing pty runpy code codeop cffi bcc".split())
"""Modules that start processes, run what they are given, or are code of others that follows raw pointers."""
OTHER_MODULES = frozenset("subprocess ctypes os signal resource fcntl importlib asyncio webbrowser".split())
"""Modules of which some functions count."""
PROCESS_POOL = "concurrent.futures.ProcessPoolExecutor"
LIBRARY = re.compile(r"ctypes\.(CDLL|PyDLL|cdll\.\w+|pydll\.\w+|pythonapi)")
LIBRARY_OBJECT = frozenset({"ctypes.cdll", "ctypes.pydll", "ctypes.pythonapi"})


def loads_library(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and bool(LIBRARY.fullmatch(dotted(node.func)))


def found_in(source: str) -> set[str]:
    """Return the calls of a source that the page must list: `os.fork`, `libc.mount`, `import bcc`."""
    tree = ast.parse(source)
    libraries = {
        dotted(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and loads_library(node.value)
        for target in node.targets
    } | LIBRARY_OBJECT
    return {name for node in ast.walk(tree) for name in names_of(node, libraries)}


def names_of(node: ast.AST, libraries: set[str]) -> Iterator[str]:
    """Return the calls to list that a node makes: none, one, or several where it imports names."""
    if isinstance(node, ast.Import):
        yield from (f"import {one.name}" for one in node.names if one.name.partition(".")[0] in IMPORTS)
        yield from (f"{one.name} as {one.asname}" for one in node.names if one.asname and one.name in OTHER_MODULES)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from imported_from(node.module or "", [one.name for one in node.names])
    elif isinstance(node, ast.Attribute):  # also where it is not called here: handed to another function
        if loads_library(node.value) or dotted(node.value) in libraries:
            yield f"libc.{node.attr}"
        elif CALLS.fullmatch(dotted(node)) or f"concurrent.{dotted(node)}" == PROCESS_POOL:
            yield dotted(node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and CALLS.fullmatch(node.func.id):
        yield node.func.id


def imported_from(module: str, names: list[str]) -> Iterator[str]:
    if module.partition(".")[0] in IMPORTS:
        yield f"import {module}"
    for name in (f"{module}.{one}" for one in names):
        if name == PROCESS_POOL or CALLS.fullmatch(name) or LIBRARY.fullmatch(name):
            yield name


def listed() -> dict[str, tuple[set[str], str, str]]:
    """Return the rows of the page by module: the calls, with whose rights they run, the reason."""
    section = PAGE.read_text().partition(HEADING)[2].partition("\n## ")[0]
    rows = re.findall(r"^- (`.+?`): (`.+?`) \((.+?)\): (.+)$", section, re.MULTILINE)
    modules = [(module, row) for row in rows for module in re.findall("`([^`]+)`", row[0])]
    assert len(dict(modules)) == len(modules), "a module has one row"
    return {module: (set(re.findall("`([^`]+)`", row[1])), row[2], row[3]) for module, row in modules}


MODULES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}


def test_the_page_lists_the_calls_of_each_module() -> None:
    rows = listed()
    calls = {module: found for module, path in MODULES.items() if (found := found_in(path.read_text()))}
    assert {module: row[0] for module, row in rows.items()} == calls, f"see the list {HEADING!r} of {PAGE.name}"
    assert len(rows) > 5
    bare = [module for module, (_, rights, reason) in rows.items() if not rights or len(reason) <= 8]
    assert not bare, "with whose rights it runs, and why"


def test_every_process_gets_a_chosen_environment() -> None:
    """The list has modules that start processes: all but one give them `child_environment()` or none."""
    start = re.compile(r"subprocess\.(run|Popen)|os\.(exec|posix_spawn)\w+")
    given: dict[str, str] = {}
    for module, path in MODULES.items():
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if start.search(source) else ():
            if isinstance(node, ast.Call) and start.fullmatch(dotted(node.func)):
                named = [word.value for word in node.keywords if word.arg == "env"]
                given[module] = ast.unparse([*node.args, *named][-1])
    assert given.keys() == {name for name, row in listed().items() if any(map(start.fullmatch, row[0]))}
    assert given.pop("collect/workload.py") == "environment_of_caller()"  # the caller's own command
    assert {env for env in given.values() if not env.startswith("child_environment(")} == {"{}"}


@pytest.mark.parametrize(("source", "name"), examples("unit/examples.txt", "privileged calls"))
def test_the_test_sees_a_call(source: str, name: str) -> None:
    assert found_in(source.replace(" ⏎ ", "\n")) == {name}


@pytest.mark.parametrize(("source",), examples("unit/examples.txt", "other calls"))
def test_other_calls_need_no_row(source: str) -> None:
    assert found_in(source) == set()


ASKED = re.compile(r"environ(?:\.get\(|\[)\"(\w+)\"|\"(\w+)\" in os\.environ")


def test_every_variable_that_is_asked_for_is_ignored_or_allowed_and_on_the_page() -> None:
    texts = [path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "environment.py"]
    asked = {name for text in texts for found in ASKED.finditer(text) for name in found.groups() if name}
    assert {"XDG_CACHE_HOME", "LD_LIBRARY_PATH", "LESS"} <= asked <= ALLOWED | set(FOLLOWED)
    page = (ROOT / "Documentation" / "security.md").read_text()
    assert [name for name in (*FOLLOWED, *ALLOWED) if name not in page and not name.startswith("LC_")] == []
