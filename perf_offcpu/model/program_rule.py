# SPDX-License-Identifier: Apache-2.0
"""A rule on waits of a program, as a row of a table or of a user's file."""

from __future__ import annotations

from typing import NamedTuple


class ProgramRule(NamedTuple):
    """Class and idleness of waits by the functions of a program; see Documentation/wait-classes.md.

    Args:
        program: the program or library, for people.
        meaning: what is waited for, for people.
        frames: functions, one of which is in the stack; "" any stack. Code without a name is called by its
            file, `[python3.11]`. This and the next four are regular expressions for whole names, separated
            by blanks.
        callers: functions, one of which called that of `frames`; "" any.
        comm: names of threads; "" any.
        syscall: system calls; "" any.
        waits: labels of the classes by the general rules that the rule is about; "" all but run queue and
            page fault.
        wait_class: label of the class of such waits; "" leaves it as it is.
        for_work: whether the thread waits for its next piece of work; None leaves it as it is.
    """

    program: str
    meaning: str
    frames: str = ""
    callers: str = ""
    comm: str = ""
    syscall: str = ""
    waits: str = ""
    wait_class: str = ""
    for_work: bool | None = None
