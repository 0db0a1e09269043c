# SPDX-License-Identifier: Apache-2.0
"""The architecture: which room may import which, and the sole importers of costly libraries.

Data goes one way, from the kernel to text and pictures; no import goes against it:

    kernel -> collect -> perf.data -> perfdata -> decode -> symbolize -> convert, report -> commands

The sources are read with `ast`; nothing is imported."""

import ast
import functools
import graphlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "perf_offcpu"

# Lowest first. A room imports itself and rooms of lower layers; rooms of one layer do not know each other.
LAYERS = (
    ("environment", "errors", "files", "structs", "tables"),
    ("binary", "directories", "losses", "resources", "text", "units"),
    ("abi", "cache"),
    ("model", "build_ids"),
    ("perfdata",),
    ("decode", "collect"),
    ("objects",),
    ("unwind",),
    ("inject", "symbolize"),
    ("analysis", "archive"),
    ("causality",),
    ("callpaths",),
    ("convert", "script", "dataset"),
    ("report", "api", "push"),
    ("fleet", "agent"),
    ("top",),
    ("commands",),
    ("cli",),
    ("perf_script", "__main__", "__init__"),
)
LAYER_OF = {room: layer for layer, rooms in enumerate(LAYERS) for room in rooms}

# Arrows that would go down and are still wrong: (from, to).
FORBIDDEN = {
    ("perfdata", "model"),  # the reader returns records; decode interprets them
    ("symbolize", "collect"),  # reading a recording must not need a kernel that records
    ("convert", "collect"),
    ("report", "collect"),
    ("perf_script", "collect"),
}
# Analyses and views take a Profile; the rooms below them decode records.
_OF_PROFILES = "analysis causality callpaths convert script dataset report push"
FORBIDDEN |= {(room, "decode") for room in _OF_PROFILES.split()}

# Each costs tens of milliseconds or more to import, so few places import it, where it is used.
SOLE_IMPORTERS: dict[str, str | tuple[str, ...]] = {"bcc": "collect/", "elftools": "objects/elf/headers.py"}
SOLE_IMPORTERS |= {"pandas": "convert/dataframe.py", "polars": "convert/dataframe.py", "networkx": "convert/"}
SOLE_IMPORTERS |= {"textual": ("top/screen.py", "top/flame_view.py"), "shtab": "commands/completion.py"}
SOLE_IMPORTERS |= {"pyarrow": "dataset/", "fsspec": "dataset/", "duckdb": "fleet/", "ibis": "fleet/", "grpc": "push/"}

# Made of classes of such a library; no module imports these at load time.
LATE = frozenset({"top/screen.py", "top/flame_view.py"})


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_names(node: ast.AST, path: Path) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    package = path.relative_to(PACKAGE.parent).parts[: -node.level] if node.level else ()
    base = ".".join([*package, *([node.module] if node.module else [])])
    return [base, *(f"{base}.{alias.name}" for alias in node.names)]


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    return tuple(name for node in ast.walk(tree(path)) for name in imported_names(node, path))


def imports_at_load_time(path: Path) -> Iterator[str]:
    """Yield the imports outside functions and `if TYPE_CHECKING:`."""
    waiting: list[ast.AST] = [tree(path)]
    while waiting:
        node = waiting.pop()
        lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if lazy or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            continue
        yield from imported_names(node, path)
        waiting.extend(ast.iter_child_nodes(node))


def rooms_imported(path: Path) -> set[str]:
    parts = [name.split(".") for name in imports(path)]
    return {name[1] for name in parts if name[0] == "perf_offcpu" and len(name) > 1} - {room_of(path)}


def is_allowed(room: str, other: str) -> bool:
    return LAYER_OF.get(other, len(LAYERS)) < LAYER_OF[room] and (room, other) not in FORBIDDEN


def test_every_room_has_a_layer_and_imports_go_with_the_flow() -> None:
    assert {room_of(path) for path in modules()} <= set(LAYER_OF)
    arrows = {(path, other) for path in modules() for other in rooms_imported(path)}
    wrong = [(name_of(path), other) for path, other in arrows if not is_allowed(room_of(path), other)]
    assert not wrong, f"these import against the flow, or a room that does not exist: {sorted(wrong)}"


def room_inside(name: str, room: str) -> str | None:
    """Return the file or room in a room to which a dotted name leads; None for a name outside the room."""
    inside = name.removeprefix(f"{room}.")
    child = inside.partition(".")[0]
    place = PACKAGE.parent / room.replace(".", "/") / child
    return child if inside != name and (place.is_dir() or place.with_suffix(".py").exists()) else None


def arrows_inside(directory: Path) -> dict[str, set[str]]:
    """Return file or room in a room → those that it imports."""
    room = ".".join(directory.relative_to(PACKAGE.parent).parts)
    arrows: dict[str, set[str]] = {}
    for path in directory.rglob("*.py"):
        child = path.relative_to(directory).parts[0].removesuffix(".py")
        others = {room_inside(name, room) for name in imports(path)} - {None, child}
        arrows.setdefault(child, set()).update(filter(None, others))
    return arrows


def test_files_and_rooms_inside_a_room_form_no_circle() -> None:
    for room in sorted({path.parent for path in modules() if path.name == "__init__.py"} - {PACKAGE}):
        try:
            graphlib.TopologicalSorter(arrows_inside(room)).prepare()
        except graphlib.CycleError as circle:
            pytest.fail(f"{room.relative_to(ROOT)}: {' <- '.join(circle.args[1])}")


def libraries(names: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in names} & set(SOLE_IMPORTERS)


def test_costly_libraries_have_one_importer_and_are_imported_where_they_are_used() -> None:
    importers = {(name_of(path), library) for path in modules() for library in libraries(imports(path))}
    wrong = [(name, library) for name, library in importers if not name.startswith(SOLE_IMPORTERS[library])]
    assert not wrong, f"other importers than SOLE_IMPORTERS says: {sorted(wrong)}"
    early = {name_of(path): found for path in modules() if (found := libraries(imports_at_load_time(path)))}
    late = {f"perf_offcpu.{name.removesuffix('.py').replace('/', '.')}" for name in LATE}
    early |= {name_of(path): found for path in modules() if (found := late.intersection(imports_at_load_time(path)))}
    early = {name: found for name, found in early.items() if name not in LATE}
    assert not early, "imported by a module that is loaded, not by a function that is called"


def test_modules_open_with_a_docstring_and_init_files_hold_nothing_else() -> None:
    assert not [name_of(path) for path in modules() if not ast.get_docstring(tree(path))]
    rooms = [path for path in modules() if path.name == "__init__.py" and path.parent != PACKAGE]
    assert not [name_of(path) for path in rooms if len(tree(path).body) != 1]
    assert not [name for name in set(imports_at_load_time(PACKAGE / "__init__.py")) if name.startswith("perf_offcpu")]


def test_the_rules_themselves_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that breaks the rules is caught, in any form of import."""
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path / "perf_offcpu")
    bad = tmp_path / "perf_offcpu" / "perfdata" / "bad.py"
    bad.parent.mkdir(parents=True)
    bad.write_text("from ..model import strings\ndef f():\n    import bcc\nif True:\n    from perf_offcpu import cli\n")
    assert rooms_imported(bad) == {"model", "cli"}
    assert not any(is_allowed("perfdata", room) for room in rooms_imported(bad))
    assert "bcc" in set(imports(bad)) - set(imports_at_load_time(bad))
