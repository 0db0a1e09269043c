# SPDX-License-Identifier: Apache-2.0
"""Names, links and files that other users prepared for root, who records, have no effect. Each test is an attack that
worked once. The attacker is the user nobody, without any capability."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from builders.compiled import build
from conftest import TESTS
from kernel.others import AS_NOBODY, reachable

from perf_offcpu.collect.system.helper import Helper
from perf_offcpu.collect.system.privileges import READING
from perf_offcpu.commands.record.command import run_with_fewer_rights
from perf_offcpu.environment import ALLOWED
from perf_offcpu.errors import RecordingError

pytestmark = pytest.mark.beside

NOBODY = 65534
DEMO = TESTS / "data" / "demo.data"
SECRET = b"root:the-secret-of-root:19000:0:99999:7:::\n"
PROGRAM = Path(sys.executable).with_name("perf-offcpu")

SEPARATORS = {"CR": b"\r", "VT": b"\x0b", "FS": b"\x1c", "NEL": b"\xc2\x85", "LS": b"\xe2\x80\xa8"}
"""Bytes at which bytes.splitlines or str.splitlines split, and the kernel does not."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody can reach, and that is sticky and writable for all, as /tmp."""
    path = Path(tempfile.mkdtemp(prefix="hostile.", dir="/tmp"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def secret(place: Path) -> Path:
    directory = place / "of-root"
    directory.mkdir()
    path = directory / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


def nobody(*words: str | bytes | Path, cwd: Path) -> None:
    """Let the attacker do something."""
    subprocess.run([*AS_NOBODY, *words], cwd=cwd, check=True)


@contextmanager
def of_nobody(*words: str | bytes | Path, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that the attacker runs meanwhile."""
    process = subprocess.Popen([*AS_NOBODY, *words], cwd=cwd, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def root(
    *words: str | Path, cwd: Path, home: Path | None = None, status: int | None = 0, **variables: str | Path
) -> subprocess.CompletedProcess[bytes]:
    """Let root run perf-offcpu, as `sudo -E` with a home: with the attacker's environment. `status`: None is any."""
    environment = dict(os.environ)
    if home is not None:
        for name in ("XDG_CACHE_HOME", "PERF_BUILDID_DIR", "PERF_CONFIG", "DEBUGINFOD_CACHE_PATH"):
            environment.pop(name, None)
        environment |= {name: str(value) for name, value in variables.items()}
        environment |= {"HOME": str(home), "SUDO_USER": "nobody", "SUDO_UID": str(NOBODY)}
    done = subprocess.run([PROGRAM, *words], cwd=cwd, env=environment, capture_output=True, timeout=120, check=False)
    assert status in (None, done.returncode), done.stderr.decode()
    return done


def ignored(said: bytes) -> set[str]:
    """Variables that a program said to ignore: also of the caller of the tests."""
    (line,) = (line for line in said.decode().splitlines() if "are ignored" in line)
    return set(line.rpartition(": ")[2].split(", "))


def test_no_name_of_a_file_ends_a_recording_of_everybody(place: Path) -> None:
    with ExitStack() as running:
        for separator in SEPARATORS.values():
            program = os.fsencode(place) + b"/a" + separator + b"b"
            shutil.copy(b"/bin/sleep", program)
            running.enter_context(of_nobody(program, "60", cwd=place))
        root("record", "-a", "-o", "/dev/null", "--duration", "0.3", cwd=place)


def test_no_name_of_a_mount_point_ends_a_recording(place: Path) -> None:
    points = [os.fsencode(place) + b"/m" + separator + b"cgroup2 x" for separator in SEPARATORS.values()]
    for point in points:
        os.mkdir(point)
    line = 'for point; do mount -t tmpfs none "$point" || exit 99; done; exec "$0" record -o /dev/null -- true'
    words = ["unshare", "-m", "sh", "-c", line, PROGRAM, *points]
    done = subprocess.run(words, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()


@pytest.fixture(scope="session")
def jit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ("-O0", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer")
    return build("jit.c", tmp_path_factory.mktemp("jit") / "jit", *flags)


@contextmanager
def jitting(jit: Path, place: Path) -> Iterator[int]:
    """The attacker's program with code of its own making; gives its pid. Its map is removed at the end."""
    here = place / "jit"
    shutil.copy(jit, here)
    with of_nobody(here, "5", "100000", cwd=place) as process:
        assert process.stdout is not None
        process.stdout.readline()
        map_of(process.pid).unlink(missing_ok=True)  # of an earlier process with this id
        try:
            yield process.pid
        finally:
            map_of(process.pid).unlink()


def map_of(pid: int) -> Path:
    return Path(f"/tmp/perf-{pid}.map")


def record(pid: int | str, *options: str, cwd: Path, home: Path | None = None) -> None:
    """Let root record a process, and check that this works."""
    words = (*options, "--call-graph", "fp", "-o", "x.data", "-p", str(pid), "--duration", "0.3")
    root("record", *words, cwd=cwd, home=home)


def assert_no_secret_in_an_archive(place: Path) -> None:
    root("archive", "-i", "x.data", "-o", "x.tar", cwd=place)
    assert SECRET.strip() not in (place / "x.tar").read_bytes()


def test_archive_and_build_id_cache_take_no_file_to_which_a_map_of_made_code_links(
    jit: Path, place: Path, secret: Path
) -> None:
    with jitting(jit, place) as pid:
        nobody("ln", "-s", secret, map_of(pid), cwd=place)
        record(pid, "--buildid-cache", cwd=place)
        assert_no_secret_in_an_archive(place)
    assert not (Path(os.environ["PERF_BUILDID_DIR"]) / "tmp" / map_of(pid).name).exists()


def test_a_map_inside_the_root_of_a_process_leads_to_no_file_of_root(jit: Path, place: Path, secret: Path) -> None:
    """In a mount namespace of the attacker's own, /tmp is not sticky, and links there work."""
    here = place / "jit"
    shutil.copy(jit, here)
    inside = (
        f"exec 3<{here}; mount -t tmpfs -o mode=700 none /tmp; cp /proc/self/fd/3 /tmp/jit; "
        f"chmod 700 /tmp/jit; ln -s {secret} /tmp/perf-1.map; exec /tmp/jit 5 100000"
    )
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]
    with of_nobody(*unshare, "sh", "-c", inside, cwd=place) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        record(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0], cwd=place)
        assert_no_secret_in_an_archive(place)


def test_a_link_in_place_of_a_cache_loses_nobody_a_file(place: Path) -> None:
    """The size limit of a cache removes the oldest files: of the cache, never of the target of a link."""
    home, victim = place / "home", place / "victim"
    victim.mkdir()
    for number in range(4):
        (victim / f"file{number}").write_bytes(bytes(16 << 20))
        os.utime(victim / f"file{number}", (1, 1))
    nobody("mkdir", "-p", home / ".cache/perf-offcpu", cwd=place)
    for cache in ("programs", "symbols"):
        nobody("ln", "-s", victim, home / ".cache/perf-offcpu" / cache, cwd=place)
    for _ in range(2):
        root("record", "-o", "x.data", "--", "true", cwd=place, home=home)
        root("report", "-i", "x.data", cwd=place, home=home)
    assert sorted(path.name for path in victim.iterdir()) == [f"file{number}" for number in range(4)]


def test_a_link_in_the_build_id_cache_puts_no_file_elsewhere(jit: Path, place: Path) -> None:
    home, victim = place / "home", place / "victim"
    victim.mkdir()
    nobody("mkdir", "-p", home / ".debug", cwd=place)
    for directory in ("tmp", "usr", "proc", "[kernel.kallsyms]"):
        nobody("ln", "-s", victim, home / ".debug" / directory, cwd=place)
    with jitting(jit, place) as pid:
        nobody("sh", "-c", f"echo 1000 20 attack > {map_of(pid)}", cwd=place)
        record(pid, "--buildid-cache", cwd=place, home=home)
    assert list(victim.iterdir()) == []


@pytest.mark.parametrize("name", ["out.folded", "x.data.folded"], ids=["named", "default"])
def test_an_output_does_not_replace_the_target_of_a_link_of_another_user(name: str, place: Path, secret: Path) -> None:
    shutil.copy(DEMO, place / "x.data")
    nobody("ln", "-s", secret, place / name, cwd=place)
    options = ("-o", name) if name == "out.folded" else ()
    done = root("convert", "--folded", "-i", "x.data", *options, cwd=place, status=1)
    assert b"link" in done.stderr, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert secret.read_bytes() == SECRET and secret.stat().st_mode & 0o777 == 0o600


def test_a_recording_does_not_replace_the_target_of_a_link_of_another_user(place: Path, secret: Path) -> None:
    nobody("ln", "-s", secret, place / "x.data", cwd=place)
    root("record", "-o", "x.data", "--", "true", cwd=place, status=None)
    assert secret.read_bytes() == SECRET and secret.stat().st_mode & 0o777 == 0o600


def test_a_recording_is_not_written_through_a_link_to_a_device(place: Path) -> None:
    nobody("ln", "-s", "/dev/full", place / "x.data", cwd=place)
    before = time.monotonic()
    done = root("record", "-o", "x.data", "--", "true", cwd=place, status=None)
    assert time.monotonic() - before < 30 and b"Traceback" not in done.stderr
    assert done.returncode != 0 or (place / "x.data").is_file()


@pytest.mark.long
def test_kept_variables_do_not_lead_the_compiler(place: Path) -> None:
    """Nor is what they name looked at; the recorded command has them as the caller set them."""
    headers = place / "headers" / "include" / "linux"
    nobody("mkdir", "-p", headers, cwd=place)
    for header in ("kconfig.h", "types.h"):
        nobody("sh", "-c", f'echo "#error of the attacker" > {headers / header}', cwd=place)
    words = ("record", "-o", "x.data", "--", "sh", "-c", "echo $BCC_KERNEL_SOURCE; echo home $HOME")
    source, home = place / "headers", place / "home"
    done = root(*words, cwd=place, home=home, BCC_KERNEL_SOURCE=source, PERF_OFFCPU_CACHE_BYTES="0")
    assert done.stdout.splitlines() == [os.fsencode(source), b"home " + os.fsencode(home)]
    assert ignored(done.stderr) >= {"BCC_KERNEL_SOURCE", "HOME"}


def test_a_kept_pager_is_not_run(place: Path) -> None:
    """The usual one is, without any variable that could name programs, files or commands of less."""
    shutil.copy(DEMO, place / "x.data")
    marks = {name: place / f"ran-{name}" for name in ("PAGER", "PERF_PAGER", "LESSOPEN", "TAR_OPTIONS", "X")}
    less, seen = place / "bin" / "less", place / "seen"
    less.parent.mkdir()
    less.write_text(f"#!/bin/sh\nenv > {seen}\ncat > /dev/null\n")
    less.chmod(0o755)
    environment = os.environ | {name: f"touch {mark}; cat" for name, mark in marks.items()}
    environment |= {"TERM": "xterm", "HOME": "/root", "SUDO_UID": str(NOBODY), "TMPDIR": str(place)}
    environment |= {"LESS": f"+!touch {place}/ran-LESS", "LANG": "../x", "PATH": f"{less.parent}:/usr/bin:/bin"}
    terminal, end = os.openpty()
    words = [PROGRAM, "report", "-i", place / "x.data"]
    with subprocess.Popen(words, env=environment, stdin=end, stdout=end, stderr=subprocess.PIPE) as process:
        os.close(end)
        with open(terminal, "rb", buffering=0) as screen, suppress(OSError):  # EIO: the other end is closed
            while screen.read(4096):
                pass
        assert process.stderr is not None
        said = process.stderr.read()
    assert ignored(said) >= {"LESS", "LESSOPEN", "PAGER", "PERF_PAGER", "TMPDIR"}
    assert list(place.glob("ran-*")) == []
    variables = dict(line.partition("=")[::2] for line in seen.read_text().splitlines())
    assert variables.keys() <= ALLOWED - {"LANG"} | {"HOME", "LESS", "PWD"} and variables["LESS"] == "FRSX"


def test_kept_caches_and_a_kept_home_are_not_written_to(place: Path) -> None:
    """Under sudo, the caches of the invoking user are not root's: neither used nor made there."""
    home, kept = place / "home", place / "kept"
    nobody("mkdir", "-p", home / ".cache", kept, cwd=place)
    words = ("record", "--buildid-cache", "-o", "x.data", "--", "sleep", "0.01")
    done = root(*words, cwd=place, home=home, PERF_BUILDID_DIR=kept, XDG_CACHE_HOME=kept)
    assert ignored(done.stderr) >= {"PERF_BUILDID_DIR", "XDG_CACHE_HOME", "HOME"}
    assert list(kept.iterdir()) == [] and list(home.rglob("*")) == [home / ".cache"]


def test_variables_of_root_itself_are_believed(place: Path) -> None:
    """Root without another user in sight names its own cache."""
    own = place / "of-root"
    own.mkdir(mode=0o700)
    environment = os.environ | {"HOME": "/root", "PERF_BUILDID_DIR": str(own)}
    words = [PROGRAM, "record", "--buildid-cache", "-o", "x.data", "--", "sleep", "0.01"]
    done = subprocess.run(words, cwd=place, env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0 and b"ignored" not in done.stderr, done.stderr.decode()
    assert list(own.iterdir())


def test_symbols_are_kept_without_rights_of_root_but_reading(capfd: pytest.CaptureFixture[str]) -> None:
    def show() -> None:
        print(Path("/proc/self/status").read_text())
        with pytest.raises(PermissionError):
            os.chown("/proc/self/status", 1, 1)
        with pytest.raises(PermissionError):
            os.setuid(NOBODY)

    assert run_with_fewer_rights(show)
    assert_can_only_read(capfd.readouterr().out)


def test_what_others_own_is_examined_with_rights_to_read_alone() -> None:
    helper = Helper(lambda path: Path(path).read_text())
    (answer,) = helper.each(["/proc/self/status"])
    helper.close()
    assert_can_only_read(answer.value)


def assert_can_only_read(status: str) -> None:
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == READING
    assert int(fields["CapInh"], 16) == 0 and fields["NoNewPrivs"] == "1"


def test_what_goes_wrong_there_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise RecordingError("the disk is full")

    assert not run_with_fewer_rights(fail)
    assert capfd.readouterr().err == "perf-offcpu record: the disk is full\n"


def test_a_dataset_of_another_user_is_named(place: Path) -> None:
    """Made by sudo, asked without."""
    (place / "waits").mkdir(mode=0o700)
    words = map(str, [*AS_NOBODY, PROGRAM, "fleet", "report", place / "waits"])
    line = reachable(f"HOME=/ exec {shlex.join(words)}")
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"perf-offcpu fleet: {place}/waits: Permission denied: a dataset is its owner's")
