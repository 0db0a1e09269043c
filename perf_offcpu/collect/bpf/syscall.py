# SPDX-License-Identifier: Apache-2.0
"""Call the commands of bpf(2) that the recorder needs. bcc compiles, but its loaders know neither `tp_btf` programs nor
how to read a whole map in one call. These functions are thin: file descriptors and bytes in, file descriptors and bytes
out, `OSError` with the kernel's errno. Every descriptor is close-on-exec. The kernel frees an object when its last
descriptor is closed, so a recorder that is killed leaves nothing in the kernel. `attr` has the layouts."""

import contextlib
import ctypes
import errno
import os
import platform
import sys
from ctypes import addressof
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.syscalls import syscall_number
from perf_offcpu.collect.bpf import attr as uapi
from perf_offcpu.collect.bpf.attr import NAME_BYTES, AttachType, Command, Element, MapCreate, MapType, ProgramType
from perf_offcpu.files import descriptor

_libc = ctypes.CDLL(None, use_errno=True)

_SYS_BPF = syscall_number("bpf", platform.machine())

_LOG_BYTES = 1 << 20
_ITERATOR_BYTES = 1 << 18

InfoT = TypeVar("InfoT", bound=ctypes.Structure)


class VerifierError(OSError):
    """Refusal to load the program `name`. `number`: errno. `log`: text of the kernel's verifier."""

    def __init__(self, number: int, name: str, log: str) -> None:
        super().__init__(number, os.strerror(number))
        self.name, self.log = name, log


def call(command: Command, attr: ctypes.Structure) -> int:
    """Call bpf(2) and return its result: a descriptor or 0. Raises OSError: the kernel refuses the command."""
    result: int = _libc.syscall(_SYS_BPF, int(command), ctypes.byref(attr), ctypes.sizeof(attr))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _finds(command: Command, attr: ctypes.Structure) -> bool:
    """Call bpf(2); return False if it fails with ENOENT: there is no such entry. Raises OSError: it fails otherwise."""
    try:
        call(command, attr)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    return True


def _buffer(data: bytes) -> ctypes.Array[ctypes.c_char]:
    """Copy bytes to a buffer whose address can be passed to the kernel; the caller must keep it during the call."""
    return ctypes.create_string_buffer(data, len(data))


def load_program(
    kind: ProgramType, name: str, code: bytes, license_: str, btf_id: int = 0, attach_type: AttachType = AttachType.NONE
) -> int:
    """Load a program into the kernel, which verifies it; return its descriptor. Raises VerifierError: the kernel
    refuses it. `code`: instructions, 8 bytes each, which refer to maps by descriptor. `btf_id`: for TRACING, the
    kernel's BTF id of the tracepoint's typedef or of the iterator's function. `attach_type`: for TRACING,
    TRACE_RAW_TP (tracepoint) or TRACE_ITER (iterator)."""
    instructions, license_buffer = _buffer(code), _buffer(license_.encode() + b"\0")
    attr = uapi.ProgramLoad(
        prog_type=kind,
        insn_cnt=len(code) // 8,
        insns=addressof(instructions),
        license=addressof(license_buffer),
        prog_name=name.encode()[: NAME_BYTES - 1],
        expected_attach_type=attach_type,
        attach_btf_id=btf_id,
    )
    try:
        return call(Command.PROG_LOAD, attr)
    except OSError as error:
        raise VerifierError(error.errno or 0, name, _verifier_log(attr)) from error


def _verifier_log(attr: ctypes.Structure) -> str:
    """Load a refused program again, with a log, and return the log; it is too costly to request at each load. `attr`:
    argument of the refused PROG_LOAD."""
    log = ctypes.create_string_buffer(_LOG_BYTES)
    attr.log_level, attr.log_size, attr.log_buf = 1, _LOG_BYTES, addressof(log)
    with contextlib.suppress(OSError):
        os.close(call(Command.PROG_LOAD, attr))
    return log.value.decode(errors="replace")


def open_raw_tracepoint(program_fd: int) -> int:
    """Attach a `tp_btf` program; return a descriptor that keeps it attached while it is open."""
    return call(Command.RAW_TRACEPOINT_OPEN, uapi.RawTracepointOpen(prog_fd=program_fd))


def run_program(program_fd: int) -> int:
    """Run a RAW_TRACEPOINT program once, in the context of this thread; return its result (Linux 5.10)."""
    attr = uapi.ProgramTestRun(prog_fd=program_fd)
    call(Command.PROG_TEST_RUN, attr)
    return int(attr.retval)


def run_iterator(program_fd: int) -> bytes:
    """Run an iterator program once over all tasks and return its output."""
    attr = uapi.LinkCreate(prog_fd=program_fd, attach_type=AttachType.TRACE_ITER)
    with (
        descriptor(call(Command.LINK_CREATE, attr)) as link,
        # direct: a descriptor of the kernel's
        open(call(Command.ITER_CREATE, uapi.IterCreate(link_fd=link)), "rb", buffering=0) as output,
    ):
        # None: nothing for a million objects (EAGAIN)
        return b"".join(filter(None, iter(lambda: output.read(_ITERATOR_BYTES), b"")))


def enable_stats() -> int:
    """Let the kernel measure the run time of all BPF programs while the returned descriptor is open. Raises OSError: it
    cannot (before Linux 5.8, or without CAP_SYS_ADMIN)."""
    return call(Command.ENABLE_STATS, uapi.EnableStats(type=0))  # BPF_STATS_RUN_TIME


def read_info(fd: int, info: InfoT) -> InfoT:
    """Fill in and return `info`: ProgramInfo, MapInfo or BtfInfo, whichever fits the object of `fd`. Run times of
    programs are measured only while `enable_stats` or sysctl kernel.bpf_stats_enabled asks for it."""
    attr = uapi.ObjectInfo(bpf_fd=fd, info_len=ctypes.sizeof(info), info=addressof(info))
    call(Command.OBJ_GET_INFO_BY_FD, attr)
    return info


def lookup(map_fd: int, key: bytes, value_bytes: int) -> bytes:
    """Return the value of a key; in a per-CPU map the values of all possible CPUs, each padded to whole 8 bytes.
    `value_bytes`: size of the result. Raises OSError: ENOENT if the map has no such key."""
    key_buffer, value = _buffer(key), ctypes.create_string_buffer(value_bytes)
    call(Command.MAP_LOOKUP_ELEM, Element(map_fd, addressof(key_buffer), addressof(value)))
    return value.raw


def update(map_fd: int, key: bytes, value: bytes) -> None:
    """Set the value of a key of a map, whether or not the key exists. Raises OSError: the map is full."""
    key_buffer, value_buffer = _buffer(key), _buffer(value)
    call(Command.MAP_UPDATE_ELEM, Element(map_fd, addressof(key_buffer), addressof(value_buffer)))


def pop(map_fd: int, value_bytes: int) -> bytes | None:
    """Remove and return the oldest value of a queue; None if it is empty."""
    value = ctypes.create_string_buffer(value_bytes)
    has_value = _finds(Command.MAP_LOOKUP_AND_DELETE_ELEM, Element(map_fd, 0, addressof(value)))
    return value.raw if has_value else None


def is_empty(map_fd: int, key_bytes: int) -> bool:
    """Return True if a hash map has no entry. `key_bytes`: size of its keys."""
    first = ctypes.create_string_buffer(key_bytes)
    return not _finds(Command.MAP_GET_NEXT_KEY, Element(map_fd, 0, addressof(first)))


def lookup_batch(map_fd: int, keys: NDArray[Any], values: NDArray[Any]) -> int:
    """Copy the entries of a hash map to the first rows of `keys` and `values`; return their number. `keys`, `values`:
    contiguous arrays with a row for each of the map's `max_entries`."""
    cursor = ctypes.create_string_buffer(max(4, keys.itemsize))  # of the kernel, for the next call
    done, in_batch, more = 0, 0, True
    while more and done < len(keys):
        rows = keys[done:].ctypes.data, values[done:].ctypes.data, len(keys) - done
        attr = uapi.Batch(in_batch, addressof(cursor), *rows, map_fd)
        more = _finds(Command.MAP_LOOKUP_BATCH, attr)
        done, in_batch = done + attr.count, addressof(cursor)
    return done


def delete_batch(map_fd: int, keys: NDArray[Any]) -> None:
    """Delete the entries with these keys, in order; stop without error at the first key that is missing."""
    if len(keys):
        packed = np.ascontiguousarray(keys)
        _finds(Command.MAP_DELETE_BATCH, uapi.Batch(keys=packed.ctypes.data, count=len(packed), map_fd=map_fd))


class GracePeriod:
    """Wait until all BPF programs that run now have ended. The kernel has no command for that, but a side effect: an
    update of a map of maps from user space returns after an RCU grace period, "so that all programs use the new map"
    (maybe_wait_bpf_programs() in kernel/bpf/syscall.c, since 4.20)."""

    def __init__(self) -> None:
        self._inner = call(Command.MAP_CREATE, MapCreate(MapType.ARRAY, 4, 4, 1))
        outer = MapCreate(MapType.ARRAY_OF_MAPS, 4, 4, 1, inner_map_fd=self._inner)
        self._outer = call(Command.MAP_CREATE, outer)

    def wait(self) -> None:
        """Block until every BPF program that runs now has ended."""
        update(self._outer, bytes(4), self._inner.to_bytes(4, sys.byteorder))

    def close(self) -> None:
        """Close the descriptors of the two BPF maps that `wait` uses."""
        os.close(self._outer)
        os.close(self._inner)
