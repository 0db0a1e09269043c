# SPDX-License-Identifier: Apache-2.0
"""Keep two agents of one host from writing into one dataset: rows do not tell them apart, and all would be counted
twice. A lease is a small file of the dataset, by host and boot, which its holder writes again each minute:

    _leases/HOST-BOOT.json    {"holder": ..., "pid": ..., "spool": ..., "renewed_ns": ..., "utc_s": ...}

Times are CLOCK_MONOTONIC: only processes of the same boot compare them, and steps of the wall clock change nothing.
Hosts with the same machine id (copies of one image) have a lease each, because their boots differ. The first writer is
decided by the store (a file that must not exist yet); of two that replace a void lease at the same moment, the first
finds the other one's when it renews."""

import contextlib
import json
import os
import time
from typing import Any, Final

from perf_offcpu.dataset.dataset import plain_name
from perf_offcpu.dataset.store import Store, put
from perf_offcpu.errors import PerfOffcpuError, UsageError

RENEWED_EACH_S: Final = 60.0
VOID_AFTER_S: Final = 300.0
"""Time after the last renewal at which a lease is void."""
_FOLDER: Final = "_leases"
_LEFT_S: Final = 86400.0  # age at which leases of earlier boots of the host are removed
_LONGEST: Final = 4096


class LeaseTakenError(UsageError):
    """Raised if another agent of the host holds the lease."""


class Lease:
    """Lease of a dataset for an agent of the host. `holder`: identity of the agent, the same after a restart; `spool`:
    its directory, for the message to other agents. Methods raise PerfOffcpuError or OSError where the store fails."""

    def __init__(self, store: Store, host_id: str, boot_id: str, holder: str, spool: str) -> None:
        self._store, self._holder, self._spool = store, holder, spool
        self._host, self._name = plain_name(host_id), f"{plain_name(host_id)}-{plain_name(boot_id)}.json"
        self._path = f"{_FOLDER}/{self._name}"

    def renew(self, *, take_over: bool = False) -> None:
        """Renew this agent's lease, or take a free, void or (`take_over`) another's one; else raise LeaseTakenError."""
        held = self._read(self._path)
        if held is None:
            self._sweep()
            if self._store.create(self._path, self._text()):
                return
            held = self._read(self._path) or {}
        age_s = abs(time.monotonic() - held.get("renewed_ns", float("-inf")) / 1e9)
        if held.get("holder") != self._holder and age_s < VOID_AFTER_S and not take_over:
            where = f"pid {held.get('pid')}, spool {held.get('spool')}"
            times = f"its lease was renewed {age_s:.0f} s ago and is void after {VOID_AFTER_S:.0f} s"
            raise LeaseTakenError(
                f"{self._store.url}: another agent of this host writes there ({where}; {times}): "
                "stop that one, give this one a dataset of its own, or let it take over with --takeover"
            )
        put(self._store, self._path, self._text())

    def release(self) -> None:
        """Remove the lease of the dataset, if it is still this agent's."""
        if (self._read(self._path) or {}).get("holder") == self._holder:
            self._store.remove(self._path)

    def _text(self) -> bytes:
        fields = {"holder": self._holder, "pid": os.getpid(), "spool": self._spool}
        return json.dumps(fields | {"renewed_ns": time.monotonic_ns(), "utc_s": int(time.time())}).encode()

    def _read(self, path: str) -> dict[str, Any] | None:
        """Return the fields of a lease, {} if it is damaged (then it is void), None if there is no lease."""
        try:
            with self._store.reader(path) as file:
                held = json.loads(file.read(_LONGEST))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, RecursionError):
            return {}
        times = [held.get(key) for key in ("renewed_ns", "utc_s")] if isinstance(held, dict) else [None]
        return held if all(type(time) is int and 0 <= time < 1 << 63 for time in times) else {}

    def _sweep(self) -> None:
        """Remove leases of earlier boots of this host that were not renewed for a day."""
        for name in self._store.names(_FOLDER):
            if name.startswith(f"{self._host}-") and name != self._name:
                with contextlib.suppress(OSError, PerfOffcpuError):
                    held = self._read(f"{_FOLDER}/{name}")
                    if held and time.time() - held["utc_s"] > _LEFT_S:
                        self._store.remove(f"{_FOLDER}/{name}")
