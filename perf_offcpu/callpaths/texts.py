# SPDX-License-Identifier: Apache-2.0
"""Give samples texts, for tables with a row a sample: distinct texts, and which one each sample has. Texts are
printable (`text.printable`); what is not known has no text."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf_offcpu.abi.wait_objects import ObjectKind
from perf_offcpu.analysis.classes.classify import Waits
from perf_offcpu.analysis.classes.network import LABELS, network_of
from perf_offcpu.analysis.classes.wait_classes import WaitClass
from perf_offcpu.analysis.states import STATES, state_codes
from perf_offcpu.model.columns import I64, Bool, Strings
from perf_offcpu.model.lookup import rows_at
from perf_offcpu.model.profile import Profile
from perf_offcpu.structs import mutable
from perf_offcpu.text import printable


@mutable
class Texts:
    """Column of n texts: the distinct texts, and `codes` int64[n], index of the text of each row; -1 for none."""

    texts: list[str]
    codes: I64


def sample_texts(profile: Profile, waits: Waits) -> dict[str, Texts]:
    """Return name (as in `convert.dataframe.COLUMNS`) → column of texts of all samples."""
    samples, offcpu = profile.samples, profile.is_offcpu()
    events = [event.name for event in profile.evsels]
    network = network_of(profile, waits).cause
    has_object, has_cgroup = samples.object >= 0, (samples.cgroup != 0) | np.bool_(0 in profile.cgroups)
    kinds = {int(kind): kind.name.lower() for kind in ObjectKind}
    kind, object_ = (np.append(column, 0)[samples.object] for column in (profile.objects.kind, profile.objects.name))
    return {
        "event": merged([*map(printable, events)], samples.evsel.astype(np.int64)),
        "comm": named(samples.comm, profile.strings),
        "state": _states(profile),
        "wait_class": Texts([wait_class.label for wait_class in WaitClass], _only(offcpu, waits.wait_class)),
        "syscall": Texts(list(map(printable, waits.syscall_names)), _only(waits.syscall > 0, waits.syscall)),
        "object": named(object_, profile.strings, has_object),
        "object_kind": _by_value(kind, lambda number: kinds.get(number, kinds[0]), has_object),
        "network": merged(LABELS, network.astype(np.int64), network > 0),
        "waker_comm": _waker_comms(profile),
        "cgroup": _by_value(samples.cgroup, lambda number: profile.cgroups.get(number, str(number)), has_cgroup),
    }


def _only(known: Bool, codes: NDArray[Any]) -> I64:
    return np.where(known, codes.astype(np.int64), -1)


def merged(texts: Sequence[str], codes: I64, known: Bool | None = None) -> Texts:
    """Return the column of `texts[codes]`, equal texts once; a row where `known` (bool[n]) is False has code -1."""
    place: dict[str, int] = {}
    place_of = np.array([*(place.setdefault(text, len(place)) for text in texts), -1], np.int64)[codes]
    return Texts(list(place), place_of if known is None else _only(known, place_of))


def named(column: NDArray[Any], strings: Strings, known: Bool | None = None) -> Texts:
    """Return the column of `strings[column]`, printable; a row where `known` (bool[n]) is False has no text."""
    return _by_value(column, strings.__getitem__, known)


def _by_value(column: NDArray[Any], text_of: Callable[[int], str], known: Bool | None) -> Texts:
    values, inverse = np.unique(column, return_inverse=True)
    return merged([printable(text_of(value)) for value in values.tolist()], inverse.astype(np.int64), known)


def _states(profile: Profile) -> Texts:
    codes, inverse = np.unique(state_codes(profile.samples), return_inverse=True)
    letters = [STATES[code].letter for code in codes.tolist()]
    return merged(letters, inverse, np.array(letters, np.str_)[inverse] != "")


def _waker_comms(profile: Profile) -> Texts:
    samples, comms = profile.samples, profile.comms
    row = rows_at(comms.tid, comms.begin_ns, samples.waker_tid, samples.wakeup_ns)
    is_known = (row >= 0) & (samples.waker_tid >= 0)
    return named(np.append(comms.comm, 0)[np.where(is_known, row, -1)], profile.strings, is_known)
