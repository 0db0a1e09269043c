# SPDX-License-Identifier: Apache-2.0
"""What a server did on its host while its client waited: recordings and agents in two network namespaces."""

import json
import os
import subprocess
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from builders.program import run as perf_offcpu
from kernel.agents import Place
from kernel.recorder import PROGRAM
from kernel.two_hosts import Link, command

from perf_offcpu.collect.system.cgroups import MOUNTS, cgroup2_mount
from perf_offcpu.files import read_kernel

pytestmark = pytest.mark.beside


@pytest.mark.long
def test_what_the_server_did_on_its_host(tmp_path: Path, link: Link) -> None:
    """Two recordings, of hosts with names of their own, in one dataset."""
    rounds, processes = 9, []
    for role, namespace in zip(("server", "client"), (link.server, link.client), strict=True):
        words = command(role, "turns", rounds, namespace)
        options = ["-o", f"{role}.data", "--off-cpu-thresh", "0"]
        record = ["sh", "-c", 'hostname "$0" && exec "$@"', role, *PROGRAM, *options, "--", *words]
        process = subprocess.Popen(["unshare", "--uts", *record], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        processes.append(process)
        assert process.stdout and process.stdout.readline() in ("ready\n", "connecting\n")
    server, client = (process.communicate()[0].split() for process in processes)
    took, waited = [*map(int, server)], sum(map(int, client[5::4])) - sum(map(int, client[4::4]))
    perf_offcpu("convert", "--parquet", "waits", "-i", "server.data", "-i", "client.data", cwd=tmp_path)

    def fleet(*words: str) -> Any:
        return json.loads(perf_offcpu("fleet", *words, "--json", cwd=tmp_path).stdout)

    found = fleet("path", "waits", "--host", "client")
    queued = "SELECT CAST(sum(runnable_ns + preempted_ns) AS BIGINT) AS ns FROM budgets WHERE host_id = 'client'"
    busy: int = fleet("sql", "waits", queued)[0]["ns"]  # other programs may use the CPUs
    assert 0.95 * sum(took) - busy <= found["weight"] <= waited, (sum(took), busy, waited, found["weight"])
    did = Counter[str]()
    for step in found["steps"]:
        assert step["peers"] == [{"host": "server", "comm": step["peers"][0]["comm"]}]
        did[step["doing"]] += step["ns"]
    assert did.total() == pytest.approx(found["weight"], abs=100)
    busy += did["runqueue"] + did["running"]
    for turn, doing in enumerate(("sleep", "lock")):
        assert 0.97 * sum(took[turn::3]) - busy <= did[doing] <= 1.01 * sum(took[turn::3]), (did, took)
    (table,) = fleet("report", "waits", "--host", "server", "--object", tmp_path.name, "--sort", "class")["tables"]
    (disk,) = [row["blocked"] for row in table["rows"] if row["class"] == "disk"]
    assert 0.9 * disk <= did["disk"] <= disk > 0, "the disk is fast, and the server waited for it in these turns only"


HOST = (
    'hostname "$0"; echo "$1" >"$2"; [ ! -e /etc/machine-id ] || mount --bind "$2" /etc/machine-id; shift 2; exec "$@"'
)


@pytest.mark.long
def test_two_agents_on_two_hosts(tmp_path: Path, link: Link) -> None:
    """Each records the control group of its program, in one dataset; the connection joins them."""
    rounds, mount = 30, os.fsdecode(cgroup2_mount(read_kernel(MOUNTS)) or b"")
    with ExitStack() as running:
        places = []
        for namespace, digit in zip(link, "1f", strict=True):
            group = Path(mount, namespace)
            group.mkdir()
            running.callback(group.rmdir)
            words = ["nsenter", f"--net=/run/netns/{namespace}", "unshare", "--uts", "--mount", "sh", "-c", HOST]
            before = (*words, namespace, digit * 32, str(tmp_path / f"{namespace}.id"))
            options = (*"--segment 3s --max-cpu 1000 --off-cpu-period 0.1".split(),)
            places.append(Place(tmp_path, tmp_path / namespace, options, before=before))
            running.enter_context(places[-1].agent("--", "-G", namespace))
        for place in places:
            place.wait_for_segments(1)
        processes = []
        for role, namespace in (("server", link.server), ("client", link.client)):
            enter = ["sh", "-c", f'echo 0 >{mount}/{namespace}/cgroup.procs; exec "$@"', "sh"]
            words = [*enter, *command(role, "turns", rounds, namespace)]
            processes.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=tmp_path))
            stdout = processes[-1].stdout
            assert stdout and stdout.readline() in ("ready\n", "connecting\n")
        server, client = (process.communicate()[0].split() for process in processes)
        for place in places:
            place.wait_for_segments(1)
    took, waited = sum(map(int, server)), sum(map(int, client[5::4])) - sum(map(int, client[4::4]))
    words = ["fleet", "path", "dataset", "--host", link.client, "--json"]
    found = json.loads(perf_offcpu(*words, cwd=tmp_path).stdout)
    assert 0.9 * took <= found["weight"] <= 1.1 * waited, (took, waited, found)
    assert {peer["host"] for step in found["steps"] for peer in step["peers"]} == {link.server}
    assert {"sleep", "lock"} <= {step["doing"] for step in found["steps"]}
