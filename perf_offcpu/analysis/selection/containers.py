# SPDX-License-Identifier: Apache-2.0
"""Name containers and services by the paths of their control groups, as their managers make them:

/docker/ID · /system.slice/docker-ID.scope                            docker:ID
/kubepods.slice/…-podUID.slice/cri-containerd-ID.scope                containerd:ID
/kubepods.slice/…-podUID.slice/crio-ID.scope                          cri-o:ID
/kubepods/burstable/podUID/ID                                         pod:ID
/machine.slice/libpod-ID.scope                                        podman:ID
/machine.slice/machine-NAME.scope · /lxc.payload.NAME · /lxc/NAME     machine:NAME, lxc:NAME
/system.slice/postgresql.service                                      postgresql.service

IDs are shown by their first 12 digits, as the managers do."""

import re
from typing import Final

_ID: Final = re.compile(r"(?:(?P<prefix>[a-z-]+)-)?(?P<id>[0-9a-f]{64})(?:\.scope)?")
_RUNTIMES: Final = {"docker": "docker", "cri-containerd": "containerd", "crio": "cri-o", "libpod": "podman"}
_NAMED: Final = re.compile(r"(?:(?P<kind>machine)-(?P<name>.+)\.scope|systemd-nspawn@(?P<nspawn>.+)\.service)")
_LXC: Final = re.compile(r"/lxc(?:\.payload\.|/)([^/]+)")
_UNIT: Final = re.compile(r"[^/]+\.(?:service|scope|slice)")
_SHOWN: Final = 12


def container_of(path: str) -> str:
    """Return the name of the innermost container, else of the innermost systemd unit, in a cgroup's path; "": none."""
    elements = path.strip("/").split("/")
    for row, element in reversed(list(enumerate(elements))):
        if match := _ID.fullmatch(element):
            parent = elements[row - 1] if row else ""
            runtime = _RUNTIMES.get(match["prefix"] or parent.removesuffix("_parent"))
            return f"{runtime or ('pod' if 'kubepods' in path else 'container')}:{match['id'][:_SHOWN]}"
        if match := _NAMED.fullmatch(element):
            return f"machine:{match['name'] or match['nspawn']}".replace("\\x2d", "-")
    if lxc := _LXC.match(path):
        return f"lxc:{lxc[1]}"
    return next((element for element in reversed(elements) if _UNIT.fullmatch(element)), "")


def is_container(path: str, name: str) -> bool:
    """Return True if a cgroup is in container `name`: KIND:NAME, NAME, or 4 or more digits of the container's id."""
    label = container_of(path)
    kind, _, own = label.rpartition(":")
    name = name.removeprefix(f"{kind}:")
    if name == own:
        return bool(label)
    begins = bool(re.fullmatch(r"[0-9a-f]{4,64}", name)) and own.startswith(name[:_SHOWN])
    return bool(kind) and begins and (len(name) <= _SHOWN or name in path)
