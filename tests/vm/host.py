# SPDX-License-Identifier: Apache-2.0
"""Functions of all parts of vmtest for the machine they run on: the cache, commands, messages."""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import NoReturn

CHECKOUT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perf-offcpu" / "vm"

# Command: the Debian package that brings it.
NEEDED = {"debootstrap": "debootstrap", "mkfs.ext4": "e2fsprogs", "git": "git"}


def split_words() -> tuple[list[str], list[str]]:
    """Return the words of the command line before and after `--`."""
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end + 1 :]


def parser(prog: str, description: str, epilog: str, usage: str) -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog, f"%(prog)s {usage}", description, epilog, formatter_class=form)


def chosen_suites(options: argparse.Namespace, usual: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the suites of Debian that were named, or the usual ones; end if one is not known."""
    if unknown := set(options.suites) - set(known):
        die(f"no such suite: {', '.join(unknown)} (there are {', '.join(known)})")
    check({name: NEEDED[name] for name in ("debootstrap", "git")})
    return options.suites or list(usual)


def die(message: str) -> NoReturn:
    sys.exit(f"vmtest: {message}")


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def check(commands: Mapping[str, str] = NEEDED) -> None:
    """End with the names of the missing packages of commands, if any are."""
    missing = [package for command, package in commands.items() if shutil.which(command) is None]
    if missing:
        die(f"install first: apt install {' '.join(missing)}")
    if os.geteuid() != 0:
        die("needs root, for debootstrap and file systems that belong to root (sudo scripts/vmtest)")


def run(*command: str | Path) -> None:
    """Run a command quietly and at low priority; after a failure show the end of its output and exit."""
    words = ["nice", *map(str, command)]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        say("\n".join(done.stdout.splitlines()[-15:]))
        die(f"failed: {' '.join(words[1:])[:200]}")


def checkout() -> str:
    """Return the commit of the checkout, with "-dirty" where files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty"]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout


@contextmanager
def locked(name: str) -> Iterator[Path]:
    """The cache directory `name`, for this process alone."""
    directory = CACHE / name
    directory.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        yield directory
