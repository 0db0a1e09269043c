# SPDX-License-Identifier: Apache-2.0
"""Compile C to BPF instructions with bcc. No other module imports bcc.

bcc is the system's compiler for BPF: Debian and Ubuntu package it for `/usr/bin/python3` alone, as python3-bpfcc. (The
package named `bcc` on PyPI is another program.) It asks for kernel headers, which few machines have; `bpf/include`
holds the few declarations that it needs, and BCC_KERNEL_SOURCE names that directory.

Only the compiler is used. bcc also creates the maps that the source declares and writes the numbers of their
descriptors into the instructions, so programs must be loaded before its module, with LLVM's memory, is freed."""

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

from perf_offcpu.collect.system.privileges import too_many_files
from perf_offcpu.errors import CapabilityError, RecordingError

_KERNEL_SOURCE = "BCC_KERNEL_SOURCE"
_LIBRARY = "libbcc.so.0"
_INSTALL = (
    "install bcc (Debian, Ubuntu: apt install python3-bpfcc; Fedora: dnf install python3-bcc) and run with "
    "/usr/bin/python3, or with a virtual environment made from it with --system-site-packages"
)


def import_bcc() -> ModuleType:
    """Import and return bcc. Raises CapabilityError: it is missing or broken, or another package has its name."""
    try:
        with warnings.catch_warnings(action="ignore"):  # 0.37 with Python 3.14: its ctypes structures
            import bcc
    except (ImportError, OSError, AttributeError, SyntaxError) as error:
        problem = f"{sys.executable} has no usable bcc ({error})"
        raise CapabilityError(problem, _INSTALL) from error
    if not hasattr(bcc, "BPF") or not hasattr(bcc, "libbcc"):
        where = getattr(bcc, "__file__", None) or "somewhere"
        raise CapabilityError(f"the package bcc in {where} is not the BPF compiler collection", _INSTALL)
    module: ModuleType = bcc
    return module


def compiler() -> str:
    """Return a text that identifies the installed bcc by its files, without importing it; "" if there is none."""
    try:
        spec = importlib.util.find_spec("bcc")
    except ValueError:  # a module of this name that no file was loaded for
        return "unknown"
    if spec is None or spec.origin is None:
        return ""
    package = Path(spec.origin)
    libraries = [Path(directory, _LIBRARY) for directory in _library_directories()]
    return "; ".join(_identity(path) for path in (package, package.with_name("version.py"), *libraries))


def _library_directories() -> list[str]:
    multiarch = getattr(sys.implementation, "_multiarch", "")
    named = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return [*filter(None, named), "/usr/local/lib", f"/usr/lib/{multiarch}", "/usr/lib64", "/usr/lib"]


def _identity(path: Path) -> str:
    """Return a text that changes if a file is replaced: its path, size in bytes and mtime in ns."""
    try:
        status = path.stat()  # direct: asks about the compiler's own files
    except OSError:
        return f"no {path}"
    # direct: the compiler's own files
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"


def has_other_headers() -> bool:
    """Return True if the user has set BCC_KERNEL_SOURCE, so that bcc compiles with other headers."""
    return _KERNEL_SOURCE in os.environ


@contextmanager
def compiled(
    source: Path, defines: Mapping[str, int | str], functions: Sequence[str], maps: Sequence[str]
) -> Iterator[tuple[dict[str, bytes], dict[str, int]]]:
    """Compile a C file for BPF and create the maps that it declares, for as long as the `with` block lasts. Yield
    (function name → instructions, map name → descriptor, to which the instructions refer). The descriptors belong to
    bcc: a caller that needs one after the block duplicates it. `source`: the file; `include/` next to it serves as
    kernel headers, its directory for #include "…". `defines`: preprocessor constants. `functions`, `maps`: names of the
    programs and maps to return. Raises CapabilityError: no bcc; RecordingError: the source does not compile."""
    bcc = import_bcc()
    module = _compile(bcc, source, [f"-D{name}={value}" for name, value in defines.items()])
    try:
        lib, handle = bcc.libbcc.lib, module.module
        code = {name: _function(lib, handle, name.encode()) for name in functions}
        yield (code, {name: lib.bpf_table_fd(handle, name.encode()) for name in maps})
    finally:
        atexit.unregister(module.cleanup)  # bcc frees the module only when the process ends
        module.cleanup()


def _compile(bcc: ModuleType, source: Path, flags: list[str]) -> Any:
    with _kernel_source(source.parent), _captured_output() as captured:
        try:
            # direct: the package's own sources
            return bcc.BPF(text=_with_headers(source).encode(), cflags=[*flags, f"-I{source.parent.resolve()}"])
        except Exception as error:  # bcc raises no narrower class
            _flush()
            if os.strerror(errno.EMFILE) in _text(captured):
                raise too_many_files() from error
            raise RecordingError(
                f"bcc {getattr(bcc, '__version__', '')} cannot compile {source} (0.23 and newer should): "
                f"{error}\n{_text(captured)}"
            ) from error


def _with_headers(source: Path, included: set[str] | None = None) -> str:
    """Return a C file with its headers from the same directory inserted, because bcc rewrites uses of maps only in the
    main file. `included`: names of the headers inserted so far, which are not inserted again; updated."""
    included = set() if included is None else included
    lines = []
    # direct: the package's own sources
    for number, line in enumerate(source.read_text().splitlines(), 1):
        named = re.fullmatch(r'#include "(\w+\.h)"', line)
        if named is None:  # the main file, as which bcc sees all of it, has no `#pragma once`
            lines.append("" if line == "#pragma once" else line)
        elif named[1] not in included:
            included.add(named[1])
            part = _with_headers(source.with_name(named[1]), included)
            lines += [f'#line 1 "{named[1]}"', part, f'#line {number + 1} "{source.name}"']
        else:
            lines.append("")
    return "\n".join(lines) + "\n"


def _function(lib: Any, handle: int, name: bytes) -> bytes:
    return ctypes.string_at(lib.bpf_function_start(handle, name), lib.bpf_function_size(handle, name))


@contextmanager
def _kernel_source(directory: Path) -> Iterator[None]:
    """Set BCC_KERNEL_SOURCE to the directory during the `with` block, unless the user has set it."""
    if has_other_headers():
        yield
        return
    os.environ[_KERNEL_SOURCE] = str(directory.resolve())  # direct: the package's own directory
    try:
        yield
    finally:
        del os.environ[_KERNEL_SOURCE]


@contextmanager
def _captured_output() -> Iterator[IO[bytes]]:
    """Redirect descriptors 1 and 2 to the yielded file: clang and bcc's C++ part write warnings there."""
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
    """Flush the buffers of Python and of C's stdio, which C++'s cout shares."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def _text(captured: IO[bytes], limit: int = 4000) -> str:
    """Return the first `limit` bytes of the captured output as text."""
    captured.seek(0)
    return captured.read(limit).decode(errors="replace").strip()
