# SPDX-License-Identifier: Apache-2.0
"""perf-offcpu archive: pack a recording with its symbols into one file, or unpack it."""

import argparse
import contextlib
import os
import sys
import tarfile
import tempfile
from typing import TYPE_CHECKING, Final

from perf_offcpu.commands.shared.files import RECORDING, NamedFile, add_one_input, check_ownership, note_cut
from perf_offcpu.commands.shared.parsers import add_options, add_verb
from perf_offcpu.directories import Directory
from perf_offcpu.errors import FormatError, UsageError
from perf_offcpu.files import FileRefusedError, open_regular
from perf_offcpu.text import printable

if TYPE_CHECKING:
    from perf_offcpu.archive.gather import Saved
    from perf_offcpu.objects.search import Search

SYMBOLS: Final = "symbols"
_MODES: Final = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz", ".txz": "w:xz", ".bz2": "w:bz2", ".tar": "w:"}

_GZIP_LEVEL: Final = 4
"""160 MB of symbols take 3.6 s of CPU and become 60 MB; with tarfile's default, 9, 22 s and 58 MB."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the parser of this verb, with its options, to `subparsers`."""
    parser = add_verb(subparsers, "archive")
    add_one_input(parser)
    add_options(parser, "archive.options", directory={"default": "."})


def run(args: argparse.Namespace) -> int:
    """Run the verb with the parsed arguments and return the exit status."""
    if args.unpack is not None:
        unpack(args.unpack, args.directory)
        symbols = os.path.join(args.directory, SYMBOLS)
        recording = os.path.join(args.directory, RECORDING)
        print(f"perf-offcpu archive: to look: perf-offcpu report -i {recording} --symfs {symbols}")
        return 0
    output = args.output or f"{args.input.rstrip('/')}.tar.gz"
    saved = pack(args, output)
    for name, why in sorted(saved.missing.items()):
        print(f"perf-offcpu archive: not packed: {printable(name)}: {printable(why)}", file=sys.stderr)
    size = os.path.getsize(output) / 2**20  # direct: only the number is shown
    print(f"perf-offcpu archive: {saved.files} files with symbols, {size:.1f} MB in {printable(output)}")
    return 0


def pack(args: argparse.Namespace, output: str) -> "Saved":
    """Write the archive, whole or not at all; return the number of saved files, and which files could not be saved."""
    from perf_offcpu.abi.attr import SampleType
    from perf_offcpu.archive.gather import SymbolSaver, TarStore
    from perf_offcpu.cache import DiskCache
    from perf_offcpu.perfdata.write.output import AtomicFile
    from perf_offcpu.symbolize.load import load_unwound
    from perf_offcpu.symbolize.options import SymbolizeOptions

    mode = _MODES.get(os.path.splitext(output)[1])
    if mode is None:
        raise UsageError(f"{output}: the name must end in .tar, .tar.gz, .tar.xz or .tar.bz2")
    # direct: asks for the kind of what the user named
    is_there = os.path.isfile(args.input) or os.path.isdir(args.input)
    if args.input == "-" or (os.path.exists(args.input) and not is_there):  # direct: asks whether it exists
        raise UsageError(f"{args.input}: only a recording in a file or directory can be packed")
    check_ownership(args.input, args.force)
    level = {"compresslevel": _GZIP_LEVEL} if mode == "w:gz" else {}
    symbols = SymbolizeOptions(
        kallsyms=args.kallsyms,
        symfs=args.symfs,
        buildid_dir=args.buildid_dir,
        force=args.force,
        cache=DiskCache.usual(),
    )
    search = symbols.search()
    recording = load_unwound(args.input, search)
    note_cut(args, args.input, recording.losses)
    copies = any(evsel.attr.sample_type & SampleType.STACK_USER for evsel in recording.evsels)
    with AtomicFile(output) as made:
        with (
            NamedFile(os.dup(made.fd), output) as file,
            tarfile.open(fileobj=file, mode=mode, **level) as archive,  # type: ignore[call-overload]
        ):
            if copies and not args.keep_stack_bytes:
                _add_without_stacks(archive, args.input, output, search)
            else:
                _add_recording(archive, args.input)
            saved = SymbolSaver(recording, TarStore(archive, SYMBOLS), symbols, debug=not args.no_debug).save()
        made.commit()
    return saved


def _add_recording(archive: tarfile.TarFile, path: str) -> None:
    """Add the recording `path` to the archive: a file, or the regular files of a directory. A link is followed."""
    if not os.path.isdir(path):  # direct: asks for the kind of what the user named
        _add_file(archive, open_regular(path), RECORDING)
        return
    with Directory.named(path) as directory:
        for name in directory.names():
            with contextlib.suppress(FileRefusedError):  # no recorder makes another kind of file that is read
                _add_file(archive, directory.open_regular(name), f"{RECORDING}/{name}")


def _add_file(archive: tarfile.TarFile, fd: int, name: str) -> None:
    with open(fd, "rb") as file:
        archive.addfile(archive.gettarinfo(arcname=name, fileobj=file), file)


def _add_without_stacks(archive: tarfile.TarFile, path: str, output: str, search: "Search") -> None:
    """Add the recording `path` to the archive as `inject` writes it: user stacks unwound, their copies left out."""
    from perf_offcpu.inject.header import RewriteOptions
    from perf_offcpu.inject.rewrite import rewrite

    with tempfile.TemporaryFile(dir=os.path.dirname(os.path.abspath(output))) as file:
        done = rewrite(path, file.fileno(), output, RewriteOptions(search=search))
        file.seek(0)
        archive.addfile(archive.gettarinfo(arcname=RECORDING, fileobj=file), file)
    print(
        f"perf-offcpu archive: {done.unwound} copies of user stacks unwound and left out "
        "(--keep-stack-bytes packs them)",
        file=sys.stderr,
    )


def unpack(path: str, directory: str) -> None:
    """Unpack the archive `path` into `directory`; raise FormatError if it is damaged or a member would leave it."""
    import lzma
    import zlib

    from perf_offcpu.archive.unpack import unpack as unpack_into

    try:
        unpack_into(path, directory)
    except (tarfile.TarError, EOFError, ValueError, OverflowError, zlib.error, lzma.LZMAError) as problem:
        # tarfile raises ValueError for damaged headers of sparse files; NUL is in no name of a file.
        raise FormatError(path, "archive", str(problem) or "it is damaged") from None
