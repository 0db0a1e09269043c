# SPDX-License-Identifier: Apache-2.0
"""Read damaged archives, perf maps, kallsyms and ELF files: `python tests/fuzz/others.py [--kind K]`.

Each number from `--seed` on makes one hostile file of each kind (`--kind archive|map|kallsyms|elf` chooses).
Anything but a result or an error of this project, more time than `--seconds`, more memory than `--memory`, a
name outside the directory of an archive, or more bytes than its bound, is a failure, and is printed; the exit
status is the number of failures (at most 100). The other options are those of `mutate.py`."""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import random
import sys
import tarfile
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

import runner  # noqa: E402
import symbols  # noqa: E402
from builders.mutations import EVIL, mutated, timed  # noqa: E402

from perf_offcpu.archive.unpack import _BASE_SIZE, MAX_RATIO  # noqa: E402
from perf_offcpu.commands.archive import unpack  # noqa: E402
from perf_offcpu.errors import PerfOffcpuError  # noqa: E402

NAMES = (
    *("symbols/a/elf", "symbols/.build-id/ab/cd", "perf.data", "a", "b", "a/b", "a/../b", "../canary"),
    *("/canary", "", ".", "..", "a/", "./a", "a//b", "a\0b", "\udcff", "é" * 120, "x" * 255, "x" * 300),
    "d/" * 200 + "e",
)
KINDS_OF_MEMBER = (tarfile.REGTYPE,) * 6 + (
    *(tarfile.SYMTYPE, tarfile.SYMTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE),
    *(tarfile.CHRTYPE, tarfile.GNUTYPE_SPARSE, tarfile.CONTTYPE, tarfile.XHDTYPE, b"Z"),
)
TARGETS = ("a", "b", "../a", "../../canary", "/etc/passwd", ".", "..", "a/..", "../" * 40, "/", "", "x" * 300)
WORDS = (
    *(b"0", b"1", b"1000", b"1008", b"ffffffffffffffff", b"-1", b"0x10", b"7fffffffffffffff", b"g", b""),
    *(b"9" * 400, b"py::f:/a.py", b"a:" * 200, b" /" * 200, b":1" * 200, b"_ZN" + b"3abc" * 90),
    *(b"_RNv" * 50, b"\xff\xfe", b"\0", b"JS:*g /b.js:1:2", b"Lcom/a;::b", b"T", b"t", b"a", b"[mod]"),
    *(b"[", b"]", b"_text", b"_stext", b"\r", b"\x0b"),
)
COMPRESSORS: tuple[Callable[[bytes], bytes], ...] = (bytes, bytes, gzip.compress, bz2.compress, lzma.compress)


def archive(number: int) -> bytes:
    draw, out = random.Random(number), io.BytesIO()
    for _ in range(draw.choice((1, 2, 3, 8))):
        member = tarfile.TarInfo(draw.choice(NAMES))
        member.type, member.linkname = draw.choice(KINDS_OF_MEMBER), draw.choice(TARGETS)
        body = bytes(draw.choice((0, 1, 512, 513, 70_000))) if member.isreg() else b""
        member.size = draw.choice((len(body), len(body), len(body), draw.choice(EVIL) % 2**63))
        if draw.random() < 0.1:
            sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(draw.choice(EVIL))}
            member.pax_headers = draw.choice((sparse, {"size": str(draw.choice(EVIL))}, {"path": draw.choice(NAMES)}))
        with contextlib.suppress(ValueError, UnicodeError, OverflowError):
            form = draw.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT))
            out.write(member.tobuf(form, "utf-8", "surrogateescape") + body + bytes(-len(body) % 512))
    data = out.getvalue() + bytes(1024)
    if draw.random() < 0.01:
        data += bytes(draw.choice((1 << 20, 20 << 20)))
    if draw.random() < 0.5:
        data = with_checksums(mutated(data, draw))
    data = draw.choice(COMPRESSORS)(data)
    return mutated(data, draw) if draw.random() < 0.1 else data


def with_checksums(data: bytes) -> bytes:
    """Return a damaged archive whose headers have right checksums, so that more than these are read."""
    blocks = bytearray(data)
    for offset in range(0, len(blocks) - 511, 512):
        if blocks[offset + 257 : offset + 262] == b"ustar":
            blocks[offset + 148 : offset + 156] = b" " * 8
            blocks[offset + 148 : offset + 156] = b"%06o\0 " % sum(blocks[offset : offset + 512])
    return bytes(blocks)


def read_archive(data: bytes) -> None:
    """Unpack it; nothing may appear outside, nor more than the bound inside, nor anything after an error."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as base:
        inside, packed = Path(base, "one", "there"), Path(base, "x.tar")
        packed.write_bytes(data)
        Path(base, "canary").write_bytes(b"untouched")
        inside.mkdir(parents=True)
        try:
            unpack(str(packed), str(inside))
        except (PerfOffcpuError, OSError):
            left = [path for path in inside.rglob("*") if path.is_symlink() or not path.is_dir()]
            assert left == [], "something is left after an error"
        assert sorted(os.listdir(base)) == ["canary", "one", "x.tar"] and os.listdir(f"{base}/one") == ["there"]
        assert Path(base, "canary").read_bytes() == b"untouched"
        size = 0
        for place, directories, files in os.walk(inside):
            for name in (*directories, *files):
                path = os.path.join(place, name)
                assert f"{os.path.realpath(path)}/".startswith(f"{inside}/"), os.path.relpath(path, base)
                size += os.lstat(path).st_size if os.path.isfile(path) else 0
        assert size <= _BASE_SIZE + MAX_RATIO * len(data), size


def lines(number: int, first: bytes, make: Callable[[random.Random, int], bytes]) -> bytes:
    """Make a text of many lines, some of hostile words, some damaged."""
    draw = random.Random(number)
    count = draw.choice((3, 30, 300, 3000))
    text = [make(draw, row) for row in range(count)]
    for _ in range(draw.choice((0, 1, 5, 50))):
        words = [draw.choice(WORDS) for _ in range(draw.choice((1, 2, 3, 4)))]
        text.insert(draw.randrange(len(text) + 1), b" ".join(words))
    if draw.random() < 0.2:
        text.append(text[0])  # overlaps all others
    if draw.random() < 0.05:
        text.append(draw.choice(WORDS) * 3000)
    data = first + b"\n".join(text)
    return mutated(data, draw) if draw.random() < 0.7 else data


def map_line(draw: random.Random, row: int) -> bytes:
    at = 0x1000 + 16 * row if row % 7 else draw.choice((0x1000, draw.getrandbits(64), draw.getrandbits(16)))
    return b"%x %x %s" % (at, draw.choice((16, 16, 16, 1, 2**20, 2**63)), draw.choice(WORDS))


def kernel_line(draw: random.Random, row: int) -> bytes:
    name = draw.choice((b"f%d" % row, draw.choice(WORDS)))
    module = draw.choice((b"", b"", b"\t[m%d]" % (row % 9), b"\t[bpf]"))
    return b"%016x %s %s%s" % (0xFFFFFFFF81000000 + 16 * row, draw.choice((b"t", b"T", b"d", b"W")), name, module)


@cache
def objects() -> list[bytes]:
    """Return sound ELF files, each after the number of its reader."""
    return [data for data in symbols.seeds() if data[0] in (0, 1)]


def elf(number: int) -> bytes:
    draw = random.Random(number)
    data = draw.choice(objects())
    return data[:1] + mutated(data[1:], draw)


KINDS: dict[str, tuple[Callable[[int], bytes], Callable[[bytes], object]]] = {
    "archive": (archive, read_archive),
    "map": (partial(lines, first=b"", make=map_line), symbols.READERS[3]),
    "kallsyms": (partial(lines, first=b"", make=kernel_line), symbols.read_kallsyms),
    "elf": (elf, symbols.one_input),
}


def check(number: int, *, kind: str) -> tuple[str, float]:
    make, read = KINDS[kind]
    data = make(number)

    def reading() -> None:
        with contextlib.suppress(PerfOffcpuError):  # a sentence for people is what bad input is to get
            read(data)

    return kind, timed(reading)


def main() -> int:
    parser = runner.parser(__doc__, 10_000)
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all, one after the other")
    args, failures = parser.parse_args(), 0
    for kind in args.kind or KINDS:
        print(f"{kind}:", flush=True)
        failures += runner.run(args, partial(check, kind=kind), KINDS[kind][0])
    return min(100, failures)


if __name__ == "__main__":
    sys.exit(main())
