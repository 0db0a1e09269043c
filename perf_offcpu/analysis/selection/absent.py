# SPDX-License-Identifier: Apache-2.0
"""Suggest values that a recording has, where a selection finds nothing: frequent names, pids or classes."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.analysis.classes.classify import classify
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.selection.select import Selection, select_samples
from perf_offcpu.analysis.selection.states import STATES, state_codes
from perf_offcpu.model.columns import group
from perf_offcpu.model.profile import Profile
from perf_offcpu.text import printable

_SHOWN = 8
_OPTIONS = """
    comm=comms pid=pids tid=tids cpu=cpus cgroup=cgroups container=containers time=windows state=states class=classes
    min-dur=min_ns object=objects lock=locks
"""  # options that set criteria, with their fields in Selection


def absent_values(profile: Profile, selection: Selection) -> list[str]:
    """Return a sentence for each option that no sample matches; if there is none, one on all options together.
    `profile`: samples before the selection; if it has waits, its other samples are not searched."""
    waits = profile.select(profile.is_offcpu())
    profile = waits if len(waits.samples) else profile
    return list(_without_match(profile, selection)) or list(_not_at_once(profile, selection))


def _not_at_once(profile: Profile, selection: Selection) -> Iterator[str]:
    pairs = (pair.split("=") for pair in _OPTIONS.split())
    options = [f"--{option}" for option, field in pairs if getattr(selection, field)]
    if len(options) > 1 and len(profile.samples):
        yield f"no sample matches {', '.join(options[:-1])} and {options[-1]} at once"


def _without_match(profile: Profile, selection: Selection) -> Iterator[str]:
    samples, strings = profile.samples, profile.strings
    comms = tuple(map(printable, selection.comms))
    yield from _sentence("comm", comms, samples.comm, lambda row: printable(strings[row]))
    yield from _sentence("pid", tuple(map(str, selection.pids)), samples.pid, str)
    yield from _sentence("tid", tuple(map(str, selection.tids)), samples.tid, str)
    yield from _sentence("cpu", tuple(map(str, selection.cpus)), samples.cpu, str)
    yield from _sentence("state", selection.states, state_codes(samples), lambda code: STATES[code].letter or "unknown")
    if selection.objects or selection.locks:
        yield from _absent_objects(profile, selection)
    if selection.classes:
        labels = tuple(class_.label for class_ in selection.classes)
        yield from _sentence("class", labels, classify(profile).wait_class, lambda code: WaitClass(code).label)


def _absent_objects(profile: Profile, selection: Selection) -> Iterator[str]:
    """Yield sentences on patterns that match no object's name, and on addresses at which no lock is."""
    samples, strings = profile.samples, profile.strings
    name, address = (np.append(column, 0)[samples.object] for column in (profile.objects.name, profile.objects.address))
    has_object = samples.object >= 0
    if not has_object.any():
        yield "no wait in the recording has an object"
        return
    if not select_samples(profile, Selection(objects=selection.objects)).is_offcpu().any():
        patterns = tuple(map(printable, selection.objects))
        yield from _sentence("object", patterns, name[has_object], lambda row: printable(strings[row]))
    locks = tuple(f"{lock:#x}" for lock in selection.locks)
    yield from _sentence("lock", locks, address[address > 0], lambda number: f"{number:#x}")


def _sentence(
    option: str, wanted: tuple[str, ...], column: NDArray[np.integer], label: Callable[[int], str]
) -> Iterator[str]:
    if not wanted or not len(column):
        return
    first, group_of = group(column)
    frequent = np.argsort(-np.bincount(group_of), kind="stable")
    there = [label(int(column[row])) for row in first[frequent].tolist()]
    if not {*wanted} & {*there}:
        more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
        shown = ", ".join(there[:_SHOWN])
        yield f"no {option} {' or '.join(wanted)} in the recording, which has {shown}{more}"
