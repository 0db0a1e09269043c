# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces, connected by a veth pair, with tests/workload/objects/network.py, and lost packets."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

WORKLOAD = Path(__file__).parents[1] / "workload" / "objects" / "network.py"
CLIENT, SERVER = "10.77.0.1", "10.77.0.2"


class Link(NamedTuple):
    """Names of two network namespaces that a veth pair connects."""

    client: str = f"client{os.getpid()}"
    server: str = f"server{os.getpid()}"


@contextmanager
def two_hosts() -> Iterator[Link]:
    link = Link()

    def ip(words: str) -> None:
        subprocess.run(["ip", *words.split()], check=True)

    try:
        ip(f"netns add {link.client}")
        ip(f"netns add {link.server}")
        ip(f"link add veth0 netns {link.client} type veth peer name veth0 netns {link.server}")
        for namespace, address in zip(link, (CLIENT, SERVER), strict=True):
            ip(f"-n {namespace} address add {address}/24 dev veth0")
            ip(f"-n {namespace} link set veth0 up")
        yield link
    finally:
        for namespace in link:
            subprocess.run(["ip", "netns", "delete", namespace], check=False)


def command(role: str, scene: str, rounds: int, namespace: str) -> list[str]:
    program = ["chrt", "--fifo", "1", sys.executable, str(WORKLOAD)]  # so that others do not lengthen its times
    return ["ip", "netns", "exec", namespace, *program, role, SERVER, scene, str(rounds)]


@contextmanager
def dropping(namespace: str, packets: str) -> Iterator[None]:
    """Let nftables drop the packets that a rule selects before TCP of this namespace sees them; "": none."""

    def nft(words: str) -> None:
        subprocess.run(["ip", "netns", "exec", namespace, "nft", words], check=True)

    if packets:
        nft("add table inet t; add chain inet t c { type filter hook input priority 0; }")
        nft(f"add rule inet t c {packets} counter drop")
    try:
        yield
    finally:
        if packets:
            nft("delete table inet t")
