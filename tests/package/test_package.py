# SPDX-License-Identifier: Apache-2.0
"""The package as users install it: built, installed in a new environment, used outside the checkout."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders.sources import man_source

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "tests" / "data" / "demo.data"
PAGES = {path.with_suffix(".1").name for path in (ROOT / "Documentation").glob("perf-offcpu*.txt")}


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path = Path("/")) -> str:
    """Run a command that must succeed, outside the checkout, and return its output."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        | {"PYTHONDONTWRITEBYTECODE": "1", **(env or {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Built:
    """Output of `python -m build`; the wheel is built from the source distribution."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    directory = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", directory, ROOT)
    return Built(next(directory.glob("*.tar.gz")), next(directory.glob("*.whl")))


@pytest.fixture(scope="module")
def prefix(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with the wheel; its dependencies come from that of the tests."""
    directory = tmp_path_factory.mktemp("installed")
    venv.create(directory, system_site_packages=True)
    pip = (sys.executable, "-m", "pip", "--python", directory / "bin/python")
    run(*pip, "install", "-q", "--no-index", "--no-deps", built.wheel)
    packages = Path(
        sysconfig.get_path("purelib", vars={"base": str(directory), "platbase": str(directory)}, scheme="venv")
    )
    # A path in a .pth file is searched, but .pth files there (that of the checkout) have no effect.
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory


def test_wheel_holds_bpf_sources_assets_licences_and_man_pages(built: Built) -> None:
    names = zipfile.ZipFile(built.wheel).namelist()
    data = f"{re.sub('-py3.*', '', built.wheel.name)}.data/data/share"
    bpf = {f"perf_offcpu/{path.relative_to(ROOT)}" for path in (ROOT / "bpf").rglob("*.[ch]")}
    assert bpf and bpf <= set(names)
    assert {f"{data}/man/man1/{page}" for page in PAGES} <= set(names)
    assert f"{data}/perf-offcpu/offcpu.py" in names
    assert "perf_offcpu/py.typed" in names and {"flame.js", "page.css", "lanes.js"} <= {
        name.rpartition("/")[2] for name in names
    }
    assert {"Apache-2.0.txt", "BSD-2-Clause.txt", "GPL-2.0-only.txt"} <= {name.split("/")[-1] for name in names}
    assert not [name for name in names if name.startswith(("tests/", "scripts/", "benchmarks/"))]


@pytest.mark.long
def test_source_distribution_builds_the_same_wheel_without_asciidoctor(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.sdist) as archive:
        # Python 3.13 requires the argument; 3.11.2 does not have it.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        archive.extractall(tmp_path)
    top = next(tmp_path.iterdir())
    assert {path.name for path in (top / "man").iterdir()} == PAGES
    with zipfile.ZipFile(wheel_without_asciidoctor(top, tmp_path)) as again:
        assert again.namelist() == zipfile.ZipFile(built.wheel).namelist()


def wheel_without_asciidoctor(source: Path, directory: Path) -> Path:
    path = os.pathsep.join(p for p in os.get_exec_path() if not Path(p, "asciidoctor").exists())
    assert shutil.which("asciidoctor") and not shutil.which("asciidoctor", path=path)
    run(
        *(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", directory, source), env={"PATH": path}
    )
    return next(directory.glob("*.whl"))


@pytest.mark.long
def test_a_wheel_from_a_checkout_without_asciidoctor_has_all_text_of_the_pages(tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel_without_asciidoctor(ROOT, tmp_path)) as wheel:
        pages = {Path(name).name: wheel.read(name) for name in wheel.namelist() if name.endswith(".1")}
    assert pages.keys() == PAGES
    for page, content in pages.items():
        (tmp_path / page).write_bytes(content)
        text = man(page.removesuffix(".1"), "--warnings=all", "-l", tmp_path / page)
        source = man_source((ROOT / "Documentation" / page).with_suffix(".txt"))
        for mark in (r"^\[.*\]$", r"^[-~=|]+$", "[|*+]", "::$", r"^=+", r"linkperf:|(?<=[a-z])\[1\]"):
            source = re.sub(mark, " ", source, flags=re.MULTILINE)
        missing = set(re.findall(r"[\w/-]+", source)) - set(re.findall(r"[\w/-]+", text))
        assert not missing, page


def test_installed_program_is_not_the_checkouts(prefix: Path) -> None:
    shown = run(prefix / "bin/perf-offcpu", "--version", "-vv")
    assert re.match(r"perf-offcpu version \d+\.\d+\.\d+\n", shown)
    assert f"installed in: {prefix}/lib/" in shown


def test_installed_program_reads_and_converts(prefix: Path, tmp_path: Path) -> None:
    program = prefix / "bin/perf-offcpu"
    assert "# Threads by off-cpu time" in run(program, "report", "-i", DEMO)
    run(program, "convert", "--flamegraph", "-i", DEMO, "-o", tmp_path / "out.html")
    assert (tmp_path / "out.html").stat().st_size > 10_000


@pytest.mark.long
def test_man_finds_the_pages_by_the_program_on_the_path(prefix: Path) -> None:
    env = {"PATH": f"{prefix}/bin:{os.environ['PATH']}"}
    env |= {"MANPATH": ""} if "MANPATH" not in os.environ else {}
    for page in PAGES:
        name = page.removesuffix(".1")
        assert Path(run("man", "-w", name, env=env).strip()).resolve() == prefix / "share/man/man1" / page
        man(name, name, env=env)


def man(name: str, *arguments: str | Path, env: dict[str, str] | None = None) -> str:
    """Return the text of the page of a program, whose first sections are as man(7) wants them."""
    text = run("man", "--nh", *arguments, env={"MANWIDTH": "1000", "LANG": "C.UTF-8"} | (env or {}))
    verb = name.removeprefix("perf-offcpu").lstrip("-")
    assert re.search(rf"^NAME\n +{name} - \S", text, re.MULTILINE)
    assert re.search(rf"^SYNOPSIS\n +'?perf-offcpu\b'? ?{verb}", text, re.MULTILINE)
    return text


def test_installed_script_works_by_hand_and_inside_perf(prefix: Path, tmp_path: Path) -> None:
    script = prefix / "share/perf-offcpu/offcpu.py"
    by_hand = run(prefix / "bin/python", script, "-i", DEMO)
    assert by_hand == run(prefix / "bin/perf-offcpu", "convert", "--folded", "-i", DEMO, "-o", "-")
    # Without the machine's own libc, which may be that of the recording.
    inside = run("perf", "script", "--symfs", tmp_path, "-i", DEMO, "-s", script)
    assert sorted(inside.splitlines()) == sorted(by_hand.splitlines())


@pytest.mark.kernel
def test_installed_program_records(prefix: Path, tmp_path: Path) -> None:
    program = prefix / "bin/perf-offcpu"
    run(program, "record", "--", "sleep", "0.05", cwd=tmp_path)
    folded = run(program, "convert", "--folded", "-i", tmp_path / "perf.data", "-o", "-")
    waits = [int(line.rpartition(" ")[2]) for line in folded.splitlines() if line.startswith("sleep;")]
    assert sum(waits) > 50_000_000
