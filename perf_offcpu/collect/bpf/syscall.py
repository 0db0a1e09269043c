# SPDX-License-Identifier: Apache-2.0
"""The bpf(2) system call: what the recorder asks of it, and nothing more.

bcc compiles, but its loaders know neither `tp_btf` programs nor reading a whole map in one call. These are
thin: file descriptors and bytes in, file descriptors and bytes out, `OSError` with the kernel's errno.
Every descriptor is close-on-exec; what it refers to is freed by the kernel when the last one is closed, so
a recorder that is killed leaves nothing behind.

Layouts are in `bpf_attr`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import sys

from perf_offcpu.collect.bpf.attr import (
    BPF_ANY,
    NAME_BYTES,
    AttachType,
    Batch,
    Command,
    Element,
    EnableStats,
    IterCreate,
    LinkCreate,
    MapCreate,
    MapType,
    ObjectId,
    ObjectInfo,
    ProgramInfo,
    ProgramLoad,
    ProgramTestRun,
    ProgramType,
    RawTracepointOpen,
)

_libc = ctypes.CDLL(None, use_errno=True)

_SYS_BPF = {"x86_64": 321, "ppc64le": 361, "s390x": 351}.get(platform.machine(), 280)  # 280: asm-generic

_LOG_BYTES = 1 << 20
_ITERATOR_BYTES = 1 << 18


class VerifierError(OSError):
    """The kernel refused a program; `log` says why."""

    def __init__(self, number: int, name: str, log: str) -> None:
        super().__init__(number, os.strerror(number))
        self.name, self.log = name, log


def call(command: Command, attr: ctypes.Structure) -> int:
    """The system call itself.

    Raises:
        OSError: what the kernel says.
    """
    result: int = _libc.syscall(_SYS_BPF, int(command), ctypes.byref(attr), ctypes.sizeof(attr))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _address(buffer: ctypes.Array[ctypes.c_char]) -> int:
    return ctypes.addressof(buffer)


def _bytes(data: bytes | int) -> ctypes.Array[ctypes.c_char]:
    """A buffer with these bytes, or of this many zeros; the caller keeps it alive during the call."""
    size = data if isinstance(data, int) else len(data)
    return ctypes.create_string_buffer(b"" if isinstance(data, int) else data, size)


def load_program(
    kind: ProgramType,
    name: str,
    code: bytes,
    license_text: str,
    btf_id: int = 0,
    attach_type: AttachType = AttachType.NONE,
) -> int:
    """Have a program verified and loaded.

    Args:
        code: instructions, 8 bytes each; maps are referred to by file descriptor.
        btf_id: for TRACING, the kernel's BTF id of the tracepoint's typedef or of the iterator's function.
        attach_type: for TRACING, which of the two.

    Returns:
        The program's file descriptor.

    Raises:
        VerifierError: refused; the verifier's words are in `log`.
    """
    instructions, license_buffer = _bytes(code), _bytes(license_text.encode() + b"\0")
    attr = ProgramLoad(
        prog_type=kind,
        insn_cnt=len(code) // 8,
        insns=_address(instructions),
        license=_address(license_buffer),
        prog_name=name.encode()[: NAME_BYTES - 1],
        expected_attach_type=attach_type,
        attach_btf_id=btf_id,
    )
    try:
        return call(Command.PROG_LOAD, attr)
    except OSError as error:
        raise VerifierError(error.errno or 0, name, _verifier_log(attr)) from error


def _verifier_log(attr: ProgramLoad) -> str:
    """Load again for the sake of the log, which costs too much to ask for each time."""
    log = _bytes(_LOG_BYTES)
    attr.log_level, attr.log_size, attr.log_buf = 1, _LOG_BYTES, _address(log)
    with contextlib.suppress(OSError):
        os.close(call(Command.PROG_LOAD, attr))
    return log.value.decode(errors="replace")


def open_raw_tracepoint(program_fd: int) -> int:
    """Attach a `tp_btf` program; it stays attached as long as the file descriptor given back is open."""
    return call(Command.RAW_TRACEPOINT_OPEN, RawTracepointOpen(prog_fd=program_fd))


def run_program(program_fd: int) -> int:
    """Run a RAW_TRACEPOINT program once, in this thread's context, and give its result (Linux 5.10)."""
    attr = ProgramTestRun(prog_fd=program_fd)
    call(Command.PROG_TEST_RUN, attr)
    return int(attr.retval)


def run_iterator(program_fd: int) -> bytes:
    """Run an iterator program over all its objects, once, and give what it has written."""
    link = call(Command.LINK_CREATE, LinkCreate(prog_fd=program_fd, attach_type=AttachType.TRACE_ITER))
    try:
        # direct: a descriptor of the kernel's
        with open(call(Command.ITER_CREATE, IterCreate(link_fd=link)), "rb", buffering=0) as output:
            return b"".join(iter(lambda: output.read(_ITERATOR_BYTES), b""))
    finally:
        os.close(link)


def program_info(program_fd: int) -> ProgramInfo:
    """Name, id and, with kernel.bpf_stats_enabled, run time of a program."""
    info = ProgramInfo()
    attr = ObjectInfo(bpf_fd=program_fd, info_len=ctypes.sizeof(info), info=ctypes.addressof(info))
    call(Command.OBJ_GET_INFO_BY_FD, attr)
    return info


def enable_stats() -> int:
    """Have the kernel count and time all programs' runs while the file descriptor given back is open."""
    return call(Command.ENABLE_STATS, EnableStats(type=0))  # BPF_STATS_RUN_TIME


def program_ids() -> list[int]:
    """Ids of all programs that are loaded on this machine now."""
    ids: list[int] = []
    attr = ObjectId()
    while True:
        try:
            call(Command.PROG_GET_NEXT_ID, attr)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return ids
            raise
        ids.append(attr.next_id)
        attr.start_id = attr.next_id


def program_by_id(program_id: int) -> int:
    """A file descriptor of a loaded program."""
    return call(Command.PROG_GET_FD_BY_ID, ObjectId(start_id=program_id))


def create_map(kind: MapType, value_bytes: int, entries: int, inner_map_fd: int = 0) -> int:
    """A map with u32 keys; its file descriptor."""
    attr = MapCreate(kind, 4, value_bytes, entries, inner_map_fd=inner_map_fd)
    return call(Command.MAP_CREATE, attr)


def lookup(map_fd: int, key: bytes, value_bytes: int) -> bytes:
    """The value of a key, as user space sees it (per-CPU maps: one value of whole 8 bytes for each CPU).

    Raises:
        OSError: ENOENT if the key is not there.
    """
    key_buffer, value = _bytes(key), _bytes(value_bytes)
    call(Command.MAP_LOOKUP_ELEM, Element(map_fd, _address(key_buffer), _address(value)))
    return value.raw


def update(map_fd: int, key: bytes, value: bytes) -> None:
    """Set the value of a key, present or not."""
    key_buffer, value_buffer = _bytes(key), _bytes(value)
    call(Command.MAP_UPDATE_ELEM, Element(map_fd, _address(key_buffer), _address(value_buffer), BPF_ANY))


def is_empty(map_fd: int, key_bytes: int) -> bool:
    """Whether a hash map has no entry."""
    first = _bytes(key_bytes)
    try:
        call(Command.MAP_GET_NEXT_KEY, Element(map_fd, 0, _address(first)))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return True
    return False


def lookup_batch(map_fd: int, key_bytes: int, value_bytes: int, entries: int) -> tuple[bytearray, bytearray]:
    """All entries of a hash map: keys and values, each packed one behind the other.

    Args:
        entries: the map's size; the kernel hands over no more than that.
    """
    keys, values = bytearray(entries * key_bytes), bytearray(entries * value_bytes)
    if not entries:
        return keys, values
    key_view, value_view = _view(keys), _view(values)
    cursor = _bytes(max(4, key_bytes))  # the kernel's own note of where it is
    done, in_batch = 0, 0
    while done < entries:
        attr = Batch(
            in_batch=in_batch,
            out_batch=_address(cursor),
            keys=_address(key_view) + done * key_bytes,
            values=_address(value_view) + done * value_bytes,
            count=entries - done,
            map_fd=map_fd,
        )
        last = _is_last(Command.MAP_LOOKUP_BATCH, attr)
        done, in_batch = done + attr.count, _address(cursor)
        if last:
            break
    del key_view, value_view
    return keys[: done * key_bytes], values[: done * value_bytes]


def _view(buffer: bytearray) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * len(buffer)).from_buffer(buffer)


def _is_last(command: Command, attr: Batch) -> bool:
    """Do a batch; whether the kernel has no more (ENOENT), with attr.count entries done in either case."""
    try:
        call(command, attr)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return True
    return False


def delete_batch(map_fd: int, keys: bytes, count: int) -> None:
    """Delete these keys, packed one behind the other."""
    if count:
        buffer = _bytes(keys)
        _is_last(Command.MAP_DELETE_BATCH, Batch(keys=_address(buffer), count=count, map_fd=map_fd))


class GracePeriod:
    """A way to wait until no BPF program runs that was running before.

    The kernel offers it as a side effect: whoever updates a map of maps from user space returns only after
    an RCU grace period, "so that all programs use the new map" (maybe_wait_bpf_programs() in
    kernel/bpf/syscall.c, since 4.20). Programs run inside RCU read-side sections, so by then all have ended.
    """

    def __init__(self) -> None:
        self._inner = create_map(MapType.ARRAY, 4, 1)
        self._outer = create_map(MapType.ARRAY_OF_MAPS, 4, 1, self._inner)

    def wait(self) -> None:
        """Return when every program that runs now has ended."""
        update(self._outer, bytes(4), self._inner.to_bytes(4, sys.byteorder))

    def close(self) -> None:
        """Give the maps back."""
        os.close(self._outer)
        os.close(self._inner)
