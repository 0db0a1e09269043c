# SPDX-License-Identifier: Apache-2.0
"""Layout of the header of a perf.data file and of its sections. Source: tools/perf/util/header.[ch]."""

from __future__ import annotations

from perf_offcpu.binary.fields import U64, Field
from perf_offcpu.binary.layout import Layout

MAGIC = b"PERFILE2"
MAGIC_SWAPPED = MAGIC[::-1]
"""The magic is a number: a big-endian recorder writes its bytes in the other order."""
MAGIC_V1 = b"PERFFILE"

FILE_HEADER_SIZE = 104
FILE_HEADER_SIZE_OLD = 72
PIPE_HEADER_SIZE = 16
FEATURE_BITS = 256

SECTION = Layout("perf_file_section", ("offset size", U64))

PIPE_HEADER = Layout("perf_pipe_file_header", ("magic size", U64))

FILE_HEADER = Layout(
    "perf_file_header",
    ("magic", U64),
    Field("size", U64, doc="of this header: 104; 72 before features existed; 16 marks the pipe form"),
    Field("attr_size", U64, doc="stride of the attr section: attr.size + 16"),
    ("attrs", SECTION),
    Field("data", SECTION, doc="size 0: the recorder was killed"),
    Field("event_types", SECTION, doc="unused since 2.6.39"),
    Field("features", U64, count=FEATURE_BITS // 64, doc="bitmap; see abi.features"),
    source="tools/perf/util/header.h",
)
