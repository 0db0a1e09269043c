# SPDX-License-Identifier: Apache-2.0
"""Debian's kernels: which there are, and one of them unpacked in the cache. The kernels are those of the "cloud"
flavour: the same code as the others with fewer drivers, so a third of the size. apt finds and verifies them, with lists
of its own, so that this machine's sources stay as they are. Up to 6.18 one package holds kernel and modules; since then
they are two."""

import functools
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from vm.host import die, locked, run, say

DEFAULT = ("6.1", "6.12", "7")
SUITES = ("bullseye", "bookworm", "trixie", "trixie-backports", "sid")
SECURITY = ("bullseye", "bookworm", "trixie")
LISTS_LAST_S = 24 * 3600
PACKAGE = re.compile(r"linux-(binary-unsigned|binary|image)-((\d+)\.(\d+)[^-]*(?:-\d+)?)-cloud-amd64$")


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
    release: str  # the name in `uname -r`
    vmlinuz: Path
    modules: Path  # the directory that holds lib/modules/RELEASE

    @property
    def version(self) -> tuple[int, int]:
        major, minor = re.match(r"(\d+)\.(\d+)", self.release).groups()  # type: ignore[union-attr]
        return int(major), int(minor)


def _apt(directory: Path, command: str, *arguments: str) -> list[str]:
    options = {
        "Dir::State": directory / "state", "Dir::State::status": directory / "status",
        "Dir::Cache": directory / "cache",
        "Dir::Etc::SourceList": directory / "sources.list", "Dir::Etc::SourceParts": "-",
        "APT::Architecture": "amd64", "APT::Architectures": "amd64", "APT::Sandbox::User": "root",
        # bullseye is no longer renewed; its signature is still checked.
        "Acquire::Languages": "none", "Acquire::Check-Valid-Until": "false",
    }  # fmt: skip
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return [command, *words, "-q", *arguments]


def _lists() -> Path:
    """apt's state with the package lists of all suites, at most a day old."""
    with locked("apt") as directory:
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
        run(*_apt(directory, "apt-get", "update"))
        stamp.touch()
    return directory


def _order(release: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", release))


def find(wanted: str) -> str:
    """The newest release that begins with `wanted` ("6.1", "7"); ends with a message if there is none."""
    listed = subprocess.run(
        _apt(_lists(), "apt-cache", "pkgnames", "linux-"), capture_output=True, text=True, check=True
    ).stdout.split()
    releases = {match[2] for name in listed if (match := PACKAGE.match(name))}
    fitting = [name for name in releases if re.match(re.escape(wanted) + r"(?!\d)", name)]
    if not fitting:
        series = sorted({".".join(name.split(".")[:2]) for name in releases}, key=_order)
        die(f"Debian's suites have no kernel {wanted}; they have {', '.join(series)}")
    return max(fitting, key=lambda name: (_order(name), name))


def fetch(wanted: str) -> Kernel:
    """The newest kernel that begins with `wanted`, downloaded and unpacked unless it is in the cache."""
    release = f"{find(wanted)}-cloud-amd64"
    with locked(f"kernel-{release}") as directory:
        if not (directory / "done").exists():
            say(f"Fetching Linux {release}")
            _download(release, directory)
            (directory / "done").touch()
        images = [*directory.glob(f"boot/vmlinuz-{release}"), *directory.rglob("usr/lib/modules/*/vmlinuz*")]
        modules = directory / "usr" if (directory / "usr/lib/modules").exists() else directory
        return Kernel(release, images[0], modules)


def _download(release: str, directory: Path) -> None:
    lists = _lists()
    for packages in (
        [f"linux-binary-{release}", f"linux-modules-{release}"],
        [f"linux-binary-unsigned-{release}", f"linux-modules-{release}"],
        [f"linux-image-{release}"],
    ):
        shutil.rmtree(directory)
        directory.mkdir()
        command = _apt(lists, "apt-get", "download", *packages)
        if subprocess.run(command, cwd=directory, capture_output=True, check=False).returncode == 0:
            break
    else:
        die(f"apt could not download Linux {release}")
    for package in directory.glob("*.deb"):
        run("dpkg-deb", "-x", package, directory)
        package.unlink()
