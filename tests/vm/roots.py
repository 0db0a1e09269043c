# SPDX-License-Identifier: Apache-2.0
"""Debian root directories in the cache, and disk images made of them. A root holds what recording and its tests need of
a suite: Python, bcc, perf, compilers, what else scripts/setup.sh installs for tests, and a virtual environment
/opt/venv in which the project is installed for editing from /perf-offcpu. The project itself is put there when a
machine boots, so a root lives until the suite or what pyproject.toml asks for changes."""

import hashlib
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vm.host import CHECKOUT, locked, run, say
from vm.kernels import Kernel, mirror

RELEASED = ("bookworm", "trixie")
SUITES = (*RELEASED, "sid")
PACKAGES = (
    *("python3", "python3-venv", "python3-bpfcc", "python3-numpy", "python3-pyelftools", "linux-perf"),
    *("gcc", "g++", "libc6-dev", "binutils", "procps", "iproute2", "kmod", "ca-certificates"),
    *("gdb", "postgresql", "graphviz", "asciidoctor", "zsh", "openssl"),
)
VENV = "/opt/venv"
PROJECT = "/perf-offcpu"
# What the "test" extra has for other than running tests. (numpy is the suite's: its age is to be tested.)
# Tests of the project's own extras are the same on every kernel.
NOT_FOR_TESTS = ("mypy", "ruff", "numpy", "perf-offcpu")
# A mirror may be late; signatures are checked all the same.
STALE = ("-o", "Acquire::Check-Valid-Until=false")
IMAGE_SIZE = "4G"  # sparse


def suite_of(kernel: Kernel) -> str:
    """Return the suite of a kernel's own time, or the oldest one."""
    if kernel.version < (6, 12):
        return "bookworm"
    return "trixie" if kernel.version < (6, 13) else "sid"


def _key() -> str:
    parts = (PACKAGES, _project()["dependencies"], _project()["scripts"], _test_tools())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return project


def _test_tools() -> list[str]:
    extra = _project()["optional-dependencies"]["test"]
    return [wanted for wanted in extra if not wanted.startswith(NOT_FOR_TESTS)]


def root(suite: str) -> Path:
    """Return the directory of a suite's root, made on first use (a minute and 1 GB)."""
    with locked(f"root-{suite}") as directory:
        done = directory.with_suffix(".done")
        if not done.exists():
            # The rest is left to apt: debootstrap does not find packages that others provide.
            _bootstrap(suite, directory, ("ca-certificates",))
            done.touch()
        if done.read_text() != _key():
            _install(directory)
            done.write_text(_key())
    return directory


def bare(suite: str, packages: Sequence[str]) -> Path:
    """Return a directory with a minimal Debian and a few packages, made on first use (a minute, 350 MB)."""
    with locked(f"bare-{suite}") as directory:
        done = directory.with_suffix(".done")
        if not done.exists():
            _bootstrap(suite, directory, packages)
            done.touch()
    return directory


def _bootstrap(suite: str, directory: Path, packages: Sequence[str]) -> None:
    say(f"Making a root of Debian {suite}")
    shutil.rmtree(directory)
    include = f"--include={','.join(packages)}"
    run("debootstrap", "--variant=minbase", include, suite, directory, f"{mirror()}/debian")


def _install(directory: Path) -> None:
    """Install packages that are missing, and the virtual environment from a copy of the project."""
    say(f"Installing what the project requires in {directory.name}")
    with mounted(directory), no_services(directory):
        apt = ("chroot", directory, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", *STALE)
        run(*apt, "update")
        run(*apt, "install", "-y", "--no-install-recommends", *PACKAGES)
        copy_project(directory / PROJECT[1:])
        run("chroot", directory, "python3", "-m", "venv", "--clear", "--system-site-packages", VENV)
        pip = ("chroot", directory, f"{VENV}/bin/pip", "install", "--quiet", "--no-cache-dir")
        run(*pip, *_test_tools(), "-e", PROJECT)
        shutil.rmtree(directory / PROJECT[1:])


@contextmanager
def mounted(directory: Path) -> Iterator[None]:
    """A root with this machine's network names, /proc, /sys and /dev, for the time of a block."""
    for name in ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"):
        if Path("/", name).exists():
            shutil.copy(Path("/", name), directory / name)
    places = []
    try:
        for name in ("proc", "sys", "dev"):
            run("mount", "--rbind", "--make-rslave", f"/{name}", directory / name)
            places.append(directory / name)
        yield
    finally:
        for place in reversed(places):
            run("umount", "-R", "-l", place)


@contextmanager
def no_services(directory: Path) -> Iterator[None]:
    """A root in which packages do not start their servers, for the time of a block."""
    policy = directory / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()


def project_files() -> list[str]:
    """Return the files of the checkout that git knows or would add, relative to its top."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in listed.split("\0") if name and (CHECKOUT / name).is_file())


def copy_project(destination: Path) -> None:
    """Copy the checkout as it is now, without files that git ignores."""
    shutil.rmtree(destination, ignore_errors=True)
    for name in project_files():
        (destination / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(CHECKOUT / name, destination / name)


def image(suite: str) -> Path:
    """Return the ext4 image of a suite's root, made on first use."""
    directory = root(suite)
    with locked(f"image-{suite}") as place:
        path = place / f"{_key()}.ext4"
        if not path.exists():
            say(f"Making the disk image of Debian {suite}")
            for old in place.iterdir():
                old.unlink()
            partial = path.with_suffix(".partial")
            run("truncate", "-s", IMAGE_SIZE, partial)
            run("mkfs.ext4", "-q", "-O", "^has_journal", "-d", directory, partial)
            partial.rename(path)
    return path
