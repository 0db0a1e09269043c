# SPDX-License-Identifier: Apache-2.0
"""`scripts/baretest`: the README's commands in a new clone on a minimal Debian, as on a stranger's machine. Each run
starts from a copy of what debootstrap makes: nothing is there that an earlier run installed. The copy becomes the root
of a mount namespace, on the running kernel, and is removed afterwards. This machine gives only its ways to the package
archives: apt's and pip's configuration and the certificates."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vm import host, roots
from vm.suites import PIVOT

DESCRIPTION = """\
Run the README's two commands in a new clone of HEAD on a minimal Debian, on the running kernel. Needs root,
and 4 GB in /var/tmp for the time of a run."""
EPILOG = f"""\
  scripts/baretest                                 {", ".join(roots.RELEASED)}, one after the other
  scripts/baretest trixie --with libc6-dbg         with a further package
  scripts/baretest trixie -- 'scripts/test && scripts/test'"""
COMMAND = "scripts/demo && scripts/test"
PLACE = "root/perf-offcpu"
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
ENTER = f"""
set -e
root=$1; shift
mount --bind "$root" "$root"
mount -t tmpfs tmpfs "$root/run"
{PIVOT}
cd /{PLACE}
exec bash -c "$1"
"""


def main() -> int:
    words, shell = host.split_words()
    parser = host.parser("baretest", DESCRIPTION, EPILOG, "[SUITE...] [--with PACKAGE] [-- COMMAND]")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(roots.SUITES))
    parser.add_argument("--with", action="append", default=[], metavar="PACKAGE", dest="packages")
    options = parser.parse_args(words)
    suites = host.chosen_suites(options, roots.RELEASED, roots.SUITES)
    command = " ".join(shell) or COMMAND
    if options.packages:
        command = f"apt-get -qq update; apt-get -qq install {shlex.join(options.packages)} && {command}"
    return max(_run_in(suite, command) for suite in suites)


def _run_in(suite: str, command: str) -> int:
    """Return the exit status of a command in a new clone on a new Debian; its output is this program's."""
    base = roots.bare(suite, ("ca-certificates", "git", "kmod", "procps"))
    with tempfile.TemporaryDirectory(prefix=f"{suite}.", dir="/var/tmp") as scratch:
        root = Path(scratch, "root")
        host.run("cp", "-a", "--reflink=auto", base, root)
        _connect(root)
        trust = ("-c", "safe.directory=*")  # a checkout of the user who called sudo
        host.run("git", *trust, "clone", "-q", "--no-hardlinks", host.CHECKOUT, root / PLACE)
        host.say(f"Debian {suite}: {command}")
        begin = time.monotonic()
        words = ["unshare", "-m", "--propagation", "private", "sh", "-c", ENTER, "sh", str(root), command]
        status = subprocess.run(words, check=False, env=_environment(), stdin=subprocess.DEVNULL).returncode
        host.say(f"Debian {suite}: exit status {status} after {time.monotonic() - begin:.0f} s")
    return status


def _connect(root: Path) -> None:
    for name in ("etc/resolv.conf", "etc/hosts", "etc/pip.conf", BUNDLE[1:]):
        if Path("/", name).exists():
            (root / name).unlink(missing_ok=True)
            shutil.copy(Path("/", name), root / name)
    shutil.copytree("/etc/apt/apt.conf.d", root / "etc/apt/apt.conf.d", dirs_exist_ok=True)


def _environment() -> dict[str, str]:
    passed = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    return passed | {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive", "PIP_CERT": BUNDLE,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
