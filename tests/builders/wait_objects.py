# SPDX-License-Identifier: Apache-2.0
"""Records of wait objects, and of waits for them, as a recorder writes them."""

from enum import IntEnum
from typing import Any

from builders.recording import BASE, S, event, raw_wait, sample

from perf_offcpu.abi import counters, offcpu
from perf_offcpu.abi.wait_objects import MAGIC, OBJECT, OBJECTS, TEXTS, VERSION, ObjectKind

COUNTERS = event(counters.EVENT_NAME, (9,), BASE | S.RAW, config=10)
WAITS = event("offcpu-time", (3,), BASE | S.RAW)


class Call(IntEnum):
    READ, WRITE, POLL, NANOSLEEP, RECVFROM, SENDTO, SUSPEND, FUTEX, PPOLL = 0, 1, 7, 35, 45, 44, 130, 202, 271


def described(*objects: dict[str, Any]) -> bytes:
    """A sample that describes objects: dicts with `id`, `kind` and other fields and texts."""
    blank = {field.name: 0 for field in OBJECT.fields}
    texts = b"".join(one.get(name, "").encode() + b"\0" for one in objects for name in TEXTS)
    rows = [blank | {key: value for key, value in one.items() if key not in TEXTS} for one in objects]
    values = {"magic": MAGIC, "version": VERSION, "nr": len(rows), "size": len(texts), "reserved": 0}
    payload = OBJECTS.pack(values | {"objects": rows, "text": texts})
    return sample(COUNTERS, time=1, raw=payload + bytes(-len(payload) % 8 + 4))


def thing(id_: int, kind: ObjectKind, pid: int = 10, **fields: Any) -> dict[str, Any]:
    return {"id": id_, "kind": int(kind), "pid": pid, **fields}


def wait(
    object_id: int, *, time: int = 90, pid: int = 10, tid: int = 0, ns: int = 10, chain: tuple[int, ...] = (),
    **more: int,
) -> bytes:  # fmt: skip
    """A wait for an object, of the main thread if `tid` is 0; `more` are fields of the extension."""
    values = {"kind": int(offcpu.Kind.WAIT), "object_id": object_id, "syscall": Call.FUTEX, "state": 1}
    values |= {"switch_out_ns": time - ns} | more
    raw = raw_wait(pid, tid or pid, ns, list(chain))[:-4]
    raw += offcpu.EXTENSION.pack(offcpu.BLANK_EXTENSION | values) + bytes(4)
    return sample(WAITS, time=time, raw=raw)
