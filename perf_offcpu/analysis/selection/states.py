# SPDX-License-Identifier: Apache-2.0
"""Task states of samples, a whole column at once: letter and meaning of each."""

from typing import NamedTuple

import numpy as np

from perf_offcpu.abi.task_state import STATE_NAMES, state_letter
from perf_offcpu.model.columns import U8, group
from perf_offcpu.model.profile import ProfileSamples
from perf_offcpu.model.recording import SampleFlag


class State(NamedTuple):
    """Task state: the letter that ps shows ("" if it shows none), and the meaning."""

    letter: str
    words: str


STATES = (
    State("", "running"),
    State("", "state unknown"),
    State("R", "preempted"),
    *(State(letter, words.partition(" (")[0]) for letter, words in STATE_NAMES.items() if letter != "R"),
)
"""All states; the index of a state is its number in `state_codes`."""
RUNNING, UNKNOWN_STATE = 0, 1
_CODE = {state.letter: code for code, state in enumerate(STATES) if code}


def state_codes(samples: ProfileSamples) -> U8:
    """Return uint8[samples]: the index of each sample's state in STATES."""
    offcpu, preempted = samples.has(SampleFlag.OFFCPU), samples.has(SampleFlag.PREEMPTED)
    first, group_of = group(samples.state, preempted.astype(np.uint8))
    pairs = zip(samples.state[first].tolist(), preempted[first].tolist(), strict=True)
    codes = np.array([_CODE[state_letter(*pair)] for pair in pairs], np.uint8)
    return np.where(offcpu, codes[group_of], np.uint8(RUNNING)).astype(np.uint8)
