# SPDX-License-Identifier: Apache-2.0
"""Run the program as another user, also from a checkout that others cannot reach (in /root)."""

import shlex
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
NOBODY = "--reuid=65534 --regid=65534 --clear-groups"
AS_NOBODY = ["setpriv", *NOBODY.split()]

# $1: the outermost directory that is closed to others, $2: the checkout, $3: the shell line.
_OPEN = """
set -e
door=$(mktemp -d)
mount --bind "$2" "$door"
mount -t tmpfs -o mode=755 none "$1"
mkdir -p "$2"
mount --bind "$door" "$2"
umount "$door"
rmdir "$door"
exec sh -c "$3"
"""


def reachable(shell: str) -> str:
    """Return a shell line that runs another where other users can enter the checkout."""
    closed = [parent for parent in CHECKOUT.parents if not parent.stat().st_mode & 0o001]
    if not closed:
        return shell
    words = ["sh", "-c", _OPEN, "sh", closed[-1], CHECKOUT, shell]
    return f"unshare --mount {shlex.join(map(str, words))}"
