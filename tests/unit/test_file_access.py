# SPDX-License-Identifier: Apache-2.0
"""Files are opened, replaced and listed by `perf_offcpu.files`, or with a reason next to the call.

A reason is a comment `# direct: WHY` on a line of the call, or on the line before it; `# direct in this module: WHY`
holds for a module that reads files of the kernel alone. Calls need none that take a descriptor, or a path of /proc or
/sys that stands in the call or is a constant of the module. The test reads the sources with `ast`: it finds calls by
the names of functions and methods, so it may ask for a reason once too often, but it misses no usual way."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from builders.examples import examples
from builders.sources import dotted

PACKAGE = Path(__file__).resolve().parents[2] / "perf_offcpu"
DOORS = frozenset({"files.py", "directories.py"})

OF_OS = """
open rename replace renames link symlink unlink remove rmdir removedirs mkdir makedirs mkfifo mknod stat lstat
access chmod chown lchown utime truncate readlink listdir scandir walk fwalk chdir chroot
"""
OF_OS_PATH = "exists lexists isfile isdir islink ismount realpath samefile getsize getmtime"
OF_PATHLIB = """
open read_text read_bytes write_text write_bytes unlink rename replace mkdir rmdir stat lstat resolve exists
is_file is_dir is_symlink iterdir glob rglob symlink_to hardlink_to readlink touch chmod samefile
"""
PATH_METHODS = frozenset(OF_PATHLIB.split())
MODULES = {
    "os": frozenset(OF_OS.split()), "os.path": frozenset(OF_OS_PATH.split()),
    **dict.fromkeys(("shutil", "tempfile", "glob")),  # all of them
    **dict.fromkeys(("gzip", "bz2", "lzma", "tarfile", "io"), frozenset({"open"})),
    "np": frozenset({"fromfile", "memmap", "load", "save", "loadtxt"}),
}  # fmt: skip
HARMLESS = frozenset([
    "shutil.get_terminal_size", "re.replace", "webbrowser.open",
    "shutil.copyfileobj",  # of open files
    "shutil.which",  # a program of PATH, as a shell would start it
    "tempfile.TemporaryFile", "tempfile.SpooledTemporaryFile",  # without a name: nobody else can open it
    "tempfile.gettempdir",
])  # fmt: skip
REASON = re.compile(r"#\s*direct: \S.{8,}")
REASON_OF_MODULE = re.compile(r"^# direct in this module: \S.{8,}", re.MULTILINE)
DESCRIPTOR = re.compile(r"\w*fd|\d")
"""Names of descriptors: such a file is open already."""
LEADS_OUT = re.compile(r"\b(root|cwd|exe|fd|map_files)\b|[.][.]")
"""Links of /proc that lead to files of others."""


class Use(NamedTuple):
    """A call that touches files, and the lines on which its reason may stand."""

    call: str
    first: int
    last: int


def uses(tree: ast.Module) -> Iterator[Use]:
    """Find the calls that touch files by names, but for names that only the kernel makes."""
    constants = constants_of_kernel(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            names = {f"{node.module}.{one.name}" for one in node.names} - HARMLESS
            yield from (Use(name, node.lineno, node.lineno) for name in names if touches(name))
        if isinstance(node, ast.Call) and is_use(node) and not is_known(node, constants):
            yield Use(ast.unparse(node.func), node.lineno, node.end_lineno or node.lineno)


def touches(name: str) -> bool:
    module, _, function = name.rpartition(".")
    functions = MODULES.get(module, frozenset())
    return name == "open" or (name not in HARMLESS and (functions is None or function in functions))


def is_use(node: ast.Call) -> bool:
    name = dotted(node.func)
    if touches(name):
        return True
    if not isinstance(node.func, ast.Attribute) or name in HARMLESS or node.func.attr not in PATH_METHODS:
        return False
    if node.func.attr == "replace" and (len(node.args) != 1 or node.keywords):  # of text, of a time
        return False
    module = name.rpartition(".")[0]
    is_class = module.rpartition(".")[2][:1].isupper() and module != "Path"  # PerfDataReader.open
    return module not in MODULES and module != "self" and not module.endswith("directory") and not is_class


def is_known(node: ast.Call, constants: dict[str, str]) -> bool:
    """Return whether a call takes a descriptor, or a name of the kernel's own."""
    if any(word.arg == "fileobj" for word in node.keywords):
        return True
    texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    if any(isinstance(text, str) and LEADS_OUT.search(text) for text in texts):
        return False
    first = node.args[0] if node.args else None
    if isinstance(node.func, ast.Attribute) and not touches(dotted(node.func)):
        first = node.func.value  # path.exists()
    while isinstance(first, ast.BinOp | ast.Call):  # CONSTANT / "x", Path("/proc/…", name)
        first = first.left if isinstance(first, ast.BinOp) else first.args[0] if first.args else None
    if isinstance(first, ast.JoinedStr):
        is_literal = all(isinstance(part, ast.Constant) or is_number(part) for part in first.values)
        first = first.values[0] if is_literal else None
    if isinstance(first, ast.Constant):
        return type(first.value) is int or is_of_kernel(str(first.value))
    name = "" if first is None else dotted(first)
    return name == "os.devnull" or name in constants or bool(DESCRIPTOR.fullmatch(name.rpartition(".")[2]))


def constants_of_kernel(tree: ast.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            value = node.value
            if isinstance(value, ast.Call) and dotted(value.func) == "Path" and value.args:
                value = value.args[0]
            names = node.targets if isinstance(node, ast.Assign) else [node.target]
            if isinstance(value, ast.Constant) and is_of_kernel(str(value.value)):
                found |= {dotted(name): str(value.value) for name in names}
    return found


def is_number(part: ast.expr) -> bool:
    return isinstance(part, ast.FormattedValue) and dotted(part.value) in {"pid", "tid", "name"}


def is_of_kernel(text: str) -> bool:
    return f"{text}/".startswith(("/proc/", "/sys/")) and not LEADS_OUT.search(text)


def unexplained(source: str) -> list[Use]:
    if REASON_OF_MODULE.search(source):
        return []
    lines = source.splitlines()
    places = {use: lines[max(use.first - 2, 0) : use.last] for use in uses(ast.parse(source))}
    return [use for use, around in places.items() if not any(map(REASON.search, around))]


def test_files_are_used_through_the_door_or_with_a_reason() -> None:
    modules = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    assert modules.keys() > DOORS
    texts = {module: path.read_text() for module, path in sorted(modules.items()) if module not in DOORS}
    wrong = {module: calls for module, text in texts.items() if (calls := unexplained(text))}
    assert not wrong, "use perf_offcpu.files or directories, or say why not in a comment: # direct: WHY"


@pytest.mark.parametrize(("line",), examples("unit/examples.txt", "direct uses of files"))
def test_the_test_sees_a_direct_use(line: str) -> None:
    assert len(unexplained(line)) == 1
    assert unexplained(f"{line}  # direct: a file of the package itself") == []
    assert unexplained(f"# direct: a file of the package itself\n{line}") == []
    assert len(unexplained(f"{line}  # direct: no")) == 1


@pytest.mark.parametrize(("line",), examples("unit/examples.txt", "other uses of files"))
def test_other_calls_need_no_reason(line: str) -> None:
    assert unexplained(line) == []
