# SPDX-License-Identifier: Apache-2.0
"""List the BPF programs that are loaded on this machine."""

import errno

from perf_offcpu.collect.bpf.attr import Command, ObjectId
from perf_offcpu.collect.bpf.syscall import call


def program_ids() -> set[int]:
    ids: set[int] = set()
    attr = ObjectId()
    while True:
        try:
            call(Command.PROG_GET_NEXT_ID, attr)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return ids
            raise
        ids.add(attr.next_id)
        attr.start_id = attr.next_id
