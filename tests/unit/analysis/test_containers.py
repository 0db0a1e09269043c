# SPDX-License-Identifier: Apache-2.0
"""Names of containers, from paths of control groups as their managers make them."""

import pytest

from perf_offcpu.analysis.containers import container_of, is_container

ID = "0123456789ab" + 52 * "c"
POD = "kubepods-burstable-pod2d1a4a4e_0a0b_4c4d_8e8f_000000000000.slice"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (f"/docker/{ID}", "docker:0123456789ab"),
        (f"/system.slice/docker-{ID}.scope/system.slice/ssh.service", "docker:0123456789ab"),
        (f"/kubepods.slice/kubepods-burstable.slice/{POD}/cri-containerd-{ID}.scope", "containerd:0123456789ab"),
        (f"/kubepods.slice/{POD}/crio-{ID}.scope", "cri-o:0123456789ab"),
        (f"/kubepods/burstable/pod2d1a4a4e/{ID}", "pod:0123456789ab"),
        (f"/machine.slice/libpod-{ID}.scope/container", "podman:0123456789ab"),
        (f"/libpod_parent/{ID}", "podman:0123456789ab"),
        ("/machine.slice/machine-my\\x2dbox.scope/payload", "machine:my-box"),
        ("/machine.slice/systemd-nspawn@box.service/payload", "machine:box"),
        ("/lxc.payload.web1/init.scope", "lxc:web1"),
        ("/system.slice/system-postgresql.slice/postgresql@15-main.service", "postgresql@15-main.service"),
        ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope"),
        ("/", ""),
        ("/jobs/17", ""),
        ("", ""),
    ],
)
def test_names(path: str, name: str) -> None:
    assert container_of(path) == name
    assert is_container(path, name) == bool(name)


def test_a_container_is_found_by_its_name_or_the_begin_of_its_id() -> None:
    path = f"/docker/{ID}"
    assert all(is_container(path, name) for name in (ID, ID[:12], ID[:4], "docker:0123456789ab", "docker:0123"))
    assert not any(is_container(path, name) for name in ("0124", ID[:-1] + "0", "docker", "", "012", "podman:0123"))
    assert not is_container("/system.slice/0123.service", "0123")
