# SPDX-License-Identifier: Apache-2.0
"""Debian's kernels: which there are, and one of them unpacked in the cache. The kernels are those of the "cloud"
flavour: the same code as the others with fewer drivers, so a third of the size. apt finds and verifies them, with lists
of its own, so that this machine's sources stay as they are. Up to 6.18 one package holds kernel and modules; since then
they are two.

A kernel is named [ARCH:]VERSION[-PAGES]: `6.1`, `arm64:6.12`, `arm64:6.12-16k` (the flavour with pages of 16 KB)."""

import functools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vm.host import die, locked, run, say
from vm.machines import AMD64, MACHINES, Machine

DEFAULT = ("6.1", "6.12", "7")
SUITES = ("bullseye", "bookworm", "trixie", "trixie-backports", "sid")
SECURITY = ("bullseye", "bookworm", "trixie")
LISTS_LAST_S = 24 * 3600
PACKAGE = r"linux-(?:binary-unsigned|binary|image)-(\d+\.\d+[^-]*(?:-\d+)?)-{flavour}"
NAME = re.compile(r"(?:(\w+):)?([\d.]+\w*?(?:-\d+)?)(?:-(16k|64k))?")


@functools.cache
def mirror() -> str:
    """Return the URL of Debian's archives: $DEBIAN_MIRROR, else that of this machine's apt."""
    if named := os.environ.get("DEBIAN_MIRROR"):
        return named.rstrip("/")
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True, check=False
    )
    for uri in targets.stdout.split():
        if uri.rstrip("/").endswith("/debian"):
            return uri.rstrip("/").removesuffix("/debian")
    die("no mirror of Debian in apt's sources: name one in DEBIAN_MIRROR, without its /debian")


@dataclass(frozen=True)
class Kernel:
    machine: Machine
    release: str  # the name in `uname -r`
    vmlinuz: Path
    modules: Path  # the directory that holds lib/modules/RELEASE

    @property
    def version(self) -> tuple[int, int]:
        major, minor = re.match(r"(\d+)\.(\d+)", self.release).groups()  # type: ignore[union-attr]
        return int(major), int(minor)


def _apt(directory: Path, machine: Machine, command: str, *arguments: str) -> list[str]:
    options = {
        "Dir::State": directory / "state", "Dir::State::status": directory / "status",
        "Dir::Cache": directory / "cache",
        "Dir::Etc::SourceList": directory / "sources.list", "Dir::Etc::SourceParts": "-",
        "APT::Architecture": machine.arch, "APT::Architectures": machine.arch, "APT::Sandbox::User": "root",
        # bullseye is no longer renewed; its signature is still checked.
        "Acquire::Languages": "none", "Acquire::Check-Valid-Until": "false",
    }  # fmt: skip
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return [command, *words, "-q", *arguments]


def _lists(machine: Machine) -> Path:
    """apt's state with the package lists of all suites, at most a day old."""
    with locked("apt" if machine == AMD64 else f"apt-{machine.arch}") as directory:
        stamp = directory / "updated"
        if stamp.exists() and time.time() - stamp.stat().st_mtime < LISTS_LAST_S:
            return directory
        say("Fetching the package lists of Debian's suites")
        for name in ("state/lists/partial", "cache/archives/partial"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / "status").touch()
        lines = [f"deb {mirror()}/debian {suite} main\n" for suite in SUITES]
        lines += [f"deb {mirror()}/debian-security {suite}-security main\n" for suite in SECURITY]
        (directory / "sources.list").write_text("".join(lines))
        run(*_apt(directory, machine, "apt-get", "update"))
        stamp.touch()
    return directory


def _order(release: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", release))


def each_of(names: Iterable[str]) -> list[str]:
    """Return names of kernels; an architecture alone stands for its usual ones."""
    return [one for name in names for one in ([f"{name}:{other}" for other in DEFAULT] if name in MACHINES else [name])]


def find(name: str) -> tuple[Machine, str]:
    """Return the machine of a kernel, and the newest release that begins with its version ("6.1", "7"); exit without
    one."""
    match = NAME.fullmatch(name)
    if match is None or (match[1] or AMD64.arch) not in MACHINES:
        die(f"no such kernel: {name}; a kernel is named [ARCH:]VERSION[-PAGES], ARCH {' or '.join(MACHINES)}")
    machine, wanted = MACHINES[match[1] or AMD64.arch], match[2]
    flavour = f"{machine.arch}-{match[3]}" if match[3] else f"cloud-{machine.arch}"
    listed = subprocess.run(
        _apt(_lists(machine), machine, "apt-cache", "pkgnames", "linux-"), capture_output=True, text=True, check=True
    ).stdout.split()
    package = re.compile(PACKAGE.format(flavour=flavour))
    releases = {match[1] for name in listed if (match := package.fullmatch(name))}
    fitting = [name for name in releases if re.match(re.escape(wanted) + r"(?!\d)", name)]
    if not fitting:
        series = sorted({".".join(name.split(".")[:2]) for name in releases}, key=_order)
        die(f"Debian's suites have no kernel {name}; of {flavour} they have {', '.join(series) or 'none'}")
    return machine, f"{max(fitting, key=lambda name: (_order(name), name))}-{flavour}"


def fetch(name: str) -> Kernel:
    """Return the newest kernel of a name, downloaded and unpacked unless it is in the cache."""
    machine, release = find(name)
    with locked(f"kernel-{release}") as directory:
        if not (directory / "done").exists():
            say(f"Fetching Linux {release}")
            _download(machine, release, directory)
            (directory / "done").touch()
        images = [*directory.glob(f"boot/vmlinuz-{release}"), *directory.rglob("usr/lib/modules/*/vmlinuz*")]
        modules = directory / "usr" if (directory / "usr/lib/modules").exists() else directory
        return Kernel(machine, release, images[0], modules)


def _download(machine: Machine, release: str, directory: Path) -> None:
    lists = _lists(machine)
    for packages in (
        [f"linux-binary-{release}", f"linux-modules-{release}"],
        [f"linux-binary-unsigned-{release}", f"linux-modules-{release}"],
        [f"linux-image-{release}"],
    ):
        shutil.rmtree(directory)
        directory.mkdir()
        command = _apt(lists, machine, "apt-get", "download", *packages)
        if subprocess.run(command, cwd=directory, capture_output=True, check=False).returncode == 0:
            break
    else:
        die(f"apt could not download Linux {release}")
    for package in directory.glob("*.deb"):
        run("dpkg-deb", "-x", package, directory)
        package.unlink()
