# SPDX-License-Identifier: Apache-2.0
"""Comparison of two profiles: as one profile, in whose tree frames of the same name are the same node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perf_offcpu.model.columns import Bool
from perf_offcpu.model.join import join
from perf_offcpu.model.profile import Profile


def with_older(new: Profile, old: Profile | None) -> tuple[Profile, Bool]:
    """Add the samples of an older profile to a profile.

    Returns:
        (both, is_old): the samples of the new profile, then those of the old one (None: there is none), with
        threads, losses and facts of the new one; bool[samples], the samples of the old profile.
    """
    if old is None:
        return new, np.zeros(len(new.samples), np.bool_)
    both = join([new, old], new.meta.nr_cpus)
    of_new = ("comms", "tasks", "budget", "cgroups", "losses", "meta")
    both = replace(both, **{name: getattr(new, name) for name in of_new})
    return both, np.arange(len(both.samples)) >= len(new.samples)
