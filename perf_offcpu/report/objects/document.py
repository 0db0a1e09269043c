# SPDX-License-Identifier: Apache-2.0
"""Make the JSON of objects, locks and deadlocks."""

from __future__ import annotations

from typing import Any

from perf_offcpu.locks import DeadThread
from perf_offcpu.report.objects.rows import Hand, LockRow, ObjectRow, ObjectTable
from perf_offcpu.report.totals import cut_fields, fields, frame, total_fields


def object_fields(table: ObjectTable) -> dict[str, Any]:
    """Return the table of objects."""
    rows = list(map(row_fields, table.rows))
    return {"rows": rows, "more": cut_fields(table.more), "without": table.without}


def row_fields(row: ObjectRow) -> dict[str, Any]:
    """Return an object."""
    return fields(row, "name kind wait_class") | total_fields(row.total) | fields(row, "threads role by")


def lock_fields(lock: LockRow) -> dict[str, Any]:
    """Return a lock; holders or releasers by `role`."""
    counts = fields(lock, "queue hand_overs changed weight_known waiting_in")
    hands = {"hands": list(map(_hand, lock.hands)), "more_hands": cut_fields(lock.more_hands)}
    return row_fields(lock.row) | counts | hands


def _hand(hand: Hand) -> dict[str, Any]:
    return fields(hand, "comm pid tid weight waits function") | {"frames": list(map(frame, hand.frames))}


def dead_thread_fields(thread: DeadThread) -> dict[str, Any]:
    """Return a thread of a deadlock."""
    return fields(thread, "comm pid tid lock function weight began_before")
