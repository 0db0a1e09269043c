# SPDX-License-Identifier: Apache-2.0
"""Make names safe text for people and formats. Names come from kernels, ELF files and JIT maps; anyone who can run a
program can choose them. So characters that could drive a terminal, break a line or hide are shown as escapes, and so
are bytes that are not UTF-8 (lone surrogates in the strings of a profile, see `model.columns`). The result encodes as
UTF-8, stays on its line and reads from left to right."""

import posixpath
import re
from collections.abc import Callable

Say = Callable[[str], None]  # shows a sentence to the user
UNKNOWN = "[unknown]"
TRUNCATED = "[truncated]"
MISSED_STACK = "[missed stack]"
MISSED_USER_STACK = "[missed user stack]"
MISSED_KERNEL_STACK = "[missed kernel stack]"
NO_STACK = "[no stack]"
KERNEL_SUFFIX = "_[k]"  # flamegraph.pl --colors=chain colours frames of these two suffixes apart
WAKER_SUFFIX = "_[w]"
SYMBOL_SUFFIX = re.compile(r"@.*|\.(?:constprop|isra|part|cold|llvm|lto_priv)\b.*")
"""Suffix of a symbol: a version (`@GLIBC_2.2.5`), or the mark of a copy that the compiler made (`.cold`)."""

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
    """Replace unsafe characters of a text by escapes: `\\n`, `\\x1b`, `\\u202e`, `\\xff` (a byte that is not UTF-8)."""
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: byte 0x80 + n became U+DC80 + n
        code -= 0xDC00
    return _SHORT.get(match[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def frame_label(symbol: str, dso: str, address: int | None = None) -> str:
    """Return the printable name of a frame: its symbol, else `[dso]`, else `[unknown]`. With an address, frames without
    a symbol are named as by stackcollapse-perf.pl --addrs: `[libc.so.6 <1f3a>]`."""
    if symbol:
        return printable(symbol)
    name = basename(dso) or "unknown"
    if name.startswith("[") and name.endswith("]"):  # [vdso], [kernel.kallsyms]
        name = name[1:-1]
    return f"[{name}]" if address is None else f"[{name} <{address:x}>]"


def basename(dso: str) -> str:
    """Return the last part of a dso's path, printable; pseudo names such as `[vdso]` stay whole."""
    return printable(posixpath.basename(dso))


def thread_label(comm: str, pid: int | None = None, tid: int | None = None) -> str:
    """Return `comm`, `comm-PID` or `comm-PID/TID`, printable, as stackcollapse-perf.pl; an id of -1 becomes `?`."""
    ids = "/".join(id_text(number) for number in (pid, tid) if number is not None)
    name = printable(comm) or UNKNOWN
    return f"{name}-{ids}" if ids else name


def id_text(number: int) -> str:
    """Format a pid, tid or CPU number; a negative one, which is unknown, becomes `?`."""
    return str(number) if number >= 0 else "?"


def folded_field(label: str) -> str:
    """Convert a label to a field of a folded stack: `;`, which separates fields, becomes `:`. A blank before a number
    at the end becomes `_`: flamegraph.pl would take the number for a count of a differential line."""
    return _LIKE_A_WEIGHT.sub("_", label.replace(";", ":"))


def folded_root(label: str) -> str:
    """Convert a comm to the first field of a folded stack: `;` to `:`, blanks to `_`, a leading `#` (a comment)
    escaped."""
    field = label.replace(";", ":").replace(" ", "_")
    return "\\x23" + field[1:] if field.startswith("#") else field


def for_script_element(json_text: str) -> str:
    """Escape `<`, `>` and `&` in JSON, so that it cannot end an HTML script element or begin a comment in it."""
    return json_text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
