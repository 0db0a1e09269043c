# SPDX-License-Identifier: Apache-2.0
"""Load recordings as a Profile: read, unwind, join, symbolize.

Of several hosts, numbers of the first one stay. Those of host k = 1, 2, … become

    pid, tid          10 000 000 k + pid: pid 1234 of the second host reads 10001234
    CPU               + the CPUs of all hosts before
    cgroup id         + k 2^48
    comm, cgroup      web1:nginx, /web1/system.slice, if there are several names of hosts
    wait object       web1:/var/log/syslog, likewise
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from perf_offcpu.decode.deferred import deferred_as_samples, merge_deferred
from perf_offcpu.decode.join import JoinOptions, join_by_host
from perf_offcpu.decode.load import load_recording
from perf_offcpu.decode.trim_stacks import cut_wrong_callers
from perf_offcpu.errors import UsageError
from perf_offcpu.model.columns import Renumber, Strings, distinct
from perf_offcpu.model.join import PID_STEP, join, renumbered, shifted, to_rows
from perf_offcpu.model.lookup import kernel_map
from perf_offcpu.model.profile import Objects, Profile
from perf_offcpu.model.recording import Recording
from perf_offcpu.objects.search import Search
from perf_offcpu.symbolize.options import SymbolizeOptions
from perf_offcpu.symbolize.symbolizer import symbolize
from perf_offcpu.unwind.unwinder import unwind

CGROUP_STEP = 1 << 48
MAX_HOSTS = (2**31 - 1) // PID_STEP


def join_profiles(
    recordings: Sequence[Recording], symbols: SymbolizeOptions, join_options: JoinOptions, *, merge: bool
) -> Profile:
    """Join recordings by host, name their addresses and join the profiles. `recordings`: without snapshots, and with
    deferred callchains that are not merged. `symbols`: its files of kernel symbols are used for the first host, and for
    hosts with the same kernel build. `merge`: complete samples whose user callchain was deferred; else deferred
    callchains become samples. Raises UsageError: they cannot be joined, or a file of the options is unreadable."""
    hosts = join_by_host(recordings, join_options)
    if len(hosts) > MAX_HOSTS:
        raise UsageError(f"{len(hosts)} hosts: ids of processes have room for {MAX_HOSTS}")
    with_prefix = join_options.prefix and len({host.name for host in hosts}) > 1
    profiles, first_cpu = [], 0
    for number, host in enumerate(hosts):
        # Only now, because a deferred callchain may be in the next file of a recording.
        recording = cut_wrong_callers(merge_deferred(host.recording)) if merge else host.recording
        is_other = number > 0 and not _is_same_kernel(hosts[0].recording, recording)
        options = dataclasses.replace(symbols, other_kernel=is_other)
        profile = symbolize(deferred_as_samples(recording), options)
        profiles.append(_moved(profile, number, first_cpu, f"{host.name}:" if with_prefix else ""))
        first_cpu += host.cpus
    return profiles[0] if len(profiles) == 1 else _joined(profiles, first_cpu)


def _is_same_kernel(first: Recording, second: Recording) -> bool:
    builds = [recording.meta.kernel_build_id or kernel_map(recording).build_id for recording in (first, second)]
    if all(builds):
        return builds[0] == builds[1]
    return first.meta.os_release == second.meta.os_release


def _moved(profile: Profile, number: int, first_cpu: int, prefix: str) -> Profile:
    """Return the profile of host `number` (from 0) with pids, CPUs (+ `first_cpu`) and cgroup ids apart from those of
    other hosts, and `prefix` before the names of threads, cgroups and wait objects."""
    cgroup = np.uint64(number * CGROUP_STEP)
    changes: dict[str, Renumber] = {
        "task": shifted(number * PID_STEP),
        "cpu": shifted(first_cpu),
        "cgroup": lambda ids: np.where(ids > 0, ids + cgroup, ids),
    }
    root = f"/{prefix.removesuffix(':')}" if prefix else ""
    cgroups = {id_ + int(cgroup): f"{root}{path}" for id_, path in profile.cgroups.items()}
    strings = profile.strings
    if prefix:
        strings = strings.copy()
        names = np.arange(len(strings), dtype=np.uint32)
        used = distinct(np.concatenate([profile.samples.comm, profile.comms.comm]))
        names[used] = strings.intern_all(f"{prefix}{strings[row]}" for row in used.tolist())
        changes["comm"] = to_rows(names)
        profile = dataclasses.replace(profile, objects=_of_host(profile.objects, strings, prefix))
    step = number * PID_STEP
    loops = tuple(loop._replace(pid=loop.pid + step, tid=loop.tid + step) for loop in profile.loops)
    return dataclasses.replace(renumbered(profile, changes), strings=strings, cgroups=cgroups, loops=loops)


def _of_host(objects: Objects, strings: Strings, prefix: str) -> Objects:
    """Return wait objects with `prefix`, the name of their host, before their names: hosts share no objects."""
    texts = ([f"{prefix}{strings[row]}" for row in column.tolist()] for column in (objects.name, objects.stable))
    name, stable = map(strings.intern_all, texts)
    return objects.with_columns(name=name, stable=stable)


def _joined(profiles: Sequence[Profile], nr_cpus: int) -> Profile:
    joined = join(profiles, nr_cpus)
    joined.samples.reorder(np.argsort(joined.samples.time_ns, kind="stable"))
    for table in (joined.comms, joined.tasks, joined.budget):
        table.reorder(np.lexsort((table.begin_ns, table.tid)))
    return joined


def load_profile(
    paths: Sequence[str],
    symbols: SymbolizeOptions,
    seen: Callable[[str, Recording], object] | None = None,
    /,
    *,
    merge: bool = True,
    switches: bool = True,
    **joining: bool,
) -> Profile:
    """Read recordings, unwind their copies of user stacks and name their addresses. `paths`: files or directories; "-"
    is standard input. `seen`: called with path and content of each recording. `merge`: complete samples whose user
    callchain was deferred; else deferred callchains become samples. `switches`: add waits between context switches.
    `joining`: fields of JoinOptions, for several recordings. Raises FormatError: a file is no recording; UsageError:
    they cannot be joined, or a file that the options name cannot be read."""
    search, is_one = symbols.search(), len(paths) == 1
    recordings = [load_unwound(path, search, merge=merge and is_one, switches=switches) for path in paths]
    if seen is not None:
        for path, recording in zip(paths, recordings, strict=True):
            seen(path, recording)
    if is_one:
        return symbolize(deferred_as_samples(recordings[0]), symbols)
    return join_profiles(recordings, symbols, JoinOptions(**joining), merge=merge)


def load_unwound(path: str, search: Search, *, merge: bool = True, switches: bool = True) -> Recording:
    """Read a recording and unwind its copies of user stacks (see `load_profile`)."""
    return unwind(load_recording(path, merge=merge, switches=switches, snapshots=True), search)
