# SPDX-License-Identifier: Apache-2.0
"""The tests that need no kernel have the same results in a bare environment and in a full one. Bare: no variable but
PATH, a home that does not exist, no debug files, and a kernel without build-id and of another release than any
recording has. Full: another user, whose home and machine have debug files, caches and settings for all that the
recordings name, each with wrong content; a narrow terminal, another time zone."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.elf import ABS, ElfBuilder, Sym
from conftest import TESTS
from kernel.others import NOBODY, reachable

from perf_offcpu.decode.load import load_recording

WRONG_NAME = "name_of_a_debug_file_of_this_machine"
# $1: the directory of debug files and home; then the command.
ENTER = """
set -e
prepared=$1; shift
mkdir -p /usr/lib/debug
mount --bind "$prepared/debug" /usr/lib/debug
mount --bind "$prepared/notes" /sys/kernel/notes
exec setarch --uname-2.6 "$@"
"""
RUN = """
umask 077
mkdir "$TMPDIR"
exec {python} -m pytest -q -o cache_dir={cache} {last} -n {workers} --dist loadfile \
    -m "not kernel and not long" --junitxml={results} {parts}
"""
FULL = {
    **{"LC_ALL": "C", "LANGUAGE": "de", "COLUMNS": "40", "LINES": "5", "TERM": "xterm-256color"},
    **{"FORCE_COLOR": "1", "PAGER": "false", "LESS": "+!false", "TZ": "Pacific/Kiritimati"},
    **{"PYTHONHASHSEED": "1", "SOURCE_DATE_EPOCH": "1", "DEBUGINFOD_URLS": "http://127.0.0.1:9"},
    **{"PERF_OFFCPU_LABELS": "from=environment", "PERF_PAGER": "false", "BROWSER": "false"},
}


def recorded_build_ids() -> set[bytes]:
    found = set()
    for path in sorted((TESTS / "data").rglob("*.data")):
        recording = load_recording(path)
        ids = {recording.strings[row] for row in recording.dsos.build_id.tolist()}
        found |= {bytes.fromhex(text) for text in ids | {recording.meta.kernel_build_id or ""} if text}
    return found


@pytest.fixture(scope="module")
def prepared() -> Iterator[Path]:
    """Debug files of all that is recorded, in each place that is searched, all of them wrong."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="environments.") as directory:
        place = Path(directory)
        place.chmod(0o755)  # another user enters it
        prepare(place)
        yield place


def prepare(place: Path) -> None:
    symbols = [Sym(WRONG_NAME, 0, 1 << 40, section=ABS)]
    home = place / "home"
    for build_id in recorded_build_ids():
        file = ElfBuilder(symbols=symbols, build_id=build_id).build()
        leaf = f".build-id/{build_id[:1].hex()}/{build_id[1:].hex()}"
        for path in (
            place / f"debug/{leaf}.debug",
            home / f".debug/{leaf}/elf",
            home / f".debug/{leaf}/debug",
            home / f".cache/debuginfod_client/{build_id.hex()}/debuginfo",
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file)
        kallsyms = home / f".debug/{leaf}/kallsyms"
        kallsyms.write_text(f"ffffffff81000000 T {WRONG_NAME}\nffffffffff000000 T end\n")
    (home / ".perfconfig").write_text("[buildid]\n\tdir = /nowhere\n[report]\n\tsort-order = pid\n[ui\n")
    rules = home / ".config/perf-offcpu/rules.toml"
    rules.parent.mkdir(parents=True)
    rules.write_text("no [ rules")
    (place / "notes").write_bytes(b"")
    subprocess.run(["chown", "-R", "65534:65534", home], check=True)


def outcomes(place: Path, name: str, environment: dict[str, str], rights: str, again: bool = False) -> dict[str, str]:
    """Return test → outcome of the unit part in an environment; a test that failed is repeated once."""
    scratch = place / (f"{name}-again" if again else name)
    scratch.mkdir()
    if "setpriv" in rights:
        shutil.chown(scratch, 65534, 65534)
    results = scratch / "results.xml"
    parts = shlex.join(str(TESTS / part) for part in ("unit", "golden", "roundtrip", "corrupt"))
    last = "--last-failed --last-failed-no-failures none" if again else ""
    cache = place / name / "cache"
    run = RUN.format(
        python=sys.executable, workers=os.cpu_count(), results=results, parts=parts, cache=cache, last=last
    )
    (scratch / "run").write_text(run)
    (scratch / "run").chmod(0o755)
    arguments = environment
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(scratch / "tmp"), **environment}
    words = ["unshare", "-m", "sh", "-c", ENTER, "sh", place, *rights.split(), "sh", scratch / "run"]
    line = reachable(shlex.join(map(str, words)))
    with (scratch / "output").open("w") as output:
        subprocess.run(line, shell=True, cwd=TESTS.parent, env=environment, stdout=output, stderr=output, check=False)
    print((scratch / "output").read_text()[-20000:])
    cases = ET.parse(results).iter("testcase")
    found = {f"{case.get('classname')}::{case.get('name')}": case[0].tag if len(case) else "passed" for case in cases}
    failed = not again and {"failure", "error"} & set(found.values())
    return found | outcomes(place, name, arguments, rights, again=True) if failed else found


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_unit_part_is_the_same_in_a_bare_and_a_full_environment(prepared: Path) -> None:
    full = {**FULL, "HOME": str(prepared / "home"), "PERF_CONFIG": str(prepared / "home/.perfconfig")}
    of_full = outcomes(prepared, "full", full, f"setpriv {NOBODY}")
    shutil.rmtree(prepared / "debug")
    (prepared / "debug").mkdir()
    of_bare = outcomes(prepared, "bare", {"HOME": "/nonexistent"}, "env")
    assert len(of_full) > 3000
    differing = {name for name in of_full.keys() | of_bare.keys() if of_full.get(name) != of_bare.get(name)}
    failed = {name for name, outcome in of_full.items() if outcome in ("failure", "error")}
    assert not differing | failed
