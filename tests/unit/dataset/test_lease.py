# SPDX-License-Identifier: Apache-2.0
"""Leases: one agent of a host writes into a dataset, in a directory as in an object store."""

import json
import os
import time
import uuid
from pathlib import Path

import pytest

from perf_offcpu.dataset import lease as leases
from perf_offcpu.dataset.lease import Lease, LeaseTakenError
from perf_offcpu.dataset.store import Store, open_store, put, read_all
from perf_offcpu.errors import PerfOffcpuError

PATH = "_leases/web-1-boot.json"


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "set") if request.param == "local" else f"memory://{uuid.uuid4()}/set", make=True)


def lease(store: Store, holder: str, host: str = "web/1", boot: str = "boot") -> Lease:
    return Lease(store, host, boot, holder, f"/spool/{holder}")


def aged(store: Store, path: str, monotonic_s: float = 0, utc_s: int = 0) -> None:
    """Make a lease older."""
    held = json.loads(read_all(store, path))
    held["renewed_ns"], held["utc_s"] = held["renewed_ns"] - int(monotonic_s * 1e9), held["utc_s"] - utc_s
    put(store, path, json.dumps(held).encode())


def test_one_agent_of_a_host_holds_it_until_it_ends(store: Store) -> None:
    first, second = lease(store, "a"), lease(store, "b")
    first.renew()
    first.renew()
    lease(store, "a").renew()  # after a restart
    refusal = (
        rf"set: another agent of this host writes there \(pid {os.getpid()}, spool /spool/a; its lease was renewed 0"
    )
    with pytest.raises(LeaseTakenError, match=refusal):
        second.renew()
    second.release()
    assert store.names("_leases") == ["web-1-boot.json"], "it is not the second one's"
    first.release()
    assert store.names("_leases") == []
    second.renew()
    lease(store, "a", "web2").renew()
    lease(store, "a", boot="other").renew()  # a machine of the same image
    assert len(store.names("_leases")) == 3


def test_takeover_and_void_leases(store: Store) -> None:
    first, second = lease(store, "a"), lease(store, "b")
    first.renew()
    second.renew(take_over=True)
    with pytest.raises(LeaseTakenError, match="/spool/b"):
        first.renew()
    aged(store, PATH, leases.VOID_AFTER_S - 20)
    with pytest.raises(LeaseTakenError, match="renewed 280 s ago and is void after 300 s"):
        first.renew()
    aged(store, PATH, 20)
    first.renew()
    with pytest.raises(LeaseTakenError):
        second.renew()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[" * 4000, b"\xff", b'{"holder": "x", "renewed_ns": "y"}', b" " * 9999]
)
def test_damaged_leases_are_void(store: Store, content: bytes) -> None:
    put(store, PATH, content)
    lease(store, "a").renew()
    with pytest.raises(LeaseTakenError):
        lease(store, "b").renew()


def test_of_two_at_once_one_gets_a_free_lease(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have seen that there is none."""
    second, create = lease(store, "b"), store.create

    def late(path: str, data: bytes) -> bool:
        monkeypatch.undo()
        lease(store, "a").renew()
        return create(path, data)

    monkeypatch.setattr(store, "create", late)
    with pytest.raises(LeaseTakenError, match="/spool/a"):
        second.renew()
    assert [name for name in store.names("_leases") if name != "web-1-boot.json"] == []


def test_leases_of_earlier_boots_are_removed_after_a_day(store: Store) -> None:
    for boot in ("old", "yesterday"):
        lease(store, "a", boot=boot).renew()
    lease(store, "a", "web/2", "old").renew()
    aged(store, "_leases/web-1-old.json", utc_s=90_000)
    aged(store, "_leases/web-2-old.json", utc_s=90_000)
    lease(store, "a").renew()
    assert store.names("_leases") == ["web-1-boot.json", "web-1-yesterday.json", "web-2-old.json"]


def test_another_users_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "_leases").mkdir()
    os.mkfifo(tmp_path / PATH)
    begin = time.monotonic()
    with pytest.raises(PerfOffcpuError, match="not a regular file"):
        lease(open_store(str(tmp_path), make=False), "a").renew()
    assert time.monotonic() - begin < 10
