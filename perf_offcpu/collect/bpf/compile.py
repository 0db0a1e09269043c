# SPDX-License-Identifier: Apache-2.0
"""C to BPF instructions, through bcc. The only module that imports bcc.

bcc is the system's compiler for BPF: Debian and Ubuntu package it for `/usr/bin/python3` alone, as
python3-bpfcc. (The package named `bcc` on PyPI is something else.) It wants kernel headers, which few
machines have; `bpf/include` holds the little that it really needs, and BCC_KERNEL_SOURCE leads it there.

Only the compiler is used. bcc also creates the maps that the source declares and writes their descriptors'
numbers into the instructions, so programs have to be loaded while its module lives; after that the module,
with all of LLVM's memory, is given back.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import fcntl
import importlib.util
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from perf_offcpu.collect.system.limits import too_many_files
from perf_offcpu.errors import CapabilityError, RecordingError

_KERNEL_SOURCE = "BCC_KERNEL_SOURCE"
_LIBRARY = "libbcc.so.0"
_INSTALL = (
    "install bcc (Debian, Ubuntu: apt install python3-bpfcc; Fedora: dnf install python3-bcc) and run with "
    "/usr/bin/python3, or with a virtual environment made from it with --system-site-packages"
)


def import_bcc() -> ModuleType:
    """The real bcc.

    Raises:
        CapabilityError: it is not there, cannot be loaded, or is the other package of that name.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # 0.37 with Python 3.14: its ctypes structures
            import bcc
    except (ImportError, OSError, AttributeError, SyntaxError) as error:
        what = f"{sys.executable} has no usable bcc ({error})"
        raise CapabilityError(what, _INSTALL) from error
    if not hasattr(bcc, "BPF") or not hasattr(bcc, "libbcc"):
        where = getattr(bcc, "__file__", None) or "somewhere"
        raise CapabilityError(f"the package bcc in {where} is not the BPF compiler collection", _INSTALL)
    module: ModuleType = bcc
    return module


def compiler() -> str:
    """Which bcc there is, without importing it: what tells its files from those of another; "" if none."""
    try:
        found = importlib.util.find_spec("bcc")
    except ValueError:  # somebody made a module of that name by hand
        return "unknown"
    if found is None or found.origin is None:
        return ""
    package = Path(found.origin)
    libraries = [Path(directory, _LIBRARY) for directory in _library_directories()]
    return "; ".join(_identity(path) for path in (package, package.with_name("version.py"), *libraries))


def _library_directories() -> list[str]:
    multiarch = getattr(sys.implementation, "_multiarch", "")
    named = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return [*filter(None, named), "/usr/local/lib", f"/usr/lib/{multiarch}", "/usr/lib64", "/usr/lib"]


def _identity(path: Path) -> str:
    """Whether a file is another one than before: its place, what it links to, size and time."""
    try:
        status = path.stat()  # direct: asks about the compiler's own files
    except OSError:
        return f"no {path}"
    # direct: the compiler's own files
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"


def is_led_elsewhere() -> bool:
    """Whether the user has bcc compile with headers of his own."""
    return _KERNEL_SOURCE in os.environ


@contextmanager
def compiled(
    source: Path, defines: Mapping[str, int | str], functions: Sequence[str], maps: Sequence[str]
) -> Iterator[tuple[dict[str, bytes], dict[str, int]]]:
    """Compile a C file for BPF and create the maps that it declares, for as long as the `with` block lasts.

    Args:
        source: the file; `include/` beside it serves as kernel headers, its directory for #include "…".
        defines: preprocessor constants.
        functions: names of the programs wanted.
        maps: names of the maps wanted.

    Yields:
        Instructions by function name, and by map name the descriptors that they refer to. These are bcc's:
        whoever wants to keep one beyond the block duplicates it.

    Raises:
        CapabilityError: no bcc.
        RecordingError: it does not compile; the message ends in the compiler's own words.
    """
    bcc = import_bcc()
    module = _compile(bcc, source, [f"-D{name}={value}" for name, value in defines.items()])
    try:
        lib, handle = bcc.libbcc.lib, module.module
        code = {name: _function(lib, handle, name.encode()) for name in functions}
        yield (code, {name: lib.bpf_table_fd(handle, name.encode()) for name in maps})
    finally:
        atexit.unregister(module.cleanup)  # bcc's way of keeping the module until the process ends
        module.cleanup()


def _compile(bcc: ModuleType, source: Path, flags: list[str]) -> Any:
    with _kernel_source(source.parent), _captured_output() as captured:
        try:
            # direct: the package's own sources
            return bcc.BPF(text=_whole(source).encode(), cflags=[*flags, f"-I{source.parent.resolve()}"])
        except Exception as error:  # bcc raises no narrower class
            _flush()
            if os.strerror(errno.EMFILE) in _text(captured):
                raise too_many_files() from error
            raise RecordingError(
                f"bcc {getattr(bcc, '__version__', '')} cannot compile {source} (0.23 and newer should): "
                f"{error}\n{_text(captured)}"
            ) from error


def _whole(source: Path, included: set[str] | None = None) -> str:
    """Return a source with its own headers put in, each once: bcc rewrites maps in the main file only."""
    included = set() if included is None else included
    lines = []
    # direct: the package's own sources
    for number, line in enumerate(source.read_text().splitlines(), 1):
        named = re.fullmatch(r'#include "(\w+\.h)"', line)
        if named is None:
            lines.append(line)
        elif named[1] not in included:
            included.add(named[1])
            part = _whole(source.with_name(named[1]), included)
            lines += [f'#line 1 "{named[1]}"', part, f'#line {number + 1} "{source.name}"']
        else:
            lines.append("")
    return "\n".join(lines) + "\n"


def _function(lib: Any, handle: int, name: bytes) -> bytes:
    size = lib.bpf_function_size(handle, name)
    return ctypes.string_at(lib.bpf_function_start(handle, name), size)


@contextmanager
def _kernel_source(directory: Path) -> Iterator[None]:
    """Lead bcc to our headers, unless the user leads it elsewhere."""
    if is_led_elsewhere():
        yield
        return
    os.environ[_KERNEL_SOURCE] = str(directory.resolve())  # direct: the package's own directory
    try:
        yield
    finally:
        del os.environ[_KERNEL_SOURCE]


@contextmanager
def _captured_output() -> Iterator[IO[bytes]]:
    """Keep what C and C++ code writes to descriptors 1 and 2 off the terminal, in a file.

    clang and bcc's C++ part write warnings there, past Python's sys.stderr.
    """
    _flush()
    with tempfile.TemporaryFile() as captured:
        saved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (1, 2)]
        try:
            for fd in (1, 2):
                os.dup2(captured.fileno(), fd)
            yield captured
        finally:
            _flush()
            for fd, original in zip((1, 2), saved, strict=True):
                os.dup2(original, fd)
                os.close(original)


def _flush() -> None:
    """Empty the buffers of Python and of C's stdio (which C++'s cout shares) to where they belong now."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def _text(captured: IO[bytes], limit: int = 4000) -> str:
    """What was written, its beginning: the first error is the one that matters."""
    captured.seek(0)
    return captured.read(limit).decode(errors="replace").strip()
