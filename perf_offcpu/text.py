# SPDX-License-Identifier: Apache-2.0
"""How names become text for people and formats.

Names come from kernels, ELF files and JIT maps; anyone who can run a program can choose them. So whatever
could drive a terminal, break a line or hide itself is shown as an escape, and so is what is not UTF-8 (the
strings of a profile hold such bytes as lone surrogates, see `model.strings`). What comes out encodes as
UTF-8, stays on its line and reads from left to right.
"""

from __future__ import annotations

import posixpath
import re

UNKNOWN = "[unknown]"
TRUNCATED = "[truncated]"
MISSED_STACK = "[missed stack]"
MISSED_USER_STACK = "[missed user stack]"
MISSED_KERNEL_STACK = "[missed kernel stack]"
NO_STACK = "[no stack]"
KERNEL_SUFFIX = "_[k]"
WAKER_SUFFIX = "_[w]"
"""flamegraph.pl --colors=chain colours these apart."""

_UNSAFE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters, C0 and C1
    "\xad\u200b-\u200f\u2060-\u206f\ufeff"  # invisible
    "\u061c\u2028-\u202e"  # line separators, direction overrides
    "\ud800-\udfff"  # not UTF-8
    "]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LIKE_A_WEIGHT = re.compile(r"\s(?=\d+(\.\d*)?$)")


def printable(text: str) -> str:
    """The text with every unsafe character as an escape: `\\n`, `\\x1b`, `\\u202e`; bytes that are not UTF-8
    as `\\xff`."""
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: byte 0x80 + n became U+DC80 + n
        code -= 0xDC00
    return _SHORT.get(char) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def frame_label(symbol: str, dso: str, address: int | None = None) -> str:
    """What a frame is called: its symbol, else `[dso]`, else `[unknown]`.

    Args:
        address: shown in what has no symbol, as stackcollapse-perf.pl --addrs does: `[libc.so.6 <1f3a>]`.
    """
    if symbol:
        return printable(symbol)
    name = basename(dso) or "unknown"
    if name.startswith("[") and name.endswith("]"):  # [vdso], [kernel.kallsyms]
        name = name[1:-1]
    return f"[{name}]" if address is None else f"[{name} <{address:x}>]"


def basename(dso: str) -> str:
    """The last part of a dso's path, printable; pseudo names such as `[vdso]` and `//anon` have one too."""
    return printable(posixpath.basename(dso))


def thread_label(comm: str, pid: int | None = None, tid: int | None = None) -> str:
    """The name of a thread or process: `comm`, `comm-PID` or `comm-PID/TID`, as stackcollapse-perf.pl;
    -1 is unknown, printed `?`."""
    ids = "/".join("?" if number < 0 else str(number) for number in (pid, tid) if number is not None)
    name = printable(comm) or UNKNOWN
    return f"{name}-{ids}" if ids else name


def folded_field(label: str) -> str:
    """A label as one field of a folded line.

    `;` separates fields, so it becomes `:`. A blank in front of a number at the end becomes `_`:
    flamegraph.pl would take the number for the first count of a differential line.
    """
    return _LIKE_A_WEIGHT.sub("_", label.replace(";", ":"))


def folded_root(label: str) -> str:
    """A comm as the first field: blanks become `_` as in stackcollapse-perf.pl, and a leading `#`, which
    makes a comment of the line for Perfetto, becomes an escape."""
    field = label.replace(";", ":").replace(" ", "_")
    return "\\x23" + field[1:] if field.startswith("#") else field


def for_script_element(json_text: str) -> str:
    """JSON that can stand inside an HTML script element: nothing in it can end the element or begin a
    comment (HTML standard, "restrictions for contents of script elements")."""
    return json_text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
