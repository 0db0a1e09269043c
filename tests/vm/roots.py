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

from vm.host import CACHE, CHECKOUT, locked, run, say
from vm.kernels import Kernel, mirror
from vm.machines import AMD64, Machine

RELEASED = ("bookworm", "trixie")
SUITES = (*RELEASED, "sid")
PACKAGES = (
    *("python3", "python3-venv", "python3-bpfcc", "python3-numpy", "python3-pyelftools", "linux-perf"),
    *("gcc", "g++", "libc6-dev", "binutils", "procps", "iproute2", "nftables", "kmod", "e2fsprogs"),
    *("ca-certificates", "gdb", "postgresql", "graphviz", "asciidoctor", "zsh", "openssl"),
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


def _packages(machine: Machine) -> tuple[str, ...]:
    return (*PACKAGES, *machine.packages)


def _name(suite: str, machine: Machine) -> str:
    return suite if machine == AMD64 else f"{suite}-{machine.arch}"


def _key(machine: Machine) -> str:
    parts = (_packages(machine), _project()["dependencies"], _project()["scripts"], _test_tools(machine))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return project


def _test_tools(machine: Machine) -> list[str]:
    extra = _project()["optional-dependencies"]["test"]
    return [wanted for wanted in extra if not wanted.startswith((*NOT_FOR_TESTS, *machine.tools))]


def root(suite: str, machine: Machine = AMD64) -> Path:
    """Return the directory of a suite's root, made on first use (a minute and 1 GB; emulated, a quarter of an hour)."""
    with locked(f"root-{_name(suite, machine)}") as directory:
        done = directory.with_suffix(".done")
        if not done.exists():
            # The rest is left to apt: debootstrap does not find packages that others provide.
            _bootstrap(suite, directory, ("ca-certificates",), machine)
            done.touch()
        if done.read_text() != _key(machine):
            _install(directory, machine)
            done.write_text(_key(machine))
    return directory


def bare(suite: str, packages: Sequence[str]) -> Path:
    """Return a directory with a minimal Debian and a few packages, made on first use (a minute, 350 MB)."""
    with locked(f"bare-{suite}") as directory:
        done = directory.with_suffix(".done")
        if not done.exists():
            _bootstrap(suite, directory, packages, AMD64)
            done.touch()
    return directory


def _bootstrap(suite: str, directory: Path, packages: Sequence[str], machine: Machine) -> None:
    say(f"Making a root of Debian {suite} for {machine.arch}")
    shutil.rmtree(directory)
    include = f"--include={','.join(packages)}"
    arch = f"--arch={machine.arch}"
    run("debootstrap", "--variant=minbase", arch, include, suite, directory, f"{mirror()}/debian")


def _install(directory: Path, machine: Machine) -> None:
    """Install packages that are missing, and the virtual environment from a copy of the project."""
    say(f"Installing what the project requires in {directory.name}")
    with mounted(directory), no_services(directory):
        words = "env DEBIAN_FRONTEND=noninteractive apt-get -qq".split()
        apt: tuple[str | Path, ...] = ("chroot", directory, *words, *STALE)
        run(*apt, "update")
        install = (*apt, "install", "-y", "--no-install-recommends", *_packages(machine))
        if machine.user:
            run(*install, "--download-only")
            _unpack_packages(directory)
            run(*install)  # configures them
            _unpack_wheels(directory, machine)
            return
        run(*install)
        copy_project(directory / PROJECT[1:])
        run("chroot", directory, "python3", "-m", "venv", "--clear", "--system-site-packages", VENV)
        pip = ("chroot", directory, f"{VENV}/bin/pip", "install", "--quiet", "--no-cache-dir")
        run(*pip, *_test_tools(machine), "-e", PROJECT)
        shutil.rmtree(directory / PROJECT[1:])


def _unpack_packages(directory: Path) -> None:
    """Unpack what apt has downloaded with this machine's dpkg: emulated, that takes most of the time. Packages of any
    architecture seem to lack what they depend on, as that is not of this machine's."""
    packages = sorted((directory / "var/cache/apt/archives").glob("*.deb"))
    forced = [f"--force-{what}" for what in ("architecture", "depends", "unsafe-io")]
    log = f"--log={directory}/var/log/dpkg.log"
    run("dpkg", f"--root={directory}", log, *forced, "--no-triggers", "--unpack", *packages)


def _unpack_wheels(directory: Path, machine: Machine) -> None:
    """Make the virtual environment of another architecture with this machine's pip: emulated it takes a quarter of an
    hour. The project is there by a path file and a script for each of its commands."""
    run("chroot", directory, "python3", "-m", "venv", "--clear", "--without-pip", "--system-site-packages", VENV)
    packages = next((directory / VENV[1:]).glob("lib/python3.*/site-packages"))
    version = packages.parent.name.removeprefix("python")
    wanted = [name for name in _project()["dependencies"] if not name.startswith(NOT_FOR_TESTS)]
    options = ["--platform=" + name for name in machine.wheels] + ["--abi=none", "--abi=abi3", "--implementation=cp"]
    options += [f"--python-version={version}", f"--abi=cp{version.replace('.', '')}", "--only-binary=:all:"]
    pip = (CHECKOUT / ".venv/bin/python", "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-compile")
    run(*pip, *options, "--target", packages, *wanted, *_test_tools(machine))
    for numpy in packages.glob("numpy*"):  # what depends on it brought it along
        shutil.rmtree(numpy)
    (packages / "project.pth").write_text(f"{PROJECT}\n")
    for name, entry in _project()["scripts"].items():
        module, _, function = entry.partition(":")
        script = directory / VENV[1:] / "bin" / name
        script.write_text(f"#!{VENV}/bin/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        script.chmod(0o755)


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


def busybox(machine: Machine) -> Path:
    """Return a static busybox of a machine: this one's own, or that of a root, where the package is installed."""
    if not machine.user:
        return Path(shutil.which("busybox") or "busybox")
    return next(place for suite in SUITES if (place := CACHE / f"root-{_name(suite, machine)}/bin/busybox").exists())


def project_files() -> list[str]:
    """Return the files of the checkout that git knows or would add, relative to its top."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in listed.split("\0") if name and (CHECKOUT / name).is_file())


def copy_project(destination: Path) -> None:
    shutil.rmtree(destination, ignore_errors=True)
    for name in project_files():
        (destination / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(CHECKOUT / name, destination / name)


def image(suite: str, machine: Machine = AMD64) -> Path:
    """Return the ext4 image of a suite's root, made on first use."""
    directory = root(suite, machine)
    with locked(f"image-{directory.name.removeprefix('root-')}") as place:
        path = place / f"{_key(machine)}.ext4"
        if not path.exists():
            say(f"Making the disk image of Debian {suite} for {machine.arch}")
            for old in place.iterdir():
                old.unlink()
            partial = path.with_suffix(".partial")
            run("truncate", "-s", IMAGE_SIZE, partial)
            run("mkfs.ext4", "-q", "-O", "^has_journal", "-d", directory, partial)
            partial.rename(path)
    return path
