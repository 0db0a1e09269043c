# SPDX-License-Identifier: Apache-2.0
"""Boot a kernel on a disk image under qemu's software emulation and run one command there. The way in and out are two
raw disks that hold tar archives, so that the kernel needs no driver but virtio, which a ten-line initrd loads, and what
tests use; Debian's cloud kernels have ext4 built in, and lack 9p, with which virtme-ng would share a directory. The
root is a snapshot: nothing that the command does to it stays."""

import io
import lzma
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vm.host import CHECKOUT, checkout, locked, say
from vm.kernels import Kernel
from vm.roots import PROJECT, busybox, project_files

HERE = Path(__file__).resolve().parent
MEMORY_MB = 3072
RESULTS_SIZE = 1 << 29  # sparse

# no_timer_check: where emulation gets too little of the CPU, the kernel's check of its timer ends in a panic.
KERNEL_OPTIONS = "quiet loglevel=3 mitigations=off no_timer_check panic=-1 root=/dev/vda rw init=/vmtest-init"
# Disks, with the checksum that ext4 asks for by name; then what tests of files, and between network namespaces, need.
DRIVERS = (
    *("virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "loop"),
    *("veth", "tcp_diag", "unix_diag", "nf_tables", "nft_numgen"),
)
INITRD_INIT = """#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
for module in {modules}; do /bin/busybox insmod /$module; done
tries=0
while ! /bin/busybox mount -t ext4 /dev/vda /root 2>/dev/null && [ $tries -lt 100 ]; do
    tries=$((tries + 1)); /bin/busybox usleep 100000
done
/bin/busybox tar xf /dev/vdb -C /root vmtest-init
exec /bin/busybox switch_root /root /vmtest-init
"""


@dataclass(frozen=True)
class Outcome:
    status: int | None  # the command's; None if the machine died or ran out of time before
    directory: Path  # the files that the command left in /results, `output` among them, and the console's log
    seconds: float


def run_inside(
    kernel: Kernel, image: Path, command: str, results: Path, timeout_s: float,
    carried: Mapping[str, Path] | None = None,
) -> Outcome:  # fmt: skip
    """Boot, run the shell command in the project's directory, take /results out, power off. `carried`: directories that
    are put into the machine, by their names there without the first slash."""
    begin = time.monotonic()
    with locked(f"results/{results.name}"):  # two runs of one kernel would mix their files
        shutil.rmtree(results, ignore_errors=True)
        results.mkdir(parents=True)
        (results / "checkout").write_text(checkout())
        with tempfile.TemporaryDirectory(prefix="vmtest.") as name:
            work = Path(name)
            _pack(work / "in.tar", command, carried or {})
            (work / "initrd").write_bytes(_initrd(kernel))
            with (work / "out.tar").open("wb") as out:
                out.truncate(RESULTS_SIZE)
            _qemu(kernel, image, work, results / "console", timeout_s)
            _unpack(work / "out.tar", results)
    status = results / "status"
    return Outcome(int(status.read_text()) if status.exists() else None, results, time.monotonic() - begin)


def _qemu(kernel: Kernel, image: Path, work: Path, console: Path, timeout_s: float) -> None:
    drives = f"{image},snapshot=on,cache=unsafe", f"{work / 'in.tar'},readonly=on", f"{work / 'out.tar'},cache=unsafe"
    command = [
        *("nice", "-n", "10", *kernel.machine.qemu, "-accel", "tcg,thread=multi", "-smp", "2"),
        *("-m", str(MEMORY_MB), "-nodefaults", "-no-reboot", "-display", "none"),
        *("-serial", f"file:{console}"),
        *(
            "-kernel", str(kernel.vmlinuz), "-initrd", str(work / "initrd"), "-append",
            f"console={kernel.machine.console} {KERNEL_OPTIONS}",
        ),
        *(word for drive in drives for word in ("-drive", f"if=virtio,format=raw,file={drive}")),
    ]  # fmt: skip
    try:
        subprocess.run(command, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        say(f"Linux {kernel.release} was stopped after {timeout_s:.0f} s")


def _pack(path: Path, command: str, carried: Mapping[str, Path]) -> None:
    with tarfile.open(path, "w") as archive:
        _add(archive, "vmtest-init", (HERE / "guest-init").read_bytes())
        _add(archive, "vmtest-command", command.encode() + b"\n")
        for name in project_files():
            archive.add(CHECKOUT / name, f"{PROJECT[1:]}/{name}")
        for name, directory in carried.items():
            archive.add(directory, name)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o755
    archive.addfile(entry, io.BytesIO(data))


def _unpack(path: Path, results: Path) -> None:
    """Unpack the output of the machine; there is none if it did not get that far."""
    command: list[str | Path] = ["tar", "xf", path, "-C", results, "--no-same-owner"]
    subprocess.run(command, check=False, stderr=subprocess.DEVNULL)


def _initrd(kernel: Kernel) -> bytes:
    """A cpio archive with busybox, the drivers and the modules that these need, in the order of loading."""
    chosen = [module for name in DRIVERS for module in _modules(kernel, name)]
    modules = {f"{number}.ko": data for number, data in enumerate(dict.fromkeys(chosen))}
    init = INITRD_INIT.format(modules=" ".join(modules)).encode()
    files = {"init": init, "bin/busybox": busybox(kernel.machine).read_bytes(), **modules}
    entries = [_cpio(name, 0o040755, b"") for name in ("bin", "dev", "root")]
    entries += [_cpio(name, 0o100755, data) for name, data in files.items()]
    return b"".join([*entries, _cpio("TRAILER!!!", 0, b"")])


def _modules(kernel: Kernel, name: str) -> list[bytes]:
    """Return a module after those that it depends on; nothing if it is built in."""
    pattern = name.replace("_", "[-_]")
    found = next((kernel.modules / "lib/modules" / kernel.release).rglob(f"{pattern}.ko*"), None)
    if found is None:
        return []
    data = lzma.decompress(found.read_bytes()) if found.suffix == ".xz" else found.read_bytes()
    depends = re.search(rb"\0depends=([^\0]*)\0", data)
    names = depends[1].decode().split(",") if depends and depends[1] else []
    return [*(module for other in names for module in _modules(kernel, other)), data]


def _cpio(name: str, mode: int, data: bytes) -> bytes:
    """An entry of the "newc" form (Documentation/driver-api/early-userspace/buffer-format.rst)."""
    encoded = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)
