# SPDX-License-Identifier: Apache-2.0
"""Profiles of several hosts: ids that move, and addresses named by each host's kernel and files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.hosts import CLOCK, DAY_NS, OFFCPU, TEXT, comms_of, existing, host, kernel_map, mapped, tick, wait
from builders.profile import functions_of
from builders.recording import DUMMY_TIME, KERNEL, USER, sample, side, write

from perf_offcpu.abi.features import Feature
from perf_offcpu.abi.offcpu import BLANK_EXTENSION, EXTENSION, PAYLOAD
from perf_offcpu.abi.records import RecordType
from perf_offcpu.errors import UsageError
from perf_offcpu.model.join import PID_STEP
from perf_offcpu.model.profile import Profile
from perf_offcpu.perfdata.features import BuildId, build_id_body, text_body
from perf_offcpu.symbolize.load import CGROUP_STEP, load_profile
from perf_offcpu.symbolize.options import SymbolizeOptions


def load(paths: Sequence[Path], symbols: dict[str, Any] | None = None, **options: bool) -> Profile:
    profile = load_profile([str(path) for path in paths], SymbolizeOptions(**(symbols or {})), **options)
    profile.check()
    return profile


def symbols_of(profile: Profile, tid: int) -> list[str]:
    row = int(np.flatnonzero(profile.samples.tid == tid)[0])
    return functions_of(profile, int(profile.samples.stack[row]))[::-1]


def test_hosts_keep_apart(tmp_path: Path) -> None:
    cgroup = side(CLOCK, RecordType.CGROUP, id=9, path=b"/system.slice")
    near = [cgroup, *existing(7, "nginx"), tick(DAY_NS + 1000), wait(DAY_NS + 4000)]
    far = [cgroup, *existing(7, "nginx"), tick(3000), wait(2000, pid=7, tid=7), wait(DUMMY_TIME)]
    paths = [
        write(tmp_path / "a", [CLOCK, OFFCPU], near, host("web1", 100 * DAY_NS)),
        write(tmp_path / "b", [CLOCK, OFFCPU], far, host("web2", 101 * DAY_NS)),
    ]
    profile = load(paths)
    base, samples = 101 * DAY_NS, profile.samples
    assert samples.time_ns.tolist() == [-1, base + 1000, base + 2000, base + 3000, base + 4000]
    far_pid = PID_STEP + 7
    assert samples.pid.tolist() == samples.tid.tolist() == [far_pid, 7, far_pid, far_pid, 7]
    assert comms_of(profile) == ["web2:nginx", "web1:nginx", "web2:nginx", "web2:nginx", "web1:nginx"]
    assert samples.cpu.tolist() == [5, 1, 5, 5, 1]  # each host has four CPUs
    assert profile.cgroups == {9: "/web1/system.slice", CGROUP_STEP + 9: "/web2/system.slice"}
    assert samples.cgroup.tolist() == [CGROUP_STEP + 9, 0, CGROUP_STEP + 9, 0, 9]
    assert [event.name for event in profile.evsels] == ["cpu-clock", "offcpu-time"]
    meta = profile.meta
    assert (meta.hostname, meta.nr_cpus, meta.clockid) == ("web1,web2", 8, 0)
    assert meta.wall_clock_ns == meta.wall_clock_at_ns == 100 * DAY_NS + 500
    assert profile.tasks.tid.tolist() == sorted(profile.tasks.tid.tolist())
    assert {7, far_pid} <= set(profile.tasks.tid.tolist()) & set(profile.comms.tid.tolist())
    names = {profile.strings[row] for row in profile.comms.comm.tolist()}
    assert names == {"web1:nginx", "web2:nginx", "web1:swapper", "web2:swapper"}


@pytest.mark.parametrize(("names", "prefix"), [(("web1", "web2"), False), (("web1", "web1"), True)])
def test_hosts_without_prefix_and_boots_of_one_host(names: tuple[str, ...], prefix: bool, tmp_path: Path) -> None:
    """Hosts are summed up, boots keep apart; neither has a prefix."""
    cgroup = side(CLOCK, RecordType.CGROUP, id=9, path=b"/system.slice")
    paths = [
        write(tmp_path / str(day), [CLOCK], [cgroup, *existing(7, "nginx"), tick(1000)], host(name, day * DAY_NS))
        for day, name in enumerate(names, 5)
    ]
    profile = load(paths, prefix=prefix)
    assert comms_of(profile) == ["nginx", "nginx"]
    assert profile.samples.pid.tolist() == [7, PID_STEP + 7]
    assert set(profile.cgroups.values()) == {"/system.slice"}


def test_a_host_without_a_name_is_named_by_its_file(tmp_path: Path) -> None:
    bare = {Feature.HOSTNAME: text_body("")}
    paths = [
        write(tmp_path / "a", [CLOCK], [*existing(7, "x"), tick(1000)], host("h", DAY_NS)),
        write(tmp_path / "run.data", [CLOCK], [*existing(7, "x"), tick(1000)], host("", 5 * DAY_NS) | bare),
    ]
    assert set(comms_of(load(paths))) == {"h:x", "run.data:x"}


def test_all_numbers_of_a_wait_move(tmp_path: Path) -> None:
    """pid pair, waker, times, cgroup; what is unknown stays unknown."""
    head = {"pid": 7, "tid": 8, "offcpu_ns": 100, "callchain": [KERNEL, TEXT, USER, 0x10], "cgroup": 3}
    known = {"kind": 1, "switch_out_ns": 900, "waker_pid": 20, "waker_tid": 21}
    woken = {"kind": 1, "switch_out_ns": 900, "wakeup_ns": 950}
    raws = [PAYLOAD.pack(head) + EXTENSION.pack(BLANK_EXTENSION | values) for values in (known, woken)]
    raws = [raw + bytes(-(len(raw) + 4) % 8) for raw in raws]
    far = [sample(OFFCPU, time=1000 + row, pid=7, tid=8, raw=raw) for row, raw in enumerate(raws)]
    paths = [
        write(tmp_path / "a", [CLOCK], [tick(1000)], host("a", 5 * DAY_NS)),
        write(tmp_path / "b", [CLOCK, OFFCPU], far, host("b", 6 * DAY_NS)),
    ]
    profile = load(paths)
    samples = profile.samples.take(profile.samples.evsel == 1)
    assert (samples.pid.tolist(), samples.tid.tolist()) == ([PID_STEP + 7] * 2, [PID_STEP + 8] * 2)
    assert samples.time_ns.tolist() == [6 * DAY_NS + 1000, 6 * DAY_NS + 1001]
    assert samples.switch_out_ns.tolist() == [6 * DAY_NS + 900] * 2
    assert samples.wakeup_ns.tolist() == [-1, 6 * DAY_NS + 950]
    assert samples.waker_pid.tolist() == [PID_STEP + 20, -1]
    assert samples.waker_tid.tolist() == [PID_STEP + 21, -1]
    assert (samples.cgroup.tolist(), samples.period.tolist()) == ([CGROUP_STEP + 3] * 2, [100, 100])


def test_losses_add_up(tmp_path: Path) -> None:
    lost = side(CLOCK, RecordType.LOST, id=1, lost=5)
    paths = [write(tmp_path / name, [CLOCK], [tick(1000), lost], host(name, DAY_NS)) for name in ("a", "b", "c")]
    (count,) = (count for cause, count in load(paths).losses.items() if not str(cause).startswith("no name"))
    assert count == 15


def kallsyms(path: Path, text: int, name: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text:x} T _text\n{text + 0x100:x} T {name}\n{text + 0x200:x} T _etext\n")
    return path


def kernel_tick(tmp_path: Path, name: str, text: int, build: bytes, day: int) -> Path:
    sample = tick(1000, misc=1, ip=text + 0x123, callchain=[KERNEL, text + 0x123, USER, 0x1004])
    records = [kernel_map(text, build), *existing(7, name), sample]
    return write(tmp_path / name, [CLOCK], records, host(name, day * DAY_NS))


BUILDS = [bytes(range(20)), bytes(range(1, 21))]


def test_kernels_of_one_build_share_their_symbols(tmp_path: Path) -> None:
    """KASLR moved the second one."""
    paths = [kernel_tick(tmp_path, "a", TEXT, BUILDS[0], 5), kernel_tick(tmp_path, "b", TEXT + 0x3000000, BUILDS[0], 6)]
    profile = load(paths, {"kallsyms": str(kallsyms(tmp_path / "kallsyms", TEXT, "there"))})
    assert symbols_of(profile, 7)[0] == symbols_of(profile, PID_STEP + 7)[0] == "there"


def test_each_kernel_is_named_by_its_own_symbols(tmp_path: Path) -> None:
    """By build-id; files that the user gives are of the first one."""
    cache, build = tmp_path / "cache", BUILDS[1].hex()
    paths = [kernel_tick(tmp_path, "a", TEXT, BUILDS[0], 5), kernel_tick(tmp_path, "b", TEXT, BUILDS[1], 6)]
    given = kallsyms(tmp_path / "kallsyms", TEXT, "mine")

    def leaves(*paths: Path, **places: Path) -> list[str]:
        profile = load(paths, {name: str(path) for name, path in places.items()})
        return [symbols_of(profile, tid)[0] for tid in (7, PID_STEP + 7)]

    assert leaves(*paths, kallsyms=given, buildid_dir=cache) == ["mine", ""]
    kallsyms(cache / ".build-id" / build[:2] / build[2:] / "kallsyms", TEXT, "theirs")
    assert leaves(*paths, kallsyms=given, buildid_dir=cache) == ["mine", "theirs"]
    kallsyms(tmp_path / "root" / "proc" / "kallsyms", TEXT, "mine")
    assert leaves(*paths, symfs=tmp_path / "root", buildid_dir=cache) == ["mine", "theirs"]
    assert leaves(*paths[::-1], symfs=tmp_path / "root", buildid_dir=tmp_path / "none") == ["mine", ""]


@pytest.mark.parametrize("in_header", [False, True])
def test_the_same_path_on_two_hosts_is_two_files(in_header: bool, tmp_path: Path) -> None:
    paths = []
    for tag, name in ((5, "a"), (6, "b")):
        build, records = bytes([tag]) * 20, [*existing(7, name), tick(1000)]
        records.append(mapped(7, 0x1000, b"/lib/libc.so", b"" if in_header else build))
        features = host(name, tag * DAY_NS)
        if in_header:
            features[Feature.BUILD_ID] = build_id_body([BuildId(-1, 2, build.hex(), b"/lib/libc.so")])
        paths.append(write(tmp_path / name, [CLOCK], records, features))
    profile = load(paths)
    assert "/lib/libc.so" in list(profile.strings)
    assert profile.build_ids == {}
    assert set(load(paths[:1]).build_ids.values()) == {"05" * 20}


@pytest.mark.long
def test_too_many_hosts(tmp_path: Path) -> None:
    paths = [write(tmp_path / str(number), [CLOCK], [tick(1000)], host(str(number), DAY_NS)) for number in range(215)]
    with pytest.raises(UsageError, match="215 hosts"):
        load(paths)
    pids = set(load(paths[:214]).samples.pid.tolist())
    assert len(pids) == 214 and max(pids) < 2**31


def test_numbers_of_a_damaged_recording_do_not_overflow(tmp_path: Path) -> None:
    largest = 2**31 - 1
    records = [tick(1000, pid=largest, cpu=largest)]
    samples = load([write(tmp_path / name, [CLOCK], records, host(name, DAY_NS)) for name in ("a", "b")]).samples
    assert set(samples.pid.tolist()) == set(samples.cpu.tolist()) == {largest}
